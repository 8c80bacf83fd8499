// The inner loops of checking one row of attention (attention/row_check.h) in double, one table per
// instruction set. They are apart from both the kernels, which they help to judge, and the oracle, to which
// tests hold them.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace attest {

// What the sum of products of one query and one key comes to.
struct DotSums {
  double dot = 0;
  double absolute = 0;  // of the products' absolute values
};

struct RowSumOps {
  void (*read_bf16)(const bf16* from, float* to, int64_t n);
  DotSums (*dot)(const float* a, const float* b, int64_t n);
  // out += weight * v and magnitude += error * |v|.
  void (*add)(const float* v, int64_t n, double weight, double error, double* out, double* magnitude);
};

extern const RowSumOps kRowSumsPortable;
#if defined(__x86_64__)
extern const RowSumOps kRowSumsAvx2;    // CpuIsa::kAvx2
extern const RowSumOps kRowSumsAvx512;  // CpuIsa::kAvx512
#endif

// The best table this CPU runs.
[[nodiscard]] const RowSumOps& BestRowSumOps();

}  // namespace attest
