// Packed weight blocks (kernels/matmul_layout.h) as AVX-512 registers: the 16 rows of a tile are the 16
// lanes. Included only by files compiled for AVX-512; the unnamed namespace gives each its own copy, so that
// none is linked into a baseline object.
#pragma once

// GCC 12 takes the "undefined" operand inside its own AVX-512 intrinsics for an uninitialised variable of
// ours.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <cstdint>

#include "kernels/cpu/matmul_path.h"
#include "kernels/cpu/x86_intrinsics.h"
#include "kernels/matmul_layout.h"

namespace attest {
namespace {

#define ATTEST_INLINE inline __attribute__((always_inline))

ATTEST_INLINE __m512 LoadHalf16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Pair p (k = 2 p, 2 p + 1 of a run of 32 k) of the 16 rows, as two 16-bit lanes each. p is a constant after
// unrolling.
ATTEST_INLINE __m512i NibblePair(const uint32_t (*nibbles)[16], int p) {
  const __m512i word = _mm512_loadu_si512(nibbles[p / 4]);
  const __m512i shifted = p % 4 == 0 ? word : _mm512_srli_epi16(word, static_cast<unsigned>(4 * (p % 4)));
  return p % 4 == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15));
}
ATTEST_INLINE __m512i WithHighBit(__m512i pair, const uint32_t* high, int p) {
  const __m512i word = _mm512_loadu_si512(high);
  const __m512i shifted = p < 4 ? _mm512_slli_epi16(word, static_cast<unsigned>(4 - p))
                                : _mm512_srli_epi16(word, static_cast<unsigned>(p - 4));
  return _mm512_or_si512(pair, _mm512_and_si512(shifted, _mm512_set1_epi16(16)));
}
ATTEST_INLINE __m512i WithHighBits2(__m512i pair, const uint32_t (*high2)[16], int p) {
  const __m512i word = _mm512_loadu_si512(high2[p / 8]);
  const int at = 2 * (p % 8);
  const __m512i shifted = at < 4 ? _mm512_slli_epi16(word, static_cast<unsigned>(4 - at))
                                 : _mm512_srli_epi16(word, static_cast<unsigned>(at - 4));
  return _mm512_or_si512(pair, _mm512_and_si512(shifted, _mm512_set1_epi16(48)));
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
  static ATTEST_INLINE __m512 Scale(const B& b, int, int) { return LoadHalf16(b.scale); }
};
template <class B>
struct Weights;

template <>
struct Weights<PackedQ4_0> : Weights32<PackedQ4_0> {
  static constexpr int kOffsetBits = 3;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m512i Pair(const Block& b, int, int p) { return NibblePair(b.nibbles, p); }
  static ATTEST_INLINE __m512 Minimum(const Block&, int) { return _mm512_setzero_ps(); }
};
template <>
struct Weights<PackedQ4_1> : Weights32<PackedQ4_1> {
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = true;
  static ATTEST_INLINE __m512i Pair(const Block& b, int, int p) { return NibblePair(b.nibbles, p); }
  static ATTEST_INLINE __m512 Minimum(const Block& b, int) { return LoadHalf16(b.minimum); }
};
template <>
struct Weights<PackedQ5_0> : Weights32<PackedQ5_0> {
  static constexpr int kOffsetBits = 4;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m512i Pair(const Block& b, int, int p) {
    return WithHighBit(NibblePair(b.nibbles, p), b.high, p);
  }
  static ATTEST_INLINE __m512 Minimum(const Block&, int) { return _mm512_setzero_ps(); }
};
template <>
struct Weights<PackedQ5_1> : Weights32<PackedQ5_1> {
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = true;
  static ATTEST_INLINE __m512i Pair(const Block& b, int, int p) {
    return WithHighBit(NibblePair(b.nibbles, p), b.high, p);
  }
  static ATTEST_INLINE __m512 Minimum(const Block& b, int) { return LoadHalf16(b.minimum); }
};
template <>
struct Weights<PackedQ8_0> : Weights32<PackedQ8_0> {
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m512i Pair(const Block& b, int, int p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b.pairs[p][0])));
  }
  static ATTEST_INLINE __m512 Minimum(const Block&, int) { return _mm512_setzero_ps(); }
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
  static ATTEST_INLINE __m512 Factor(const B& b, int chunk, int first) {
    const __m128i shift = _mm_cvtsi32_si128(8 * (chunk % 4));
    const __m512i own = _mm512_srl_epi32(_mm512_loadu_si512(b.sixbit[first]), shift);
    if (chunk < 4) return _mm512_cvtepi32_ps(_mm512_and_si512(own, _mm512_set1_epi32(63)));
    __m512i low = _mm512_srl_epi32(_mm512_loadu_si512(b.sixbit[2]), shift);
    if (first == 1) low = _mm512_srli_epi32(low, 4);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi32(own, 2), _mm512_set1_epi32(48));
    return _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(15)), high));
  }
  static ATTEST_INLINE __m512 Scale(const B& b, int chunk, int) {
    return _mm512_mul_ps(LoadHalf16(b.scale), Factor(b, chunk, 0));
  }
  static ATTEST_INLINE __m512 Minimum(const B& b, int chunk) {
    const __m512 product = _mm512_mul_ps(LoadHalf16(b.minimum), Factor(b, chunk, 1));
    return _mm512_sub_ps(_mm512_setzero_ps(), product);
  }
};
template <>
struct Weights<PackedQ4_K> : WeightsSixBit<PackedQ4_K> {
  static ATTEST_INLINE __m512i Pair(const Block& b, int chunk, int p) {
    return NibblePair(b.nibbles[chunk], p);
  }
};
template <>
struct Weights<PackedQ5_K> : WeightsSixBit<PackedQ5_K> {
  static ATTEST_INLINE __m512i Pair(const Block& b, int chunk, int p) {
    return WithHighBit(NibblePair(b.nibbles[chunk], p), b.high[chunk], p);
  }
};
template <>
struct Weights<PackedQ6_K> {
  using Block = PackedQ6_K;
  static constexpr int kChunks = 8;
  static constexpr int kGroups = 2;
  static constexpr int kOffsetBits = 5;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE __m512i Pair(const Block& b, int chunk, int p) {
    return WithHighBits2(NibblePair(b.nibbles[chunk], p), b.high2[chunk], p);
  }
  static ATTEST_INLINE __m512 Scale(const Block& b, int chunk, int group) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.subscale[2 * chunk + group]));
    return _mm512_mul_ps(LoadHalf16(b.scale), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }
  static ATTEST_INLINE __m512 Minimum(const Block&, int) { return _mm512_setzero_ps(); }
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

