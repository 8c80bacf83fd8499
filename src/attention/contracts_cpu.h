// The contracts of the CPU kernels, one entry each; the order in which they are tried is in dispatch.cc.
#pragma once

#include "attention/dispatch.h"

namespace attest {

#if defined(__x86_64__)
extern const KernelEntry kAttentionDecodeAmxEntry;          // contracts_cpu_decode.cc
extern const KernelEntry kAttentionPrefillAmxEntry;         // contracts_cpu_prefill.cc
extern const KernelEntry kAttentionDecodeAvx512Entry;       // contracts_cpu_decode.cc
extern const KernelEntry kAttentionDecodeAvx2Entry;         // contracts_cpu_decode.cc
extern const KernelEntry kAttentionPrefillAvx512Bf16Entry;  // contracts_cpu_prefill.cc
extern const KernelEntry kAttentionPrefillAvx512Entry;      // contracts_cpu_prefill.cc
extern const KernelEntry kAttentionPrefillAvx2Entry;        // contracts_cpu_prefill.cc
extern const KernelEntry kAttentionRowwiseAvx512Entry;      // contracts_cpu_decode.cc
extern const KernelEntry kAttentionRowwiseAvx2Entry;        // contracts_cpu_decode.cc
extern const KernelEntry kAttentionGeneralAvx512Entry;      // contracts_cpu.cc
extern const KernelEntry kAttentionGeneralAvx2Entry;        // contracts_cpu.cc
#elif defined(__aarch64__)
extern const KernelEntry kAttentionDecodeNeonBf16Entry;   // contracts_cpu_decode.cc
extern const KernelEntry kAttentionDecodeNeonEntry;       // contracts_cpu_decode.cc
extern const KernelEntry kAttentionPrefillNeonBf16Entry;  // contracts_cpu_prefill.cc
extern const KernelEntry kAttentionPrefillNeonEntry;      // contracts_cpu_prefill.cc
extern const KernelEntry kAttentionRowwiseNeonEntry;      // contracts_cpu_decode.cc
extern const KernelEntry kAttentionGeneralNeonEntry;      // contracts_cpu.cc
#endif
extern const KernelEntry kAttentionGeneralEntry;    // contracts_cpu.cc
extern const KernelEntry kAttentionReferenceEntry;  // contracts_cpu.cc

}  // namespace attest
