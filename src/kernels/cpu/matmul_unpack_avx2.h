// Packed weight blocks (kernels/matmul_layout.h) as AVX2 registers. Included only by files compiled for AVX2;
// the unnamed namespace gives each its own copy, so that none is linked into a baseline object.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/matmul_path.h"
#include "kernels/matmul_layout.h"

namespace attest {
namespace {

#define ATTEST_INLINE inline __attribute__((always_inline))

ATTEST_INLINE __m256 LoadHalf8(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ATTEST_INLINE __m256i LoadWords(const uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Pair p (k = 2 p, 2 p + 1 of a run of 32 k) of rows 8 h to 8 h + 7, as sixteen 16-bit lanes. p and h are
// constants after unrolling.
ATTEST_INLINE __m256i NibblePair(const uint32_t (*nibbles)[16], int p, int h) {
  const __m256i word = LoadWords(nibbles[p / 4] + 8 * h);
  const __m256i shifted = p % 4 == 0 ? word : _mm256_srli_epi16(word, 4 * (p % 4));
  return p % 4 == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(15));
}
ATTEST_INLINE __m256i WithHighBit(__m256i pair, const uint32_t* high, int p, int h) {
  const __m256i word = LoadWords(high + 8 * h);
  const __m256i shifted = p < 4 ? _mm256_slli_epi16(word, 4 - p) : _mm256_srli_epi16(word, p - 4);
  return _mm256_or_si256(pair, _mm256_and_si256(shifted, _mm256_set1_epi16(16)));
}
ATTEST_INLINE __m256i WithHighBits2(__m256i pair, const uint32_t (*high2)[16], int p, int h) {
  const __m256i word = LoadWords(high2[p / 8] + 8 * h);
  const int at = 2 * (p % 8);
  const __m256i shifted = at < 4 ? _mm256_slli_epi16(word, 4 - at) : _mm256_srli_epi16(word, at - 4);
  return _mm256_or_si256(pair, _mm256_and_si256(shifted, _mm256_set1_epi16(48)));
}

// Weights<B>: how blocks of type B are read in runs (chunks) of 32 k. `chunk` counts within the block.
//   kChunks       chunks per block
//   kGroups       scale groups per chunk
//   kOffsetBits   log2 of what is subtracted from each integer; 0: nothing
//   kHasMinimum   value = scale q + minimum
template <class B>
struct Weights32 {
  using Block = B;
  static constexpr int kChunks = 1;
  static constexpr int kGroups = 1;
  static ATTEST_INLINE __m256 Scale(const B& b, int, int, int h) { return LoadHalf8(b.scale + 8 * h); }
};
template <class B>
struct Weights;

template <>
struct Weights<PackedQ4_0> : Weights32<PackedQ4_0> {
  static constexpr int kOffsetBits = 3;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m256i Pair(const Block& b, int, int p, int h) { return NibblePair(b.nibbles, p, h); }
  static ATTEST_INLINE __m256 Minimum(const Block&, int, int) { return _mm256_setzero_ps(); }
};
template <>
struct Weights<PackedQ4_1> : Weights32<PackedQ4_1> {
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = true;
  static ATTEST_INLINE __m256i Pair(const Block& b, int, int p, int h) { return NibblePair(b.nibbles, p, h); }
  static ATTEST_INLINE __m256 Minimum(const Block& b, int, int h) { return LoadHalf8(b.minimum + 8 * h); }
};
template <>
struct Weights<PackedQ5_0> : Weights32<PackedQ5_0> {
  static constexpr int kOffsetBits = 4;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m256i Pair(const Block& b, int, int p, int h) {
    return WithHighBit(NibblePair(b.nibbles, p, h), b.high, p, h);
  }
  static ATTEST_INLINE __m256 Minimum(const Block&, int, int) { return _mm256_setzero_ps(); }
};
template <>
struct Weights<PackedQ5_1> : Weights32<PackedQ5_1> {
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = true;
  static ATTEST_INLINE __m256i Pair(const Block& b, int, int p, int h) {
    return WithHighBit(NibblePair(b.nibbles, p, h), b.high, p, h);
  }
  static ATTEST_INLINE __m256 Minimum(const Block& b, int, int h) { return LoadHalf8(b.minimum + 8 * h); }
};
template <>
struct Weights<PackedQ8_0> : Weights32<PackedQ8_0> {
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m256i Pair(const Block& b, int, int p, int h) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b.pairs[p][8 * h])));
  }
  static ATTEST_INLINE __m256 Minimum(const Block&, int, int) { return _mm256_setzero_ps(); }
};

