// The prefill and extend kernels that compute in float32, one per instruction set. Their contracts are in
// attention/contracts_cpu_prefill.cc.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace attest {

extern const AttentionKernel kAttentionPrefillAvx2;
extern const AttentionKernel kAttentionPrefillAvx512;
extern const AttentionKernel kAttentionPrefillNeon;

}  // namespace attest
