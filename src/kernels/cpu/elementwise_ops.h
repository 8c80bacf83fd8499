// The row functions behind kernels/elementwise.h, one table per instruction set. Private to kernels/ and its
// tests.
#pragma once

#include <cstdint>

namespace attest {

struct ElementwiseOps {
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int64_t n);
  void (*silu_mul)(const float* gate, const float* up, float* out, int64_t n);
  void (*rope_angles)(double position, const float* inv_freq, float factor, float* cosines, float* sines,
                      int64_t half);
  void (*rotate)(float* x, const float* cosines, const float* sines, int64_t half);
};

extern const ElementwiseOps kElementwisePortable;
#if defined(__x86_64__)
extern const ElementwiseOps kElementwiseAvx2;  // CpuIsa::kAvx2
#endif

// The best table this CPU runs.
[[nodiscard]] const ElementwiseOps& BestElementwiseOps();

}  // namespace attest
