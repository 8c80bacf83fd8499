// <immintrin.h>, or the same names in portable C++ where a test compiles a kernel for a CPU that may lack its
// instructions (tests/emulated defines ATTEST_X86_EMULATION as the header that has them).
//
// Include only from files compiled for the instruction set.
#pragma once

#if defined(ATTEST_X86_EMULATION)
#include ATTEST_X86_EMULATION
#else
// GCC 12 reports its own _mm512_undefined_*() as uninitialised (GCC bug 105593); only that header is exempt.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
