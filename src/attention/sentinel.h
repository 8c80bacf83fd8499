// Watches the attention of a running engine: recomputes sampled (layer, row, head) triples by the oracle from
// the very queries and pages the kernel read, and remembers who was wrong. What follows from that (log,
// quarantine, stop) is the engine's business; docs/sentinel.md is for the person on call.
//
// Which rows. The rows of each kernel and phase are counted in the order in which they are computed, layer by
// layer. That count is cut into windows of 1 / rate rows, and one row of each window, at a place drawn by a
// counter-based hash of (seed, kernel, phase, window), is checked; the first windows are 1, 1, 2, 4, ... rows
// long. So the first row that a kernel computes is always checked, a kernel that is wrong in every row can
// compute no second one unseen, the fraction is exact, nothing is decided by a clock, and a layer in which no
// row is due costs one comparison for each kernel.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/case_capture.h"
#include "attention/case_writer.h"
#include "attention/plan.h"
#include "attention/row_check.h"
#include "base/thread_team.h"

namespace attest {

// One row in ten thousand: docs/sentinel.md has what it costs.
inline constexpr double kDefaultVerifyRate = 1e-4;
inline constexpr int kDefaultMaxCases = 4;

enum class OnMismatch {
  kLog,         // go on
  kQuarantine,  // take the kernel out of the list and compute again what it touched
  kStop,        // serve nothing more
};
[[nodiscard]] const char* OnMismatchName(OnMismatch policy);

struct SentinelOptions {
  double rate = kDefaultVerifyRate;  // of rows, (0, 1]; 1 checks every row before anything is made of it
  uint64_t seed = 0;
  OnMismatch on_mismatch = OnMismatch::kQuarantine;
  std::filesystem::path case_folder = {};          // empty: no case files
  int max_cases = kDefaultMaxCases;                // files in the folder
  int64_t max_case_bytes = kMaxCaseBytes;          // of one; a larger call is cut down to the wrong sequence
  std::string version = {}, model = {}, cpu = {};  // go into the notes of a case
};

// Where a row was wrong.
struct Mismatch {
  std::string_view kernel;
  AttentionPhase phase = AttentionPhase::kDecode;
  int64_t step = 0;  // of the engine, from 1
  int layer = 0;
  int32_t seq = 0, row = 0;  // of the step, of the sequence
  int head = 0;
  RowVerdict verdict;
};
// "attention_x is wrong in decode: step 3 layer 0 sequence 1 row 0 head 5 dim 7: ...". Never a token.
[[nodiscard]] std::string Describe(const Mismatch& mismatch);

// Counts of one kernel in one phase.
struct SentinelCounts {
  std::string_view kernel;
  AttentionPhase phase = AttentionPhase::kDecode;
  int64_t rows_checked = 0;
  int64_t mismatches = 0;
  int64_t unverifiable = 0;  // the oracle's own row was not finite
  double worst_error = 0;    // absolute, of a finite row
  double worst_ratio = 0;    // error / budget; > 1 is a mismatch, infinity a value that is not finite
};

struct SentinelStats {
  double rate = 0;
  OnMismatch on_mismatch = OnMismatch::kLog;
  std::vector<SentinelCounts> counts;  // in the order in which kernels were first used
  std::vector<std::string> quarantined;
  double check_seconds = 0;  // spent on checks, on the engine thread
  CaseWriterStats cases;
};

class Sentinel {
 public:
  explicit Sentinel(SentinelOptions options);
  [[nodiscard]] const SentinelOptions& options() const { return options_; }

  // Engine thread, in this order: one BeginStep for each step that runs, AfterAttend for each layer of it,
  // then TakeMismatches once.
  void BeginStep() { ++step_; }
  void AfterAttend(int layer, const AttentionPlan& plan, const AttendArgs& args, ThreadTeam& team);
  // The kernels that computed a wrong row since the last call, each with its first one.
  [[nodiscard]] std::vector<Mismatch> TakeMismatches();
  // For stats(): the engine has taken this kernel out of its list.
  void NoteQuarantined(std::string_view kernel);

  // Any thread.
  [[nodiscard]] SentinelStats stats() const;
  // Returns when no case waits to be written.
  void FlushCases() { writer_.Flush(); }

 private:
  // Rows of one kernel in one phase, and which is due next.
  struct Track {
    const KernelEntry* entry = nullptr;
    AttentionPhase phase = AttentionPhase::kDecode;
    uint64_t key = 0;          // of its hash
    int64_t seen = 0;          // rows computed so far
    int64_t due = 0;           // the next one to check, counted as `seen`
    double window_begin = 0;   // the window of `due`: the whole rows from here on that begin in it
    double window_length = 1;  // grows to 1 / rate
    uint64_t window = 0;       // its number
    int64_t mismatches = 0;
    int64_t next_logged = 1;
    bool has_case = false;  // one case for each kernel and phase
  };
  struct Sample {
    size_t track = 0;
    size_t group = 0;
    int32_t seq = 0, row = 0;
    int head = 0;
  };
  Track& TrackOf(const PlanGroup& group);
  // The row to check of the track's current window.
  [[nodiscard]] int64_t Draw(const Track& track) const;
  void CollectSamples(const AttentionPlan& plan, size_t group_index);
  void Count(const Sample& sample, const RowVerdict& verdict);
  void Report(const Mismatch& mismatch, Track& track, const AttentionPlan& plan,
              const AttentionParams& params);

  const SentinelOptions options_;
  int64_t step_ = 0;
  std::vector<Track> tracks_;
  std::vector<Sample> samples_;
  std::vector<RowVerdict> verdicts_;
  std::vector<RowChecker> checkers_;  // one per thread of the team
  std::vector<Mismatch> mismatches_;

  mutable std::mutex mutex_;            // guards the next three
  std::vector<SentinelCounts> counts_;  // parallel to tracks_
  std::vector<std::string> quarantined_;
  double check_seconds_ = 0;
  CaseWriter writer_;
};

}  // namespace attest
