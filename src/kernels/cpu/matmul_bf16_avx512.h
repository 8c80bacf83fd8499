// Weights and activations as pairs of bf16: what the bf16 dot product and the AMX tiles share. Included only
// by files compiled for AVX-512 with BF16.
#pragma once

#include "kernels/cpu/matmul_unpack_avx512.h"

namespace attest {
namespace {

// Columns [k_begin, k_end) of a tile as bf16: the 16 pairs of 32 columns lie `pair_stride` bytes apart, runs
// of 32 columns `chunk_stride`. Rounds to nearest, ties away from zero (weights are finite or infinite).
ATTEST_INLINE void ExpandBf16(DType dtype, const std::byte* tile, int64_t k_begin, int64_t k_end,
                              std::byte* out, int64_t pair_stride, int64_t chunk_stride) {
  const __m512i half_ulp = _mm512_set1_epi32(0x8000);
  const auto emit = [=](int64_t pair, __m512 even, __m512 odd) __attribute__((always_inline)) {
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half_ulp), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half_ulp);
    _mm512_storeu_si512(out + pair / 16 * chunk_stride + pair % 16 * pair_stride,
                        _mm512_mask_blend_epi16(0xaaaaaaaau, low, high));
  };
  switch (dtype) {
    case DType::kF32:
      return ForEachPairPlain<DType::kF32>(tile, k_begin, k_end, emit);
    case DType::kF16:
      return ForEachPairPlain<DType::kF16>(tile, k_begin, k_end, emit);
    case DType::kBF16:
      return ForEachPairPlain<DType::kBF16>(tile, k_begin, k_end, emit);
    default:
      return WithWeights(dtype, [&]<class W>() __attribute__((always_inline)) {
        ForEachPairQuantised<W>(tile, k_begin, k_end, emit);
      });
  }
}

// 32 activations, rounded to nearest even; NaN and infinity stay.
ATTEST_INLINE __m512i LoadBf16(const float* x) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
}

}  // namespace
}  // namespace attest
