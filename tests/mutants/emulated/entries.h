// The kernels of this folder on the list of dispatch.cc, which is compiled with this header.
#pragma once

#include "attention/dispatch.h"

namespace attest {

extern const KernelEntry kEmulatedDecodeAmx;
extern const KernelEntry kEmulatedPrefillAmx;
extern const KernelEntry kEmulatedPrefillAvx512Bf16;

}  // namespace attest

#define ATTEST_TEST_KERNELS &kEmulatedDecodeAmx, &kEmulatedPrefillAmx, &kEmulatedPrefillAvx512Bf16,
