#include "kernels/cpu/attention_prefill_bf16.h"
#include "kernels/cpu/attention_simd_prefill.h"

namespace attest {
namespace {

// bf16 products with f32 sums (vdpbf16ps): a word holds two dims of a query or key row, or the same dim of
// two value rows. Queries and weights are rounded to bf16; K and V are bf16, or fp8 or int8 and so bf16
// values.
struct Bf16Arithmetic : Bf16Words {
  using V = Avx512Vec;
  static constexpr bool kReadsBytes = true;
  using F = V::F;
  static F MulAdd(F a, F b, F c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
  }
  // Degree 3: relative error 1.0e-4, a fortieth of what rounding the weight to bf16 costs.
  static F Weight(F t) { return Exp2Degree3<V>(t); }
  // x[i] holds dim i of eight rows; a word holds dims 2i and 2i + 1.
  static void StoreQueryWords(const __m256* x, float* to, int64_t step) {
    for (int i = 0; i < 8; i += 2) {
      const __m256i even = _mm256_cvtepu16_epi32((__m128i)_mm256_cvtneps_pbh(x[i]));
      const __m256i odd = _mm256_cvtepu16_epi32((__m128i)_mm256_cvtneps_pbh(x[i + 1]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2 * step),
                          _mm256_or_si256(even, _mm256_slli_epi32(odd, 16)));
    }
  }
  static void PackKeyRows(const Bf16Bits* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += 32) _mm512_storeu_si512(packed + d / 2, _mm512_loadu_si512(rows[0] + d));
  }
  static void PackValueRows(const Bf16Bits* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += 16) {
      const __m512i even =
          _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[0] + d)));
      const __m512i odd =
          _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[1] + d)));
      _mm512_storeu_si512(packed + d, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
  }
  // fp8 and int8 values are bf16 values.
  template <class KvT>
  static void PackKeyRows(const KvT* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += 32) {
      _mm512_storeu_si512(packed + d / 2,
                          (__m512i)_mm512_cvtne2ps_pbh(V::Widen(rows[0] + d + 16), V::Widen(rows[0] + d)));
    }
  }
  template <class KvT>
  static void PackValueRows(const KvT* const* rows, int dim, float* packed) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    for (int d = 0; d < dim; d += 16) {
      const __m512i even = _mm512_castps_si512(V::Widen(rows[0] + d));
      const __m512i odd = _mm512_castps_si512(V::Widen(rows[1] + d));
      _mm512_storeu_si512(packed + d,
                          _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, high)));
    }
  }
  // Weights are >= 0 and finite or NaN; adding half a unit rounds to nearest (ties up).
  static void StoreWeights(const F* weights, float* to) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i even = _mm512_add_epi32(_mm512_castps_si512(weights[0]), half);
    const __m512i odd = _mm512_add_epi32(_mm512_castps_si512(weights[1]), half);
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd));
  }
};

using Kernel = Bf16PrefillKernel<Bf16Arithmetic>;

}  // namespace

const AttentionKernel kAttentionPrefillAvx512Bf16 = {
    .run = &Kernel::Run,
    .row_tile = &Kernel::RowTile,
    .thread_scratch_bytes = &Kernel::ThreadScratchBytes,
};

}  // namespace attest
