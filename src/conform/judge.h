// What is right, how far a kernel may be from it, and whether that bound is worth anything.
//
// The rule: in every row, the largest error against the double oracle is at most twice the largest error that
// a plain implementation of the same arithmetic makes in the same batch. A row is judged alone, so that one
// garbage row among thousands fails. Controls prove that the bound rejects what it must reject.
#pragma once

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

struct ErrorBudget {
  double out = 0;
  double lse = 0;
};
// Twice the plain implementation's largest error. The floor, two units in the last place of the largest
// output (four in float32), is for small batches that the plain implementation happens to compute almost
// exactly.
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
