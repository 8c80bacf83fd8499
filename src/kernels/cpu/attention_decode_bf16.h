// The decode kernel that rounds queries and softmax weights to bf16 and keeps K and V in bf16. Its contract
// is in attention/contracts_cpu_decode.cc.
#pragma once

#include "kernels/cpu/attention_decode_f32.h"

namespace attest {

extern const AttentionKernel kAttentionDecodeAmx;

}  // namespace attest
