#include "tensor/dtype.h"

#include "base/check.h"

namespace attest {
namespace {

struct DTypeInfo {
  std::string_view name;
  int block_elements;
  int block_bytes;
};

constexpr DTypeInfo Info(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {"f32", 1, 4};
    case DType::kF16:
      return {"f16", 1, 2};
    case DType::kBF16:
      return {"bf16", 1, 2};
    case DType::kF8E4M3:
      return {"fp8_e4m3", 1, 1};
    case DType::kF8E5M2:
      return {"fp8_e5m2", 1, 1};
    case DType::kI8:
      return {"int8", 1, 1};
    case DType::kQ4_0:
      return {"q4_0", 32, 18};
    case DType::kQ4_1:
      return {"q4_1", 32, 20};
    case DType::kQ5_0:
      return {"q5_0", 32, 22};
    case DType::kQ5_1:
      return {"q5_1", 32, 24};
    case DType::kQ8_0:
      return {"q8_0", 32, 34};
    case DType::kQ4_K:
      return {"q4_k", 256, 144};
    case DType::kQ5_K:
      return {"q5_k", 256, 176};
    case DType::kQ6_K:
      return {"q6_k", 256, 210};
  }
  return {"unknown", 1, 0};
}

}  // namespace

std::string_view DTypeName(DType dtype) { return Info(dtype).name; }
int BlockElements(DType dtype) { return Info(dtype).block_elements; }
int BlockBytes(DType dtype) { return Info(dtype).block_bytes; }
bool IsQuantised(DType dtype) { return Info(dtype).block_elements > 1; }

int64_t RowBytes(DType dtype, int64_t elements) {
  ATTEST_CHECK_EQ(elements % BlockElements(dtype), 0);
  return elements / BlockElements(dtype) * BlockBytes(dtype);
}

float ToFloat(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t fraction = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(subnormal) | sign);
}

f16 ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // subnormal in f16: adding 0.5 makes the rounding at the 2^-24 place
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace attest
