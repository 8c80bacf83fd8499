// Probes with exact answers, which need no oracle: equal weights and V[j] = j make every output the mean
// index of the keys the row sees. A Probe runs them on one subject and keeps the first thing that was wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conform/case_list.h"
#include "conform/subject.h"

namespace attest::conform {

// Sees every batch a probe runs, before it runs; used to write the failing one to a file.
using BatchObserver = std::function<void(AttentionBatch&)>;

class Probe {
 public:
  explicit Probe(Subject& subject, BatchObserver observer = nullptr)
      : subject_(subject), observer_(std::move(observer)) {}

  [[nodiscard]] Subject& subject() { return subject_; }
  // Specs whose answers are exact: conform::Small and Windowed, on bf16 pages for a subject that reads no f32
  // ones (then to its rounding), without LSE for one that has none.
  [[nodiscard]] AttentionSpec Small(int q_heads = 2, int kv_heads = 1, int head_dim = 32);
  [[nodiscard]] AttentionSpec Windowed(int window);
  // MakeSpec, on f32 pages for a subject that reads no bf16 ones, without LSE for one that has none.
  [[nodiscard]] AttentionSpec Spec(int q_heads, int kv_heads, int head_dim);
  // The rows of the phases that the subject accepts; nullopt when it refuses all, or fails, which is noted.
  // Checks that nothing outside the outputs was written.
  std::optional<AttentionResult> Run(AttentionBatch& batch, const RunOptions& options = {});

  void Expect(bool holds, const std::string& what);
  void ExpectNear(double got, double want, double tolerance, const std::string& what);
  // lse[index], where the subject has one.
  void ExpectLse(const AttentionResult& result, size_t index, double want, double tolerance = 0);
  // Every dim of a row is `expected` (plus dim / 1024 with `d_probe`), to the rounding of the subject. A row
  // that was not run is left out.
  void ExpectRow(const AttentionResult& result, const AttentionSpec& spec, int token, int head,
                 double expected, bool d_probe = false);
  // The same bytes, or for a subject that is not bit stable the same within its rounding.
  void ExpectSame(const AttentionResult& a, const AttentionResult& b, const std::string& what);
  void ExpectSame(double a, double b, const std::string& what);
  // The output rows of token i of `a` and token j of `b`, all heads; left out when either was not run.
  void ExpectSameRow(const AttentionSpec& spec, const AttentionResult& a, int64_t i, const AttentionResult& b,
                     int64_t j, const std::string& what);
  // The uniform probe on one batch: expected[t] is the mean index of the keys that token t sees.
  void ExpectUProbe(const AttentionSpec& spec, const std::vector<int32_t>& q_len,
                    const std::vector<int32_t>& kv_len, const std::vector<double>& expected);
  // Random data within the budget of the oracle.
  void ExpectRandomIsRight(const AttentionSpec& spec, const std::vector<int32_t>& q_len,
                           const std::vector<int32_t>& kv_len, const BatchOptions& options = {.seed = 5});
  // In every phase in which the subject takes `without`, it takes `with` too or names `field` in its refusal.
  void ExpectTakenOrRefusedByName(const AttentionSpec& with, const AttentionSpec& without,
                                  const std::string& field);

  [[nodiscard]] const std::optional<std::string>& failure() const { return failure_; }
  [[nodiscard]] int runs() const { return runs_; }  // batches of which at least one row ran
  [[nodiscard]] const PhaseSet& phases() const { return phases_; }
  [[nodiscard]] const std::vector<Reason>& refusals() const { return refusals_; }

 private:
  [[nodiscard]] double rounding() const {
    return subject_.arithmetic() == AttentionArithmetic::kF32 ? 2e-6 : 8e-3;
  }
  Subject& subject_;
  BatchObserver observer_;
  std::optional<std::string> failure_;
  std::vector<Reason> refusals_;
  PhaseSet phases_;
  int runs_ = 0;
};

// A spec whose answers are exact: f32 pages.
[[nodiscard]] AttentionSpec Small(int q_heads = 2, int kv_heads = 1, int head_dim = 32);
// The same with a window of `window` tokens, the row itself counted (0: none).
[[nodiscard]] AttentionSpec Windowed(int window);
// Mean index of the keys that a causal row at position p sees through such a window.
[[nodiscard]] double Mean(int p, int window);

}  // namespace attest::conform
