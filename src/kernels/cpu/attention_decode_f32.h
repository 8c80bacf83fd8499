// The decode kernels that compute in float32, one per instruction set. Their contracts are in
// attention/contracts_cpu_decode.cc.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace attest {

// New tokens of one sequence that a decode kernel takes; longer ones belong to the extend kernels.
inline constexpr int kDecodeMaxTokens = 8;

// The same tile for any number of tokens: a row is computed as if it were alone (--deterministic).
extern const AttentionKernel kAttentionRowwiseAvx2;
extern const AttentionKernel kAttentionRowwiseAvx512;
extern const AttentionKernel kAttentionRowwiseNeon;

extern const AttentionKernel kAttentionDecodeAvx2;
extern const AttentionKernel kAttentionDecodeAvx512;
extern const AttentionKernel kAttentionDecodeNeon;

}  // namespace attest
