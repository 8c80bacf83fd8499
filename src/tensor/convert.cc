#include "tensor/convert.h"

#include <cstring>

#include "base/check.h"

namespace attest {

void RowToFloats(const std::byte* from, DType dtype, int n, float* to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(n) * 4);
      return;
    case DType::kBF16:
      for (int i = 0; i < n; ++i) to[i] = ToFloat(reinterpret_cast<const bf16*>(from)[i]);
      return;
    case DType::kF16:
      for (int i = 0; i < n; ++i) to[i] = ToFloat(reinterpret_cast<const f16*>(from)[i]);
      return;
    default:
      ATTEST_CHECK(!"f32, bf16 or f16");
  }
}

void RowFromFloats(const float* from, DType dtype, int n, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(n) * 4);
      return;
    case DType::kBF16:
      for (int i = 0; i < n; ++i) reinterpret_cast<bf16*>(to)[i] = ToBf16(from[i]);
      return;
    case DType::kF16:
      for (int i = 0; i < n; ++i) reinterpret_cast<f16*>(to)[i] = ToF16(from[i]);
      return;
    default:
      ATTEST_CHECK(!"f32, bf16 or f16");
  }
}

}  // namespace attest
