#include "conform/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace attest::conform {

namespace {

bool RefusesEveryPhase(Subject& subject, const AttentionSpec& spec) {
  return std::ranges::all_of(kAttentionPhases, [&](AttentionPhase phase) {
    return !subject.Refusals({.spec = spec, .phase = phase}).empty();
  });
}

// The first of these page types, with and without LSE, that the subject takes.
AttentionSpec Fit(Subject& subject, const AttentionSpec& spec, const std::array<DType, 2>& types) {
  for (const bool lse : {true, false}) {
    for (const DType dtype : types) {
      AttentionSpec fit = spec;
      fit.kv_dtype = dtype;
      fit.wants_lse = lse;
      if (!RefusesEveryPhase(subject, fit)) return fit;
    }
  }
  return spec;
}

}  // namespace

AttentionSpec Probe::Small(int q_heads, int kv_heads, int head_dim) {
  return Fit(subject_, conform::Small(q_heads, kv_heads, head_dim), {DType::kF32, DType::kBF16});
}

AttentionSpec Probe::Windowed(int window) {
  return Fit(subject_, conform::Windowed(window), {DType::kF32, DType::kBF16});
}

AttentionSpec Probe::Spec(int q_heads, int kv_heads, int head_dim) {
  return Fit(subject_, MakeSpec(q_heads, kv_heads, head_dim), {DType::kBF16, DType::kF32});
}

std::optional<AttentionResult> Probe::Run(AttentionBatch& batch, const RunOptions& options) {
  if (observer_ && !failure_) observer_(batch);
  auto run = RunSubject(subject_, batch, options);
  if (!run) {
    Expect(false, run.error().message);
    return std::nullopt;
  }
  for (Reason& reason : run->refusals) {
    if (refusals_.size() < 32) refusals_.push_back(std::move(reason));
  }
  Expect(run->result.violation.empty(), run->result.violation);
  if (!run->ran_any()) return std::nullopt;
  ++runs_;
  phases_.decode |= run->phases.decode;
  phases_.prefill |= run->phases.prefill;
  phases_.extend |= run->phases.extend;
  phases_.uniform_decode |= run->phases.uniform_decode;
  return std::move(run->result);
}

void Probe::Expect(bool holds, const std::string& what) {
  if (!holds && !failure_) failure_ = what;
}

void Probe::ExpectNear(double got, double want, double tolerance, const std::string& what) {
  if (got == want) return;  // both infinite
  if (subject_.arithmetic() != AttentionArithmetic::kF32) tolerance = std::max(tolerance, 8e-3);
  if (!(std::abs(got - want) <= tolerance * std::max(1.0, std::abs(want)))) {
    Expect(false, fmt::format("{} is {:.9g}, expected {:.9g}", what, got, want));
  }
}

void Probe::ExpectLse(const AttentionResult& result, size_t index, double want, double tolerance) {
  if (result.lse.empty()) return;  // the subject has none
  ExpectNear(result.lse[index], want, tolerance, fmt::format("lse {}", index));
}

void Probe::ExpectRow(const AttentionResult& result, const AttentionSpec& spec, int token, int head,
                      double expected, bool d_probe) {
  if (failure_ || !result.ran(static_cast<size_t>(token))) return;
  for (int d = 0; d < spec.v_head_dim; ++d) {
    const double want = expected + (d_probe ? d / 1024.0 : 0.0);
    const double got =
        result.out[static_cast<size_t>((int64_t{token} * spec.q_heads + head) * spec.v_head_dim + d)];
    if (!(std::abs(got - want) <= rounding() * std::max(1.0, std::abs(want)))) {
      Expect(false, fmt::format("token {} head {} dim {} is {:.9g}, expected {:.9g} (head_dim {})", token,
                                head, d, got, want, spec.head_dim));
      return;
    }
  }
}

