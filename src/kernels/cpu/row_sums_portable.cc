#include <cstdint>

#include "device/cpu.h"
#include "kernels/cpu/row_sums.h"

namespace attest {
namespace {
#include "kernels/cpu/row_sums.inc"
}  // namespace

const RowSumOps kRowSumsPortable = kOps;

const RowSumOps& BestRowSumOps() {
#if defined(__x86_64__)
  static const RowSumOps& best = [cpu = DetectCpu()]() -> const RowSumOps& {
    if (HasIsa(cpu, CpuIsa::kAvx512)) return kRowSumsAvx512;
    return HasIsa(cpu, CpuIsa::kAvx2) ? kRowSumsAvx2 : kRowSumsPortable;
  }();
  return best;
#else
  return kRowSumsPortable;
#endif
}

}  // namespace attest
