// Random stored weights of every type, and their values computed element by element in double from the
// published block formulas. Shares no code with kernels/dequantize.h: it is what that file is judged by.
// Test-only.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace attest::testing {

inline constexpr DType kWeightTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

inline uint16_t HalfBits(float value) { return ToF16(value).bits; }

inline double HalfAt(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8;
  const int exponent = (bits >> 10) & 31;
  const double magnitude =
      exponent == 0 ? std::ldexp(bits & 1023, -24) : std::ldexp(1024 + (bits & 1023), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Element e of one stored block.
inline double ReferenceValue(DType dtype, const uint8_t* b, int e) {
  const auto nibble = [&](const uint8_t* q) { return e < 16 ? q[e] & 15 : q[e - 16] >> 4; };
  const auto fifth = [&](const uint8_t* mask) { return ((mask[e / 8] >> (e % 8)) & 1) * 16; };
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, b, 4);
      return value;
    }
    case DType::kF16:
      return HalfAt(b);
    case DType::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(b[0] | b[1] << 8) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
    case DType::kQ4_0:
      return HalfAt(b) * (nibble(b + 2) - 8);
    case DType::kQ4_1:
      return HalfAt(b) * nibble(b + 4) + HalfAt(b + 2);
    case DType::kQ5_0:
      return HalfAt(b) * (nibble(b + 6) + fifth(b + 2) - 16);
    case DType::kQ5_1:
      return HalfAt(b) * (nibble(b + 8) + fifth(b + 4)) + HalfAt(b + 2);
    case DType::kQ8_0:
      return HalfAt(b) * static_cast<int8_t>(b[2 + e]);
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const int s = e / 32;
      const int l = e % 32;
      const uint8_t* pairs = b + 4;
      const int scale = s < 4 ? pairs[s] & 63 : (pairs[s + 4] & 15) | (pairs[s - 4] >> 6) << 4;
      const int minimum = s < 4 ? pairs[s + 4] & 63 : (pairs[s + 4] >> 4) | (pairs[s] >> 6) << 4;
      const uint8_t byte = b[(dtype == DType::kQ4_K ? 16 : 48) + 32 * (s / 2) + l];
      int q = s % 2 == 0 ? byte & 15 : byte >> 4;
      if (dtype == DType::kQ5_K) q += 16 * ((b[16 + l] >> s) & 1);
      return HalfAt(b) * scale * q - HalfAt(b + 2) * minimum;
    }
    case DType::kQ6_K: {
      const int half = e / 128;
      const int k = e % 128 / 32;
      const int l = e % 32;
      const uint8_t low = b[64 * half + l + 32 * (k % 2)];
      const int high = (b[128 + 32 * half + l] >> (2 * k)) & 3;
      const int q = (k < 2 ? low & 15 : low >> 4) + 16 * high;
      return HalfAt(b + 208) * static_cast<int8_t>(b[192 + 8 * half + 2 * k + l / 16]) * (q - 32);
    }
    default:
      return NAN;
  }
}

// Byte offset of a block's scale (f16), for tests that break it. Plain types: the value itself.
inline int ScaleOffset(DType dtype) { return dtype == DType::kQ6_K ? 208 : 0; }

struct RandomWeights {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<std::byte> stored;
  std::vector<double> values;  // [rows, cols]

  [[nodiscard]] int64_t row_bytes() const { return RowBytes(dtype, cols); }
  [[nodiscard]] const double* row(int64_t r) const { return values.data() + r * cols; }
};

inline void FillValues(RandomWeights& w) {
  w.values.resize(static_cast<size_t>(w.rows * w.cols));
  const int block = BlockElements(w.dtype);
  for (int64_t i = 0; i < w.rows * w.cols; ++i) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(w.stored.data()) + i / block * BlockBytes(w.dtype);
    w.values[static_cast<size_t>(i)] = ReferenceValue(w.dtype, bytes, static_cast<int>(i % block));
  }
}

// Values of about 0.03 rms, as trained weights have; every stored bit is exercised.
inline RandomWeights MakeWeights(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  RandomWeights w{.dtype = dtype, .rows = rows, .cols = cols, .stored = {}, .values = {}};
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 0.03f);
  std::uniform_real_distribution<float> factor(0.5f, 2.0f);
  w.stored.resize(static_cast<size_t>(w.row_bytes() * rows));
  const int64_t bytes = BlockBytes(dtype);
  for (int64_t i = 0; i < rows * cols / BlockElements(dtype); ++i) {
    auto* b = reinterpret_cast<uint8_t*>(w.stored.data()) + i * bytes;
    const auto put = [&](int offset, uint16_t bits) { std::memcpy(b + offset, &bits, 2); };
    if (dtype == DType::kF32) {
      const float value = normal(rng);
      std::memcpy(b, &value, 4);
      continue;
    }
    if (dtype == DType::kF16 || dtype == DType::kBF16) {
      const float value = normal(rng);
      put(0, dtype == DType::kF16 ? HalfBits(value) : ToBf16(value).bits);
      continue;
    }
    for (int64_t j = 0; j < bytes; ++j) b[j] = static_cast<uint8_t>(rng());
    const float f = factor(rng);
    switch (dtype) {
      case DType::kQ4_0:
        put(0, HalfBits(0.0065f * f));
        break;
      case DType::kQ4_1:
        put(0, HalfBits(0.0065f * f));
        put(2, HalfBits(-0.05f * factor(rng)));
        break;
      case DType::kQ5_0:
        put(0, HalfBits(-0.0032f * f));
        break;
      case DType::kQ5_1:
        put(0, HalfBits(0.0032f * f));
        put(2, HalfBits(-0.05f * factor(rng)));
        break;
      case DType::kQ8_0:
        put(0, HalfBits(0.0004f * f));
        break;
      case DType::kQ4_K:
        put(0, HalfBits(0.0002f * f));
        put(2, HalfBits(0.0015f * factor(rng)));
        break;
      case DType::kQ5_K:
        put(0, HalfBits(0.0001f * f));
        put(2, HalfBits(0.0015f * factor(rng)));
        break;
      case DType::kQ6_K:
        put(208, HalfBits(0.00002f * f));
        break;
      default:
        break;
    }
  }
  FillValues(w);
  return w;
}

}  // namespace attest::testing
