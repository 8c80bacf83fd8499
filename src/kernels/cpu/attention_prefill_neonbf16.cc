#include "kernels/cpu/attention_prefill_bf16.h"
#include "kernels/cpu/attention_simd_prefill.h"

namespace attest {
namespace {

// bf16 products with f32 sums (BFMMLA): one instruction multiplies 2 x 4 values with 2 x 4 values, so pairs
// of rows lie together, four values of each. Queries and weights are rounded to bf16; K and V are bf16
// already.
struct Bf16Arithmetic : Bf16Words {
  using V = NeonVec;
  using F = V::F;
  static constexpr int kGroup = 4;
  static constexpr int kKeyGroup = 2;
  static constexpr bool kHasProducts = true;
  static constexpr int kKeyPairs = 4;  // or pairs of dims: of one register block
  static constexpr int kRowPairs = 6;  // of a panel

  // Degree 3: relative error 1.0e-4, a fortieth of what rounding the weight to bf16 costs.
  static F Weight(F t) { return Exp2Degree3<V>(t); }
  // Words of one bf16 of each vector, rounded to nearest even.
  static uint32x4_t Pair(F even, F odd) {
    const uint32x4_t low = vmovl_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(even)));
    const uint32x4_t high = vmovl_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(odd)));
    return vsliq_n_u32(low, high, 16);
  }
  // x[i] holds value i of four rows, which become two pairs of rows.
  static void StorePairs(const F* x, float* to) {
    const uint32x4_t first = Pair(x[0], x[1]);
    const uint32x4_t second = Pair(x[2], x[3]);
    V::Store(to, vreinterpretq_f32_u32(vzip1q_u32(first, second)));
    V::Store(to + 4, vreinterpretq_f32_u32(vzip2q_u32(first, second)));
  }
  static void StoreQueryWords(const F* x, float* to, int64_t /*step*/) { StorePairs(x, to); }
  static void StoreWeights(const F* weights, float* to) { StorePairs(weights, to); }
  static float WeightOf(const float* words, int lane, int i) {
    Bf16Bits weights[kGroup];
    __builtin_memcpy(weights, words + lane * 2, sizeof(weights));
    return ValueOf(weights[i]);
  }
  // [head_dim / 4][2 rows][4 dims]
  static void PackKeyRows(const Bf16Bits* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += 8) {
      const uint64x2_t first = vreinterpretq_u64_u16(vld1q_u16(rows[0] + d));
      const uint64x2_t second = vreinterpretq_u64_u16(vld1q_u16(rows[1] + d));
      vst1q_f32(packed + d, vreinterpretq_f32_u64(vzip1q_u64(first, second)));
      vst1q_f32(packed + d + 4, vreinterpretq_f32_u64(vzip2q_u64(first, second)));
    }
  }
  // [v_head_dim / 2][2 dims][4 keys]
  static void PackValueRows(const Bf16Bits* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += 8) {
      uint16x8_t row[kGroup];
      ATTEST_UNROLL for (int i = 0; i < kGroup; ++i) row[i] = vld1q_u16(rows[i] + d);
      const uint32x4_t low01 = vreinterpretq_u32_u16(vzip1q_u16(row[0], row[1]));
      const uint32x4_t high01 = vreinterpretq_u32_u16(vzip2q_u16(row[0], row[1]));
      const uint32x4_t low23 = vreinterpretq_u32_u16(vzip1q_u16(row[2], row[3]));
      const uint32x4_t high23 = vreinterpretq_u32_u16(vzip2q_u16(row[2], row[3]));
      float* to = packed + 2 * d;
      vst1q_f32(to, vreinterpretq_f32_u32(vzip1q_u32(low01, low23)));
      vst1q_f32(to + 4, vreinterpretq_f32_u32(vzip2q_u32(low01, low23)));
      vst1q_f32(to + 8, vreinterpretq_f32_u32(vzip1q_u32(high01, high23)));
      vst1q_f32(to + 12, vreinterpretq_f32_u32(vzip2q_u32(high01, high23)));
    }
  }

  static bfloat16x8_t LoadBf16(const float* p) { return vreinterpretq_bf16_f32(V::Load(p)); }
  // The sums of kKeyPairs x kRowPairs products of 2 x 2, a[pair][4 values] `pair_step` words apart.
  static void AddProducts(const float* a, int64_t pair_step, const float* b, F (*c)[kRowPairs]) {
    bfloat16x8_t x[kKeyPairs];
    ATTEST_UNROLL for (int p = 0; p < kKeyPairs; ++p) x[p] = LoadBf16(a + p * pair_step);
    ATTEST_UNROLL for (int r = 0; r < kRowPairs; ++r) {
      const bfloat16x8_t y = LoadBf16(b + 4 * r);
      ATTEST_UNROLL for (int p = 0; p < kKeyPairs; ++p) c[p][r] = vbfmmlaq_f32(c[p][r], x[p], y);
      // 24 sums, four x and one y of 32 registers; all six y at once would push sums out of them.
      asm("" ::: "memory");
    }
  }
  // Four sums of each of the two keys (or dims) of a pair.
  static F FirstOf(F a, F b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
  static F SecondOf(F a, F b) { return vcombine_f32(vget_high_f32(a), vget_high_f32(b)); }

  // As those of PrefillTile: eight keys, or eight dims, times a panel of rows.
  [[gnu::noinline]] static void Scores(const float* a, int words, const float* b, float* out) {
    constexpr int kPanel = 2 * kRowPairs;
    F c[kKeyPairs][kRowPairs];
    ATTEST_UNROLL for (int p = 0; p < kKeyPairs; ++p) {
      ATTEST_UNROLL for (int r = 0; r < kRowPairs; ++r) c[p][r] = V::Zero();
    }
    for (int i = 0; i < words; i += 2, a += 4, b += 2 * kPanel) {  // exact: head_dim is a multiple of 8
      AddProducts(a, 2 * int64_t{words}, b, c);
    }
    ATTEST_UNROLL for (int p = 0; p < kKeyPairs; ++p) {
      ATTEST_UNROLL for (int r = 0; r < kRowPairs; r += 2) {
        float* to = out + 2 * p * kPanel + 2 * r;
        V::Store(to, FirstOf(c[p][r], c[p][r + 1]));
        V::Store(to + kPanel, SecondOf(c[p][r], c[p][r + 1]));
      }
    }
  }
  [[gnu::noinline]] static void Values(const float* a, int v_head_dim, int keys, const float* b, float* out) {
    constexpr int kPanel = 2 * kRowPairs;
    F c[kKeyPairs][kRowPairs];
    ATTEST_UNROLL for (int p = 0; p < kKeyPairs; ++p) {
      ATTEST_UNROLL for (int r = 0; r < kRowPairs; ++r) c[p][r] = V::Zero();
    }
    for (int key = 0; key < keys; key += kGroup, a += 2 * int64_t{v_head_dim}, b += 2 * kPanel) {
      AddProducts(a, 4, b, c);  // exact: keys is a multiple of eight
    }
    ATTEST_UNROLL for (int p = 0; p < kKeyPairs; ++p) {
      ATTEST_UNROLL for (int r = 0; r < kRowPairs; r += 2) {
        float* to = out + 2 * p * kPanel + 2 * r;
        V::Store(to, V::Add(V::Load(to), FirstOf(c[p][r], c[p][r + 1])));
        V::Store(to + kPanel, V::Add(V::Load(to + kPanel), SecondOf(c[p][r], c[p][r + 1])));
      }
    }
  }
};

using Kernel = Bf16PrefillKernel<Bf16Arithmetic>;
static_assert(Kernel::Tile::kPanel == 2 * Bf16Arithmetic::kRowPairs);
static_assert(Kernel::Tile::kRows == 2 * Bf16Arithmetic::kKeyPairs);

}  // namespace

const AttentionKernel kAttentionPrefillNeonBf16 = {
    .run = &Kernel::Run,
    .row_tile = &Kernel::RowTile,
    .thread_scratch_bytes = &Kernel::ThreadScratchBytes,
};

}  // namespace attest
