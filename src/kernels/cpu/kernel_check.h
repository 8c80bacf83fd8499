// Checks inside kernels: both values are printed, then the process stops (a bug of ours). Plain integers and
// character pointers only: the macros of base/check.h instantiate library templates, which a file built for
// another instruction set must not emit (the linker could run that copy on a CPU without the instructions).
#pragma once

#include <cstdint>

namespace attest {

[[noreturn]] void KernelCheckFailed(const char* file, int line, const char* what, int64_t a, int64_t b);

}  // namespace attest

#define ATTEST_KERNEL_CHECK(a, op, b)                                                         \
  do {                                                                                        \
    const int64_t attest_a = static_cast<int64_t>(a);                                         \
    const int64_t attest_b = static_cast<int64_t>(b);                                         \
    if (!(attest_a op attest_b)) {                                                            \
      ::attest::KernelCheckFailed(__FILE__, __LINE__, #a " " #op " " #b, attest_a, attest_b); \
    }                                                                                         \
  } while (false)
