// Element types of weights, activations and KV pages, and the 16-bit float types.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace attest {

// Quantised types hold blocks of elements; see BlockElements / BlockBytes. Their layouts and value formulas
// are in kernels/dequantize.h.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // OCP e4m3fn: max 448, NaN 0x7f/0xff
  kF8E5M2,
  kI8,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

[[nodiscard]] std::string_view DTypeName(DType dtype);  // "f32", "bf16", "q4_1", ...
[[nodiscard]] int BlockElements(DType dtype);           // 1 for plain types, 32 or 256 for quantised ones
[[nodiscard]] int BlockBytes(DType dtype);              // bytes of one block
[[nodiscard]] bool IsQuantised(DType dtype);            // the kQ* types
// Bytes of a row of `elements`. REQUIRES: elements is a multiple of BlockElements(dtype).
[[nodiscard]] int64_t RowBytes(DType dtype, int64_t elements);

// The upper half of a float; conversion from float rounds to nearest even and keeps NaN.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

[[nodiscard]] inline float ToFloat(float value) { return value; }
[[nodiscard]] inline float ToFloat(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
[[nodiscard]] float ToFloat(f16 value);
[[nodiscard]] inline bf16 ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // quiet NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
[[nodiscard]] f16 ToF16(float value);  // round to nearest even, overflow to infinity

}  // namespace attest