void Probe::ExpectSame(double a, double b, const std::string& what) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  const bool near = std::abs(a - b) <= 5 * rounding() * std::max(1.0, std::abs(b));
  if (subject_.is_bit_stable() || !near) Expect(false, fmt::format("{}: {:.9g} and {:.9g}", what, a, b));
}

void Probe::ExpectSameRow(const AttentionSpec& spec, const AttentionResult& a, int64_t i,
                          const AttentionResult& b, int64_t j, const std::string& what) {
  if (!a.ran(static_cast<size_t>(i)) || !b.ran(static_cast<size_t>(j))) return;
  const int64_t row = int64_t{spec.q_heads} * spec.v_head_dim;
  for (int64_t d = 0; d < row && !failure_; ++d)
    ExpectSame(a.out[static_cast<size_t>(i * row + d)], b.out[static_cast<size_t>(j * row + d)], what);
}

void Probe::ExpectSame(const AttentionResult& a, const AttentionResult& b, const std::string& what) {
  Expect(a.out.size() == b.out.size() && a.lse.size() == b.lse.size(), what + ": sizes differ");
  for (size_t i = 0; i < std::min(a.out.size(), b.out.size()) && !failure_; ++i)
    ExpectSame(a.out[i], b.out[i], what);
  for (size_t i = 0; i < std::min(a.lse.size(), b.lse.size()) && !failure_; ++i)
    ExpectSame(a.lse[i], b.lse[i], what + " (lse)");
}

void Probe::ExpectUProbe(const AttentionSpec& spec, const std::vector<int32_t>& q_len,
                         const std::vector<int32_t>& kv_len, const std::vector<double>& expected) {
  AttentionBatch batch(spec, q_len, kv_len);
  batch.UProbe();
  for (const float fill : {kNaN, 7.0f}) {
    const auto result = Run(batch, {.fill = fill});
    if (!result) return;
    Expect(expected.size() == static_cast<size_t>(batch.num_tokens()),
           "the probe states another number of answers than rows");
    for (int token = 0; token < batch.num_tokens() && !failure_; ++token) {
      for (int head = 0; head < spec.q_heads; ++head)
        ExpectRow(*result, spec, token, head, expected[static_cast<size_t>(token)]);
    }
  }
}

void Probe::ExpectRandomIsRight(const AttentionSpec& spec, const std::vector<int32_t>& q_len,
                                const std::vector<int32_t>& kv_len, const BatchOptions& options) {
  AttentionBatch batch(spec, q_len, kv_len, options);
  const auto result = Run(batch);
  if (!result) return;
  const AttentionResult oracle = RunOracle(batch);
  const auto bad = FirstBadRow(*result, oracle, BudgetOf(batch, oracle, subject_.arithmetic()),
                               spec.v_head_dim, spec.q_heads);
  Expect(!bad, bad.value_or(""));
}

void Probe::ExpectTakenOrRefusedByName(const AttentionSpec& with, const AttentionSpec& without,
                                       const std::string& field) {
  for (const AttentionPhase phase : kAttentionPhases) {
    if (!subject_.Refusals({.spec = without, .phase = phase}).empty()) continue;
    const std::vector<Reason> reasons = subject_.Refusals({.spec = with, .phase = phase});
    Expect(reasons.empty() ||
               std::ranges::any_of(reasons, [&](const Reason& reason) { return reason.field == field; }),
           fmt::format("refuses {} without naming {}", AttentionPhaseName(phase), field));
  }
}

AttentionSpec Small(int q_heads, int kv_heads, int head_dim) {
  AttentionSpec spec = MakeSpec(q_heads, kv_heads, head_dim);
  spec.kv_dtype = DType::kF32;
  return spec;
}

AttentionSpec Windowed(int window) {
  AttentionSpec spec = Small();
  if (window > 0) spec.window_left = window - 1;
  return spec;
}

double Mean(int p, int window) {
  const int first = window == 0 ? 0 : std::max(0, p - window + 1);
  return (first + p) / 2.0;
}

}  // namespace attest::conform
