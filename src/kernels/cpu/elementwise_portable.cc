#include <cstdint>

#include "device/cpu.h"
#include "kernels/cpu/elementwise_ops.h"

namespace attest {
namespace {
#include "kernels/cpu/elementwise_rows.inc"
}  // namespace

const ElementwiseOps kElementwisePortable = kRowOps;

const ElementwiseOps& BestElementwiseOps() {
#if defined(__x86_64__)
  static const ElementwiseOps& best =
      HasIsa(DetectCpu(), CpuIsa::kAvx2) ? kElementwiseAvx2 : kElementwisePortable;
  return best;
#else
  return kElementwisePortable;
#endif
}

}  // namespace attest
