// The prefill and extend kernels that round queries and softmax weights to bf16 and keep K and V in bf16, one
// per instruction set. Their contracts are in attention/contracts_cpu_prefill.cc.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace attest {

extern const AttentionKernel kAttentionPrefillAvx512Bf16;
extern const AttentionKernel kAttentionPrefillAmx;
extern const AttentionKernel kAttentionPrefillNeonBf16;

}  // namespace attest
