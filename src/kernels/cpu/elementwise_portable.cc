#include <cstdint>

#include "kernels/cpu/elementwise_ops.h"

namespace attest {
namespace {
#include "kernels/cpu/elementwise_rows.inc"
}  // namespace

const ElementwiseOps kElementwisePortable = kRowOps;

const ElementwiseOps& BestElementwiseOps() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    return kElementwiseAvx2;
  }
#endif
  return kElementwisePortable;
}

}  // namespace attest
