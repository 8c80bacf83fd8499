// The general CPU kernel: every feature, every head size, every length, in float32. One source
// (attention_general_inl.h), built once per instruction set; each build is a kernel with a name of its own.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace attest {

extern const AttentionKernel kAttentionGeneral;
extern const AttentionKernel kAttentionGeneralAvx2;
extern const AttentionKernel kAttentionGeneralAvx512;
extern const AttentionKernel kAttentionGeneralNeon;

}  // namespace attest