template <class B>
struct WeightsSixBit {
  using Block = B;
  static constexpr int kChunks = 8;
  static constexpr int kGroups = 1;
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = true;
  // The 6-bit factor of sub-block `chunk`: scales start at word 0 and minima at word 1; the upper four of
  // each have their low nibble in word 2 and their two high bits above a lower scale or minimum.
  static ATTEST_INLINE __m256 Factor(const B& b, int chunk, int first, int h) {
    const __m128i shift = _mm_cvtsi32_si128(8 * (chunk % 4));
    const __m256i own = _mm256_srl_epi32(LoadWords(b.sixbit[first] + 8 * h), shift);
    if (chunk < 4) return _mm256_cvtepi32_ps(_mm256_and_si256(own, _mm256_set1_epi32(63)));
    __m256i low = _mm256_srl_epi32(LoadWords(b.sixbit[2] + 8 * h), shift);
    if (first == 1) low = _mm256_srli_epi32(low, 4);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(own, 2), _mm256_set1_epi32(48));
    return _mm256_cvtepi32_ps(_mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)), high));
  }
  static ATTEST_INLINE __m256 Scale(const B& b, int chunk, int, int h) {
    return _mm256_mul_ps(LoadHalf8(b.scale + 8 * h), Factor(b, chunk, 0, h));
  }
  static ATTEST_INLINE __m256 Minimum(const B& b, int chunk, int h) {
    const __m256 product = _mm256_mul_ps(LoadHalf8(b.minimum + 8 * h), Factor(b, chunk, 1, h));
    return _mm256_xor_ps(product, _mm256_set1_ps(-0.0f));
  }
};
template <>
struct Weights<PackedQ4_K> : WeightsSixBit<PackedQ4_K> {
  static ATTEST_INLINE __m256i Pair(const Block& b, int chunk, int p, int h) {
    return NibblePair(b.nibbles[chunk], p, h);
  }
};
template <>
struct Weights<PackedQ5_K> : WeightsSixBit<PackedQ5_K> {
  static ATTEST_INLINE __m256i Pair(const Block& b, int chunk, int p, int h) {
    return WithHighBit(NibblePair(b.nibbles[chunk], p, h), b.high[chunk], p, h);
  }
};
template <>
struct Weights<PackedQ6_K> {
  using Block = PackedQ6_K;
  static constexpr int kChunks = 8;
  static constexpr int kGroups = 2;
  static constexpr int kOffsetBits = 5;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m256i Pair(const Block& b, int chunk, int p, int h) {
    return WithHighBits2(NibblePair(b.nibbles[chunk], p, h), b.high2[chunk], p, h);
  }
  static ATTEST_INLINE __m256 Scale(const Block& b, int chunk, int group, int h) {
    const __m128i bytes =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b.subscale[2 * chunk + group] + 8 * h));
    return _mm256_mul_ps(LoadHalf8(b.scale + 8 * h), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
  }
  static ATTEST_INLINE __m256 Minimum(const Block&, int, int) { return _mm256_setzero_ps(); }
};

// Calls fn.template operator()<Weights<B>>() for a quantised type.
template <class Fn>
ATTEST_INLINE void WithWeights(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kQ4_0:
      return fn.template operator()<Weights<PackedQ4_0>>();
    case DType::kQ4_1:
      return fn.template operator()<Weights<PackedQ4_1>>();
    case DType::kQ5_0:
      return fn.template operator()<Weights<PackedQ5_0>>();
    case DType::kQ5_1:
      return fn.template operator()<Weights<PackedQ5_1>>();
    case DType::kQ8_0:
      return fn.template operator()<Weights<PackedQ8_0>>();
    case DType::kQ4_K:
      return fn.template operator()<Weights<PackedQ4_K>>();
    case DType::kQ5_K:
      return fn.template operator()<Weights<PackedQ5_K>>();
    case DType::kQ6_K:
      return fn.template operator()<Weights<PackedQ6_K>>();
    default:
      __builtin_trap();  // plain types never come here: the caller asked first
  }
}

ATTEST_INLINE bool IsPlain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Writes 16 sums of one row: y (+)= sums (+ bias), only the first `valid` of them.
ATTEST_INLINE void StoreSums(const TileJob& job, int64_t row, int64_t column, __m256 low, __m256 high) {
  float* y = job.y + row * job.y_stride + column;
  const int64_t valid = job.num_outputs - column;
  if (valid >= kTileRows) {
    if (job.bias != nullptr) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(job.bias + column));
      high = _mm256_add_ps(high, _mm256_loadu_ps(job.bias + column + 8));
    }
    if (job.add) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(y));
      high = _mm256_add_ps(high, _mm256_loadu_ps(y + 8));
    }
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + 8, high);
    return;
  }
  alignas(32) float sums[kTileRows];
  _mm256_store_ps(sums, low);
  _mm256_store_ps(sums + 8, high);
  for (int64_t n = 0; n < valid; ++n) {
    const float value = sums[n] + (job.bias == nullptr ? 0.0f : job.bias[column + n]);
    y[n] = job.add ? y[n] + value : value;
  }
}

}  // namespace
}  // namespace attest
