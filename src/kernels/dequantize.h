// Stored weight blocks to float32, by the formulas of ggml's GGUF block types. Scalar and exact: each value
// is computed with one f32 multiplication and at most one f32 addition from its block's f16 scales, as the
// published reference converters do. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace attest {

// The types a weight matrix may have: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k.
[[nodiscard]] bool IsWeightType(DType dtype);

// out[0, elements) from a dense run of blocks. REQUIRES: IsWeightType(dtype), elements is a multiple of
// BlockElements(dtype).
void DequantizeBlocks(DType dtype, const std::byte* blocks, int64_t elements, float* out);

// The integers of one block as stored, BlockElements(dtype) of them: unsigned for every type but q8_0, whose
// int8 values keep their bits. REQUIRES: IsQuantised(dtype).
void StoredQuants(DType dtype, const std::byte* block, uint8_t* quants);

// Scale and minimum of each group of 32 (16 for q6_k) elements of one block: value = scale * q + minimum,
// where q has its offset (8, 16, 32) already subtracted for the types without a minimum, which then is 0.
struct QuantScale {
  float scale;
  float minimum;
};
void StoredScales(DType dtype, const std::byte* block, QuantScale* scales);

}  // namespace attest
