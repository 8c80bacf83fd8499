// The decode kernels that round queries and softmax weights to bf16 and keep K and V in bf16, one per
// instruction set. Their contracts are in attention/contracts_cpu_decode.cc.
#pragma once

#include "kernels/cpu/attention_decode_f32.h"

namespace attest {

extern const AttentionKernel kAttentionDecodeAmx;
extern const AttentionKernel kAttentionDecodeNeonBf16;

}  // namespace attest
