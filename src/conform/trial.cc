#include "conform/trial.h"

#include <fmt/format.h>

#include <cmath>

namespace attest::conform {
namespace {

constexpr float kOtherFill = 7.0f;

size_t IndexOf(AttentionArithmetic arithmetic) { return arithmetic == AttentionArithmetic::kF32 ? 0 : 1; }

// A value that was NaN when the output held NaN, and 7 when it held 7, was never written.
std::optional<std::string> Unwritten(const AttentionCase& c, const AttentionResult& nan,
                                     const AttentionResult& other) {
  const auto dim = static_cast<size_t>(c.spec.v_head_dim), heads = static_cast<size_t>(c.spec.q_heads);
  const auto left = [](double a, double b) { return std::isnan(a) && b == static_cast<double>(kOtherFill); };
  size_t rows = 0;
  std::string first;
  for (size_t row = 0; row * dim < nan.out.size(); ++row) {
    if (!nan.ran(row / heads)) continue;
    for (size_t d = 0; d < dim; ++d) {
      if (!left(nan.out[row * dim + d], other.out[row * dim + d])) continue;
      if (rows++ == 0)
        first = fmt::format("token {} head {} dim {} was not written", row / heads, row % heads, d);
      break;
    }
  }
  if (rows > 0) return fmt::format("{} ({} of {} rows)", first, rows, nan.out.size() / dim);
  const size_t tokens = nan.lse.size() / heads;
  for (size_t i = 0; i < nan.lse.size(); ++i) {
    if (nan.ran(i % tokens) && left(nan.lse[i], other.lse[i]))
      return fmt::format("lse of token {} head {} was not written", i % tokens, i / tokens);
  }
  return std::nullopt;
}

// The same case behind other poison, pages and strides.
BatchOptions Moved(const AttentionCase& c) {
  BatchOptions options = c.options;
  options.poison = 1e4f;
  options.shuffle_pages = !options.shuffle_pages;
  options.interleave_kv = c.spec.layout == KvLayout::kPagedNhd && !options.interleave_kv;
  options.q_token_padding += 24;
  if (c.spec.layout == KvLayout::kContiguous) options.k_token_padding += 16;
  options.transposed_lse = !options.transposed_lse;
  options.descale_padding += 2;
  return options;
}

}  // namespace

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kRefused:
      return "refused";
    case Verdict::kFail:
      return "FAIL";
  }
  return "unknown";
}

Truth::Truth(const AttentionCase& attention_case)
    : case_(attention_case), batch_(case_.spec, case_.q_len, case_.kv_len, case_.options) {}

const AttentionResult& Truth::oracle() {
  if (!oracle_) oracle_ = RunOracle(batch_);
  return *oracle_;
}

const ErrorBudget& Truth::budget(AttentionArithmetic arithmetic) {
  std::optional<ErrorBudget>& budget = budgets_[IndexOf(arithmetic)];
  if (!budget) budget = BudgetOf(batch_, oracle(), arithmetic);
  return *budget;
}

const std::optional<std::string>& Truth::passing_control(AttentionArithmetic arithmetic) {
  std::optional<std::optional<std::string>>& control = controls_[IndexOf(arithmetic)];
  if (!control) control = PassingControl(batch_, oracle(), budget(arithmetic));
  return *control;
}

Outcome TryCase(Subject& subject, Truth& truth) {
  const AttentionCase& c = truth.attention_case();
  Outcome outcome;
  const auto fail = [&](std::string why) {
    outcome.verdict = Verdict::kFail;
    outcome.why = std::move(why);
    return outcome;
  };
  auto first = RunSubject(subject, truth.batch(), {.num_threads = 2, .fill = kNaN});
  if (!first) return fail(first.error().message);
  outcome.phases = first->phases;
  outcome.refusals = std::move(first->refusals);
  for (const Reason& reason : outcome.refusals) {
    if (reason.field.empty() || reason.value.empty() || reason.expected.empty())
      return fail(fmt::format("refused without a reason: '{}'", ToString(reason)));
  }
  if (!first->result.violation.empty()) return fail(first->result.violation);
  if (!first->ran_any()) {
    outcome.verdict = outcome.refusals.empty() ? Verdict::kPass : Verdict::kRefused;
    return outcome;
  }

  const auto second = RunSubject(subject, truth.batch(), {.num_threads = 1, .fill = kOtherFill});
  if (!second) return fail("the second call: " + second.error().message);
  if (auto unwritten = Unwritten(c, first->result, second->result)) return fail(*unwritten);
  const auto bad = [&](const AttentionResult& result) {
    return FirstBadRow(result, truth.oracle(), truth.budget(subject.arithmetic()), c.spec.v_head_dim,
                       c.spec.q_heads);
  };
  if (auto row = bad(first->result)) return fail(*row);
  const auto same = [&](const AttentionResult& result) {
    return subject.is_bit_stable() ? result == first->result : !bad(result);
  };
  if (!second->result.violation.empty()) return fail(second->result.violation);
  if (!same(second->result)) return fail("the result depends on what the output held, or on the threads");

  AttentionBatch moved(c.spec, c.q_len, c.kv_len, Moved(c));
  const auto third = RunSubject(subject, moved, {.num_threads = 2, .fill = 1e4f});
  if (!third) return fail("behind other strides: " + third.error().message);
  if (!third->result.violation.empty()) return fail("behind other strides: " + third->result.violation);
  if (!same(third->result)) {
    return fail("other pages, strides or poison in unread memory change the result: " +
                bad(third->result).value_or("within the tolerance, but not the same bytes"));
  }
  return outcome;
}

}  // namespace attest::conform