// Row k of a plain tile, 16 lanes.
template <DType kType>
ATTEST_INLINE __m512 LoadPlain(const std::byte* tile, int64_t k) {
  const int64_t at = k * kTileRows;
  if constexpr (kType == DType::kF32) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(tile) + at);
  } else if constexpr (kType == DType::kF16) {
    return LoadHalf16(reinterpret_cast<const uint16_t*>(tile) + at);
  } else {
    const auto* bits = reinterpret_cast<const __m256i*>(reinterpret_cast<const uint16_t*>(tile) + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(bits)), 16));
  }
}

// Calls emit(pair, even, odd) for every pair of k of a tile from `k_begin` to `k_end` (whole blocks), the
// weights as f32: pair counts from k_begin.
template <class W, class Emit>
ATTEST_INLINE void ForEachPairQuantised(const std::byte* tile, int64_t k_begin, int64_t k_end, Emit emit) {
  constexpr int64_t kBlockCols = 32 * W::kChunks;
  const auto* block = reinterpret_cast<const typename W::Block*>(tile) + k_begin / kBlockCols;
  int64_t pair = 0;
  for (int64_t k = k_begin; k < k_end; k += kBlockCols, ++block) {
    for (int chunk = 0; chunk < W::kChunks; ++chunk, pair += 16) {
      const __m512 minimum = W::Minimum(*block, chunk);
#pragma GCC unroll 2
      for (int group = 0; group < W::kGroups; ++group) {
        constexpr int kPairs = 16 / W::kGroups;
        const __m512 scale = W::Scale(*block, chunk, group);
#pragma GCC unroll 16
        for (int i = 0; i < kPairs; ++i) {
          const int p = group * kPairs + i;
          __m512i n = W::Pair(*block, chunk, p);
          if constexpr (W::kOffsetBits != 0) {
            n = _mm512_sub_epi16(n, _mm512_set1_epi16(1 << W::kOffsetBits));
          }
          const __m512 even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(n, 16), 16));
          const __m512 odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(n, 16));
          if constexpr (W::kHasMinimum) {
            emit(pair + p, _mm512_fmadd_ps(even, scale, minimum), _mm512_fmadd_ps(odd, scale, minimum));
          } else {
            emit(pair + p, _mm512_mul_ps(even, scale), _mm512_mul_ps(odd, scale));
          }
        }
      }
    }
  }
}
template <DType kType, class Emit>
ATTEST_INLINE void ForEachPairPlain(const std::byte* tile, int64_t k_begin, int64_t k_end, Emit emit) {
  for (int64_t k = k_begin; k < k_end; k += 2) {
    emit((k - k_begin) / 2, LoadPlain<kType>(tile, k), LoadPlain<kType>(tile, k + 1));
  }
}

// Writes 16 sums of one row: y (+)= sums (+ bias), only those of the first num_outputs columns.
ATTEST_INLINE void StoreSums(const TileJob& job, int64_t row, int64_t column, __m512 sums) {
  float* y = job.y + row * job.y_stride + column;
  const int64_t valid = job.num_outputs - column;
  const auto mask = static_cast<__mmask16>(valid >= kTileRows ? 0xffff : valid <= 0 ? 0 : (1 << valid) - 1);
  if (job.bias != nullptr) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, job.bias + column));
  if (job.add) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, y));
  _mm512_mask_storeu_ps(y, mask, sums);
}

}  // namespace
}  // namespace attest
