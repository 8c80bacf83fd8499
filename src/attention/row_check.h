// Judges one computed row: recomputes it in double from the very queries and pages the kernel read, and
// compares the error with a bound on what the kernel's arithmetic may lose in that row.
//
// The bound, per output element d, with u = 2^-24, w_j the softmax weight of key j, and o_d the row itself:
//
//   |m_d - o_d|                     what rounding the queries costs: m is the oracle on queries rounded to
//                                   bf16 (kBf16; kF32 rounds none, and m = o)
//   sum_j w_j (e_j + mean e + c) |v_jd|
//                                   scores, exponentials and sums in float32, in any order and any split:
//                                   e_j = u (head_dim + 8) |scale| sum_d |q_d k_jd|   the dot product
//                                       + 8 u (|s_j| + max |s| + |ALiBi_j|)           what is added to it
//                                       + 2^-20 softcap + x                           tanh; x bounds exp2
//                                   c = 2 u (8 + keys): the sums over keys of numerator and denominator
//   2^-8 (sum w_j |v_jd| + |o_d|)   kBf16: weights rounded to bf16, above and below the fraction bar
//   4 u |o_d|, and half a unit in the last place of an output stored in fewer bits
//
// All are worst cases: a row over its budget is wrong, not unlucky. Nothing takes roundings as independent,
// since copies of one key, as a prompt that repeats itself has them, all round alike. The other way round the
// bound is useful because it is small: tests/attention/row_check_test.cc shows what it rejects.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attention/contract.h"
#include "kernels/attention_params.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/reference/attention_reference.h"

namespace attest {

struct RowVerdict {
  // False when the oracle's own row is not finite: Q, K or V is not, and nothing can be said about the
  // kernel.
  bool verifiable = true;
  // The largest error in units of its budget; infinity where the kernel's value is not finite. The row is
  // right iff ratio <= 1.
  double ratio = 0.0;
  // Where that is; absent: in the row's LSE.
  std::optional<int> dim;
  double computed = 0.0, expected = 0.0, error = 0.0, budget = 0.0;
  // The first dim over its budget; absent when there is none (then ratio <= 1, or the LSE is wrong).
  std::optional<int> first_wrong_dim;
  [[nodiscard]] bool ok() const { return ratio <= 1.0; }
};

// Owns scratch only. One thread at a time.
//
// A row is first recomputed in double by loops made for speed, which read the mask and the pages through the
// oracle and which tests hold to it on every case. A row they find right is right; one they object to, or
// cannot say anything of, is recomputed by the oracle itself, whose word is the verdict.
class RowChecker {
 public:
  // The portable loops are for tests.
  explicit RowChecker(const RowSumOps& ops = BestRowSumOps()) : ops_(ops) {}
  // `row` is counted within the sequence. REQUIRES: params as a kernel receives them, out (and lse) written.
  RowVerdict Check(const AttentionParams& params, AttentionArithmetic arithmetic, int seq, int32_t row,
                   int head);
  // The row of the last Check and its LSE, as its verdict had them.
  [[nodiscard]] std::span<const double> expected() const { return expected_; }
  [[nodiscard]] double lse() const { return lse_; }
  [[nodiscard]] bool asked_the_oracle() const { return asked_the_oracle_; }

 private:
  void Walk(const AttentionParams& params, AttentionArithmetic arithmetic, int seq, int32_t row, int head);
  void AskTheOracle(const AttentionParams& params, AttentionArithmetic arithmetic, int seq, int32_t row,
                    int head);
  [[nodiscard]] RowVerdict Judge(const AttentionParams& params, AttentionArithmetic arithmetic, int64_t token,
                                 int head) const;
  void ReadRow(const ReferenceKey& key, DType dtype);

  const RowSumOps& ops_;
  std::vector<double> expected_, model_;                  // [v_head_dim]
  std::vector<double> magnitude_, absolute_;              // [v_head_dim]
  std::vector<int64_t> keys_;                             // the visible ones
  std::vector<double> weights_, model_weights_, errors_;  // of each of them
  std::vector<float> query_, rounded_, key_;
  double lse_ = 0, model_lse_ = 0;
  double relative_ = 0;  // of the denominator: the weighted mean of e_j, plus c
  bool asked_the_oracle_ = false;
};

}  // namespace attest
