// The ALiBi slopes of a model, by its number of query heads over all ranks. With tensor parallelism a rank
// takes the slice of its heads.
#pragma once

#include <vector>

namespace attest {

// With n the largest power of two <= q_heads: 2^(-8k/n) for k = 1..n, then for the heads left over
// 2^(-4k/n) for k = 1, 3, 5, ... (the odd members of the sequence for 2n). REQUIRES: q_heads >= 1.
[[nodiscard]] std::vector<float> AlibiSlopes(int q_heads);

}  // namespace attest
