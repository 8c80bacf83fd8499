#include "kernels/dequantize.h"

#include <cstring>

#include "base/check.h"

namespace attest {
namespace {

// Byte offsets inside a stored block. K types hold 256 elements, the others 32.
constexpr int kQ4KScales = 4, kQ4KQuants = 16;
constexpr int kQ5KScales = 4, kQ5KHigh = 16, kQ5KQuants = 48;
constexpr int kQ6KHigh = 128, kQ6KScales = 192, kQ6KScale = 208;

uint8_t Byte(const std::byte* p, int64_t i) { return static_cast<uint8_t>(p[i]); }

float LoadF16(const std::byte* p) {
  f16 value;
  std::memcpy(&value, p, sizeof(value));
  return ToFloat(value);
}

void Nibbles(const std::byte* bytes, uint8_t* quants) {
  for (int j = 0; j < 16; ++j) {
    quants[j] = Byte(bytes, j) & 15u;
    quants[j + 16] = Byte(bytes, j) >> 4;
  }
}

void AddFifthBits(const std::byte* mask_bytes, uint8_t* quants) {
  uint32_t mask;
  std::memcpy(&mask, mask_bytes, sizeof(mask));
  for (int e = 0; e < 32; ++e) quants[e] |= static_cast<uint8_t>(((mask >> e) & 1u) << 4);
}

// The 6-bit scale and minimum of sub-block s, packed in 12 bytes.
void SixBitPair(const std::byte* b, int s, uint8_t* scale, uint8_t* minimum) {
  if (s < 4) {
    *scale = Byte(b, s) & 63u;
    *minimum = Byte(b, s + 4) & 63u;
  } else {
    *scale = static_cast<uint8_t>((Byte(b, s + 4) & 15u) | (Byte(b, s - 4) >> 6) << 4);
    *minimum = static_cast<uint8_t>((Byte(b, s + 4) >> 4) | (Byte(b, s) >> 6) << 4);
  }
}

void SubBlockScales(const std::byte* block, int scales_offset, QuantScale* scales) {
  const float d = LoadF16(block);
  const float dmin = LoadF16(block + 2);
  for (int s = 0; s < 8; ++s) {
    uint8_t scale, minimum;
    SixBitPair(block + scales_offset, s, &scale, &minimum);
    scales[s] = {d * static_cast<float>(scale), -(dmin * static_cast<float>(minimum))};
  }
}

// What is subtracted from a stored integer before it is scaled.
int QuantOffset(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return 8;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

}  // namespace

bool IsWeightType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return true;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kI8:
      return false;
  }
  return false;
}

void StoredQuants(DType dtype, const std::byte* block, uint8_t* quants) {
  switch (dtype) {
    case DType::kQ4_0:
      Nibbles(block + 2, quants);
      return;
    case DType::kQ4_1:
      Nibbles(block + 4, quants);
      return;
    case DType::kQ5_0:
      Nibbles(block + 6, quants);
      AddFifthBits(block + 2, quants);
      return;
    case DType::kQ5_1:
      Nibbles(block + 8, quants);
      AddFifthBits(block + 4, quants);
      return;
    case DType::kQ8_0:
      std::memcpy(quants, block + 2, 32);
      return;
    case DType::kQ4_K:
    case DType::kQ5_K:
      for (int s = 0; s < 8; ++s) {
        const std::byte* low = block + (dtype == DType::kQ4_K ? kQ4KQuants : kQ5KQuants) + s / 2 * 32;
        for (int l = 0; l < 32; ++l) {
          const auto nibble = static_cast<uint8_t>(s % 2 == 0 ? Byte(low, l) & 15u : Byte(low, l) >> 4);
          const int high = dtype == DType::kQ4_K ? 0 : (Byte(block + kQ5KHigh, l) >> s) & 1;
          quants[s * 32 + l] = static_cast<uint8_t>(nibble | high << 4);
        }
      }
      return;
    case DType::kQ6_K:
      for (int half = 0; half < 2; ++half) {
        const std::byte* low = block + half * 64;
        const std::byte* high = block + kQ6KHigh + half * 32;
        for (int k = 0; k < 4; ++k) {
          for (int l = 0; l < 32; ++l) {
            const uint8_t pair = Byte(low, l + 32 * (k % 2));
            const auto nibble = static_cast<uint8_t>(k < 2 ? pair & 15u : pair >> 4);
            const auto top = static_cast<uint8_t>((Byte(high, l) >> (2 * k)) & 3u);
            quants[half * 128 + k * 32 + l] = static_cast<uint8_t>(nibble | top << 4);
          }
        }
      }
      return;
    default:
      ATTEST_CHECK(IsQuantised(dtype));
  }
}

void StoredScales(DType dtype, const std::byte* block, QuantScale* scales) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      scales[0] = {LoadF16(block), 0.0f};
      return;
    case DType::kQ4_1:
    case DType::kQ5_1:
      scales[0] = {LoadF16(block), LoadF16(block + 2)};
      return;
    case DType::kQ4_K:
      SubBlockScales(block, kQ4KScales, scales);
      return;
    case DType::kQ5_K:
      SubBlockScales(block, kQ5KScales, scales);
      return;
    case DType::kQ6_K: {
      const float d = LoadF16(block + kQ6KScale);
      for (int g = 0; g < 16; ++g) {
        scales[g] = {d * static_cast<float>(static_cast<int8_t>(Byte(block, kQ6KScales + g))), 0.0f};
      }
      return;
    }
    default:
      ATTEST_CHECK(IsQuantised(dtype));
  }
}

void DequantizeBlocks(DType dtype, const std::byte* blocks, int64_t elements, float* out) {
  ATTEST_CHECK(IsWeightType(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(out, blocks, static_cast<size_t>(elements) * sizeof(float));
    return;
  }
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    for (int64_t i = 0; i < elements; ++i) {
      uint16_t bits;
      std::memcpy(&bits, blocks + 2 * i, sizeof(bits));
      out[i] = dtype == DType::kF16 ? ToFloat(f16{bits}) : ToFloat(bf16{bits});
    }
    return;
  }
  const int block_elements = BlockElements(dtype);
  ATTEST_CHECK_EQ(elements % block_elements, 0);  // whole blocks: the quotient is the loop count
  const int group = dtype == DType::kQ6_K ? 16 : 32;
  const int offset = QuantOffset(dtype);
  uint8_t quants[256];
  QuantScale scales[16];
  for (int64_t b = 0; b < elements / block_elements; ++b, blocks += BlockBytes(dtype)) {
    StoredQuants(dtype, blocks, quants);
    StoredScales(dtype, blocks, scales);
    for (int e = 0; e < block_elements; ++e) {
      const int q = dtype == DType::kQ8_0 ? static_cast<int8_t>(quants[e]) : quants[e] - offset;
      const float product = scales[e / group].scale * static_cast<float>(q);
      *out++ = product + scales[e / group].minimum;
    }
  }
}

}  // namespace attest
