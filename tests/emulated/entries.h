// The kernels of this folder: those of src/kernels/cpu for AVX-512 and AMX, compiled with the emulation of
// x86_emulation.h under names of their own ("attention_prefill_amx_emulated"). dispatch.cc of this program is
// compiled with this header, which puts them on its list. So is that of the mutants' program, which has those
// for AMX and bf16 alone (ATTEST_EMULATED_BF16_ALONE): these are the instructions that many CPUs lack.
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

#define ATTEST_EMULATED_BF16_KERNELS &kEmulatedDecodeAmx, &kEmulatedPrefillAmx, &kEmulatedPrefillAvx512Bf16,
#ifdef ATTEST_EMULATED_BF16_ALONE
#define ATTEST_TEST_KERNELS ATTEST_EMULATED_BF16_KERNELS
#else
#define ATTEST_TEST_KERNELS ATTEST_EMULATED_BF16_KERNELS &kEmulatedDecodeAvx512, &kEmulatedPrefillAvx512,
#endif
