// The kernels of this folder: those of src/kernels/cpu for AVX-512 and AMX, compiled with the emulation of
// x86_emulation.h under names of their own ("attention_prefill_amx_emulated"). dispatch.cc of this program is
// compiled with this header, which puts them on its list.
#pragma once

#include "attention/dispatch.h"
#include "kernels/cpu/attention_kernels.h"

namespace attest {

extern const AttentionKernel kAttentionDecodeAmxEmulated;
extern const AttentionKernel kAttentionDecodeAvx512Emulated;
extern const AttentionKernel kAttentionPrefillAmxEmulated;
extern const AttentionKernel kAttentionPrefillAvx512Bf16Emulated;
extern const AttentionKernel kAttentionPrefillAvx512Emulated;

extern const KernelEntry kEmulatedDecodeAmx;
extern const KernelEntry kEmulatedDecodeAvx512;
extern const KernelEntry kEmulatedPrefillAmx;
extern const KernelEntry kEmulatedPrefillAvx512Bf16;
extern const KernelEntry kEmulatedPrefillAvx512;

}  // namespace attest

#define ATTEST_TEST_KERNELS                                                                       \
  &kEmulatedDecodeAmx, &kEmulatedDecodeAvx512, &kEmulatedPrefillAmx, &kEmulatedPrefillAvx512Bf16, \
      &kEmulatedPrefillAvx512,
