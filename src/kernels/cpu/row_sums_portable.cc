#include <cstdint>

#include "kernels/cpu/row_sums.h"

namespace attest {
namespace {
#include "kernels/cpu/row_sums.inc"
}  // namespace

const RowSumOps kRowSumsPortable = kOps;

const RowSumOps& BestRowSumOps() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512cd")
               ? kRowSumsAvx512
               : kRowSumsAvx2;
  }
#endif
  return kRowSumsPortable;
}

}  // namespace attest
