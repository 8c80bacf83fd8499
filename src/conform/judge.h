// What is right, how far a kernel may be from it, and whether that bound is worth anything.
//
// The rule: in every row, the largest error against the double oracle is at most twice the largest error that
// a plain implementation of the same arithmetic makes in the same batch, or what the rounding errors of that
// row come to in all likelihood, if that is more. A row is judged alone, so that one garbage row among
// thousands fails. Controls prove that the bound rejects what it must reject.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/contract.h"
#include "conform/batch.h"

namespace attest::conform {

struct AttentionResult {
  std::vector<double> out;           // [num_tokens, q_heads, v_head_dim]
  std::vector<double> lse;           // [q_heads, num_tokens]; empty when not wanted
  std::vector<bool> token_ran = {};  // [num_tokens]; empty: every token. Others hold 0 and are not judged
  std::vector<PlannedRoute> routes = {};  // which of our kernels ran; empty for others
  std::string violation = {};             // what was written outside the outputs; empty: nothing
  [[nodiscard]] bool ran(size_t token) const { return token_ran.empty() || token_ran[token]; }
  bool operator==(const AttentionResult& other) const { return out == other.out && lse == other.lse; }
};

// Every row by the oracle, in double.
[[nodiscard]] AttentionResult RunOracle(AttentionBatch& batch);
// The plain implementation: one row at a time, sums in key and dim order, float32 (or queries and weights in
// bf16). Its error against the oracle is what the arithmetic costs when nothing is wrong.
[[nodiscard]] AttentionResult RunPlain(AttentionBatch& batch, AttentionArithmetic arithmetic);

// The largest error of each row (token, head); infinity where a value is not finite.
[[nodiscard]] std::vector<double> RowErrors(const AttentionResult& result, const AttentionResult& oracle,
                                            int dim);
[[nodiscard]] double LseError(double lse, double oracle);

// How far each row may be from the oracle.
struct ErrorBudget {
  double out = 0, lse = 0;             // of every row: twice the plain implementation's largest error
  std::vector<double> out_least = {};  // [num_tokens * q_heads]: of one row, when that is larger
  std::vector<double> lse_least = {};  // [q_heads * num_tokens]; each may be empty: no row has its own
  [[nodiscard]] double OutOf(size_t row) const {
    return out_least.empty() ? out : std::max(out, out_least[row]);
  }
  [[nodiscard]] double LseOf(size_t i) const { return lse_least.empty() ? lse : std::max(lse, lse_least[i]); }
  [[nodiscard]] ErrorBudget Times(double factor) const;
};
// kDeviations standard deviations of the rounding errors of the row (attention/row_error.h), and the rounding
// of what is stored in fewer bits, are allowed whatever the plain implementation did: in a small batch it may
// happen to be almost exact, where another order of the same sums is not. docs/conformance.md derives it.
inline constexpr double kDeviations = 8;
[[nodiscard]] ErrorBudget BudgetOf(AttentionBatch& batch, const AttentionResult& oracle,
                                   AttentionArithmetic arithmetic);

// The first row (or LSE) outside the budget, in words; nullopt: all are within.
[[nodiscard]] std::optional<std::string> FirstBadRow(const AttentionResult& result,
                                                     const AttentionResult& oracle, const ErrorBudget& budget,
                                                     int dim, int q_heads);

// A control that the budget lets pass: "a zeroed row of token 3 head 1 passes: ...". nullopt: the budget
// rejects one zeroed row anywhere, V taken from the neighbouring key, and a mask short by one key at either
// end. Controls that change nothing in the batch (no row sees two keys) are left out.
[[nodiscard]] std::optional<std::string> PassingControl(AttentionBatch& batch, const AttentionResult& oracle,
                                                        const ErrorBudget& budget);

}  // namespace attest::conform
