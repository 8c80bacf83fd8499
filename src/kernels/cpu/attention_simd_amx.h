// What the AMX attention kernels share: packing into tile order, and weights in 16-bit fixed point. A tile
// (amx_tile.h) is 16 rows of 64 bytes.
//
// Include only from attention_*_amx.cc.
#pragma once

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/attention_simd_pages.h"
#include "kernels/cpu/attention_simd_tile.h"
#include "kernels/cpu/attention_simd_vec.h"
#include "kernels/cpu/kernel_check.h"

namespace attest {
namespace {

constexpr int kTileWords = 256;  // 4-byte words of a tile: a 16 x 16 block of f32, or of bf16 pairs

// x[i][j] becomes x[j][i], 4-byte words.
inline void Transpose16x16(__m512i* x) {
  __m512i a[16];
  ATTEST_UNROLL for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  // x[4g + c] holds column c of each 4 x 4 block of row group g.
  ATTEST_UNROLL for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  ATTEST_UNROLL for (int c = 0; c < 4; ++c) {
    a[c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);  // blocks 0 2 of groups 0 and 1
    a[4 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    a[8 + c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);  // blocks 1 3
    a[12 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
  }
  ATTEST_UNROLL for (int c = 0; c < 4; ++c) {
    x[c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
    x[8 + c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    x[4 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    x[12 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
  }
}

// Sixteen query rows times `factor`, rounded to bf16, as B tiles: [head_dim / 32][16 dim pairs][16 rows].
inline void PackQueryTiles(const float* const* rows, int head_dim, float factor, uint32_t* tiles) {
  const __m512 scale = _mm512_set1_ps(factor);
  for (int d = 0; d < head_dim; d += 32, tiles += kTileWords) {
    __m512i x[16];
    for (int i = 0; i < 16; ++i) {
      const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(rows[i] + d), scale);
      const __m512 high = _mm512_mul_ps(_mm512_loadu_ps(rows[i] + d + 16), scale);
      x[i] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
    Transpose16x16(x);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tiles + 16 * i, x[i]);
  }
}

// The same 16 dims of two value rows, paired.
inline __m512i PairValues(const Bf16Bits* even, const Bf16Bits* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Weights of two keys as bf16 pairs. They are >= 0 or NaN; adding half a unit rounds to nearest (ties up).
inline __m512i PairWeights(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_add_epi32(_mm512_castps_si512(odd), half));
}

// Weights in 16-bit fixed point. T = 128 * t + 16256, truncated, is the bit pattern of a bf16 whose mantissa
// is linear in t; subtracting 128 * (1 + f - 2^f), from a table of the seven mantissa bits, makes it
// bf16(2^t) within 0.64 % (rounding alone: 0.39 %), at 2.3 times the speed of a polynomial. t = score - max
// <= 8; scores of -inf become exactly 0. NaN does too, so NaN is looked for with the maximum.
alignas(64) constexpr uint8_t kExp2Correction[128] = {
    0,  0,  1,  1,  1,  1,  2,  2,  2,  3,  3,  3,  3,  4,  4,  4,  4,  5,  5,  5,  5,  6,  6,  6,  6,  6,
    7,  7,  7,  7,  7,  8,  8,  8,  8,  8,  8,  9,  9,  9,  9,  9,  9,  9,  10, 10, 10, 10, 10, 10, 10, 10,
    10, 10, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11,
    11, 11, 11, 11, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9,  9,  9,  9,  9,  9,  9,  8,  8,  8,  8,  8,  7,
    7,  7,  7,  7,  6,  6,  6,  6,  5,  5,  5,  4,  4,  4,  3,  3,  3,  3,  2,  2,  1,  1,  1,  0,
};
struct FixedPointExp2 {
  __m512i low = _mm512_load_si512(kExp2Correction);
  __m512i high = _mm512_load_si512(kExp2Correction + 64);
  static constexpr float kOne = 128.0f * 65536.0f;  // t in units of the pattern's high half

  static __m512 Bias(__m512 max) {
    return _mm512_mul_ps(_mm512_fnmadd_ps(max, _mm512_set1_ps(128.0f), _mm512_set1_ps(16256.5f)),
                         _mm512_set1_ps(65536.0f));
  }
  // Pairs of weights of scores (a, b) of 16 rows, as bf16. `scale` is kOne times the scale of the scores.
  [[nodiscard]] __m512i Pair(__m512 a, __m512 b, __m512 scale, __m512 bias) const {
    const __m512i x = _mm512_cvtps_epi32(_mm512_fmadd_ps(a, scale, bias));
    const __m512i y = _mm512_cvtps_epi32(_mm512_fmadd_ps(b, scale, bias));
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(x, 16), y);
    const __m512i t = _mm512_max_epi16(both, _mm512_setzero_si512());
    // The table is indexed by the low seven bits of each 16-bit lane; odd bytes take no correction.
    return _mm512_sub_epi16(t, _mm512_maskz_permutex2var_epi8(0x5555555555555555ull, low, t, high));
  }
};

}  // namespace
}  // namespace attest
