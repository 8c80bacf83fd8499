// Rows of the 16- and 32-bit float types to float32 and back. Baseline code: kernels have their own.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace attest {

// `dtype` is f32, bf16 or f16 throughout; n elements, consecutive.
void RowToFloats(const std::byte* from, DType dtype, int n, float* to);
void RowFromFloats(const float* from, DType dtype, int n, std::byte* to);

}  // namespace attest
