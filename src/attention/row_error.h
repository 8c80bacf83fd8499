// What float32 arithmetic loses in one row when nothing is wrong: as a worst case, by which the sentinel
// judges a kernel in service (row_check.h), and as a standard deviation, by which the conformance suite
// judges one on trial (conform/judge.h). Both follow the same steps and are computed from the row's own
// queries, keys and values; docs/conformance.md has the derivation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/reference/attention_reference.h"

namespace attest {

inline constexpr double kF32Unit = 0x1p-24;  // u: half a unit in the last place of a float32 in [1, 2)

// The largest rounding error of an output stored in fewer bits, relative to it; 0 for float32.
[[nodiscard]] double StoredUnit(DType out_dtype);

// v_head_dim or head_dim elements of one key, as the floats they stand for (before descales). The formats of
// the engine's pages are read without a call per element.
void ReadRow(const ReferenceKey& key, DType dtype, std::span<float> row);

// The standard deviation of the rounding errors of one row, every rounding taken as independent, of mean 0,
// and uniform within its bound; every sum taken in an order that knows nothing of its terms.
class RowDeviation {
 public:
  // `row` is counted within the sequence. The row must be finite.
  void Compute(const AttentionParams& params, int seq, int32_t row, int head);
  // Of the float32 result in dim d; what storing it in fewer bits costs is not in it.
  [[nodiscard]] double out(int d) const { return out_[static_cast<size_t>(d)]; }
  [[nodiscard]] double lse() const { return lse_; }

 private:
  std::vector<double> out_, expected_, squares_, centred_;  // [v_head_dim]
  std::vector<double> weights_, variances_;  // of each visible key; variances in units of u^2 / 3
  std::vector<int64_t> keys_;
  std::vector<float> query_, key_;
  double lse_ = 0;
};

}  // namespace attest
