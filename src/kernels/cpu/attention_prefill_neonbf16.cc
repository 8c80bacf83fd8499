#include "kernels/cpu/attention_prefill_bf16.h"
#include "kernels/cpu/attention_simd_prefill.h"

namespace attest {
namespace {

// bf16 products with f32 sums (BFDOT): a word holds two dims of a query or key row, or the same dim of two
// value rows. Queries and weights are rounded to bf16; K and V are bf16 already.
struct Bf16Arithmetic : Bf16Words {
  using V = NeonVec;
  using F = V::F;
  static F MulAdd(F a, F b, F c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
  }
  // Degree 3: relative error 1.0e-4, a fortieth of what rounding the weight to bf16 costs.
  static F Weight(F t) { return Exp2Degree3<V>(t); }
  // Words of one bf16 of each vector, rounded to nearest even.
  static F Pair(F even, F odd) {
    const uint32x4_t low = vmovl_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(even)));
    const uint32x4_t high = vmovl_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(odd)));
    return vreinterpretq_f32_u32(vsliq_n_u32(low, high, 16));
  }
  // x[i] holds dim i of four rows; a word holds dims 2i and 2i + 1.
  static void StoreQueryWords(const F* x, float* to, int64_t step) {
    for (int i = 0; i < 4; i += 2) V::Store(to + i / 2 * step, Pair(x[i], x[i + 1]));
  }
  static void PackKeyRow(const Bf16Bits* row, int dim, float* packed) {
    for (int d = 0; d < dim; d += 8) vst1q_f32(packed + d / 2, vreinterpretq_f32_u16(vld1q_u16(row + d)));
  }
  static void PackValueRows(const Bf16Bits* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += 8) {
      const uint16x8_t even = vld1q_u16(rows[0] + d);
      const uint16x8_t odd = vld1q_u16(rows[1] + d);
      vst1q_f32(packed + d, vreinterpretq_f32_u16(vzip1q_u16(even, odd)));
      vst1q_f32(packed + d + 4, vreinterpretq_f32_u16(vzip2q_u16(even, odd)));
    }
  }
  static void StoreWeights(const F* weights, float* to) { V::Store(to, Pair(weights[0], weights[1])); }
};

using Kernel = Bf16PrefillKernel<Bf16Arithmetic>;

}  // namespace

const AttentionKernel kAttentionPrefillNeonBf16 = {
    .run = &Kernel::Run,
    .row_tile = &Kernel::RowTile,
    .thread_scratch_bytes = &Kernel::ThreadScratchBytes,
};

}  // namespace attest
