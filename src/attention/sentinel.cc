#include "attention/sentinel.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace attest {
namespace {

// A counter-based hash: the finaliser of splitmix64 over its three inputs.
uint64_t Hash(uint64_t a, uint64_t b, uint64_t c) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;
  return mix(mix(mix(a + kStep) ^ (b + kStep)) ^ (c + kStep));
}

// In [0, 1), from the upper 53 bits.
double ToUnit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// FNV-1a: a name's key is the same in every build.
uint64_t NameKey(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace

const char* OnMismatchName(OnMismatch policy) {
  switch (policy) {
    case OnMismatch::kLog:
      return "log";
    case OnMismatch::kQuarantine:
      return "quarantine";
    case OnMismatch::kStop:
      return "stop";
  }
  return "unknown";
}

std::string Describe(const Mismatch& m) {
  const std::string where = m.verdict.dim ? fmt::format("dim {}", *m.verdict.dim) : std::string("lse");
  return fmt::format(
      "attention kernel {} is wrong in {}: step {} layer {} sequence {} row {} head {} {}: {} where the "
      "oracle "
      "has {}, error {:.3g}, budget {:.3g}",
      m.kernel, AttentionPhaseName(m.phase), m.step, m.layer, m.seq, m.row, m.head, where, m.verdict.computed,
      m.verdict.expected, m.verdict.error, m.verdict.budget);
}

Sentinel::Sentinel(SentinelOptions options)
    : options_(std::move(options)), writer_(options_.case_folder, options_.max_cases) {
  ATTEST_CHECK(options_.rate > 0 && options_.rate <= 1);
}

int64_t Sentinel::Draw(const Track& track) const {
  const auto begin = static_cast<int64_t>(track.window_begin);
  const auto end = static_cast<int64_t>(track.window_begin + track.window_length);
  const double place =
      ToUnit(Hash(options_.seed, track.key, track.window)) * static_cast<double>(end - begin);
  return begin + static_cast<int64_t>(place);
}

Sentinel::Track& Sentinel::TrackOf(const PlanGroup& group) {
  const KernelEntry* entry = &group.route.entry();
  const AttentionPhase phase = group.problem.phase;
  for (Track& track : tracks_) {
    if (track.entry == entry && track.phase == phase) return track;
  }
  Track track{
      .entry = entry, .phase = phase, .key = NameKey(entry->contract.name) + static_cast<uint64_t>(phase)};
  track.due = Draw(track);
  tracks_.push_back(track);
  const std::lock_guard lock(mutex_);
  counts_.push_back({.kernel = entry->contract.name, .phase = phase});
  return tracks_.back();
}

void Sentinel::CollectSamples(const AttentionPlan& plan, size_t group_index) {
  const PlanGroup& group = plan.groups()[group_index];
  Track& track = TrackOf(group);
  const int64_t q_heads = plan.spec().q_heads;
  const int64_t begin = track.seen;
  track.seen += group.num_tokens * q_heads;
  if (track.due >= track.seen) return;

  const CuSeqlens& q_begin = *plan.lengths().q_begin;
  size_t next_seq = 0;
  int64_t first_token = 0;  // of group.seqs[next_seq], counted within the group
  while (track.due < track.seen) {
    const int64_t token = (track.due - begin) / q_heads;
    while (token >= first_token + q_begin.length(group.seqs[next_seq])) {
      first_token += q_begin.length(group.seqs[next_seq++]);
    }
    samples_.push_back({.track = static_cast<size_t>(&track - tracks_.data()),
                        .group = group_index,
                        .seq = group.seqs[next_seq],
                        .row = static_cast<int32_t>(token - first_token),
                        .head = static_cast<int>((track.due - begin) % q_heads)});
    track.window_begin += track.window_length;
    // 1, 1, 2, 4, ...: as long as all before it together.
    track.window_length = std::min(std::max(track.window_begin, 1.0), 1 / options_.rate);
    ++track.window;
    track.due = Draw(track);
  }
}

void Sentinel::AfterAttend(int layer, const AttentionPlan& plan, const AttendArgs& args, ThreadTeam& team) {
  samples_.clear();
  for (size_t i = 0; i < plan.groups().size(); ++i) CollectSamples(plan, i);
  if (samples_.empty()) return;

  const auto begin = std::chrono::steady_clock::now();
  const AttentionParams params = ParamsOf(plan, args);
  verdicts_.assign(samples_.size(), RowVerdict{});
  if (checkers_.size() < static_cast<size_t>(team.size())) checkers_.resize(static_cast<size_t>(team.size()));
  std::atomic<size_t> next{0};
  const auto work = [&](int rank) {
    for (size_t i = next.fetch_add(1); i < samples_.size(); i = next.fetch_add(1)) {
      const Sample& sample = samples_[i];
      verdicts_[i] = checkers_[static_cast<size_t>(rank)].Check(
          params, plan.groups()[sample.group].route.entry().contract.arithmetic, sample.seq, sample.row,
          sample.head);
    }
  };
  if (samples_.size() == 1) {
    work(0);
  } else {
    team.Run(work);
  }
  for (size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    Count(sample, verdicts_[i]);
    if (!verdicts_[i].verifiable || verdicts_[i].ok()) continue;
    Track& track = tracks_[sample.track];
    Report({.kernel = track.entry->contract.name,
            .phase = track.phase,
            .step = step_,
            .layer = layer,
            .seq = sample.seq,
            .row = sample.row,
            .head = sample.head,
            .verdict = verdicts_[i]},
           track, plan, params);
  }
  const std::lock_guard lock(mutex_);
  check_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Sentinel::Count(const Sample& sample, const RowVerdict& verdict) {
  const std::lock_guard lock(mutex_);
  SentinelCounts& counts = counts_[sample.track];
  ++counts.rows_checked;
  if (!verdict.verifiable) {
    ++counts.unverifiable;
    return;
  }
  if (!verdict.ok()) ++counts.mismatches;
  if (std::isfinite(verdict.error)) counts.worst_error = std::max(counts.worst_error, verdict.error);
  counts.worst_ratio = std::max(counts.worst_ratio, verdict.ratio);
}

void Sentinel::Report(const Mismatch& mismatch, Track& track, const AttentionPlan& plan,
                      const AttentionParams& params) {
  if (std::ranges::find(mismatches_, mismatch.kernel, &Mismatch::kernel) == mismatches_.end()) {
    mismatches_.push_back(mismatch);
  }
  ++track.mismatches;
  // A kernel that is wrong everywhere must not flood the log: the first of each kernel and phase, the tenth,
  // the hundredth, ...
  if (track.mismatches == track.next_logged) {
    track.next_logged *= 10;
    LogError(fmt::format("{} (mismatch {} of this kernel and phase)", Describe(mismatch), track.mismatches));
  }
  if (std::exchange(track.has_case, true)) return;
  Expected<AttentionCaseFile> captured = CaptureCase(plan, params, mismatch.seq, options_.max_case_bytes);
  if (!captured) return writer_.CountFailure(captured.error().message);
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  // In a case cut down to one sequence that sequence is number 0.
  const bool is_whole = std::ssize(captured->q_len) == params.q_begin->num_seqs();
  captured->notes = {{"version", options_.version},
                     {"model", options_.model},
                     {"cpu", options_.cpu},
                     {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
                     {"kernel", std::string(mismatch.kernel)},
                     {"phase", AttentionPhaseName(mismatch.phase)},
                     {"step", fmt::format("{}", mismatch.step)},
                     {"layer", fmt::format("{}", mismatch.layer)},
                     {"sequence", fmt::format("{}", is_whole ? mismatch.seq : 0)},
                     {"row", fmt::format("{}", mismatch.row)},
                     {"head", fmt::format("{}", mismatch.head)},
                     {"what", Describe(mismatch)},
                     {"threads", fmt::format("{}", plan.num_threads())},
                     {"verify_rate", fmt::format("{}", options_.rate)},
                     {"verify_seed", fmt::format("{}", options_.seed)}};
  if (mismatch.verdict.dim) captured->notes["dim"] = fmt::format("{}", *mismatch.verdict.dim);
  writer_.Add(*std::move(captured));
}

std::vector<Mismatch> Sentinel::TakeMismatches() { return std::exchange(mismatches_, {}); }

void Sentinel::NoteQuarantined(std::string_view kernel) {
  const std::lock_guard lock(mutex_);
  quarantined_.emplace_back(kernel);
}

SentinelStats Sentinel::stats() const {
  SentinelStats stats{.rate = options_.rate,
                      .on_mismatch = options_.on_mismatch,
                      .counts = {},
                      .quarantined = {},
                      .check_seconds = 0,
                      .cases = writer_.stats()};
  const std::lock_guard lock(mutex_);
  stats.counts = counts_;
  stats.quarantined = quarantined_;
  stats.check_seconds = check_seconds_;
  return stats;
}

}  // namespace attest
