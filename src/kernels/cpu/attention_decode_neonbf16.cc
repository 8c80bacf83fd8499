#include "kernels/cpu/attention_decode_bf16.h"
#include "kernels/cpu/attention_simd_decode.h"

namespace attest {
namespace {

// Split-KV decode as attention_simd_decode.h does it, with bf16 products and f32 sums (BFDOT): queries and
// weights are rounded to bf16, K and V are multiplied as they lie, two dims of a key or the same dim of two
// keys per word. BFMMLA, which the prefill kernel takes, would want four shuffles more per key for twice the
// rate of products that already wait for memory.
using Shared = DecodeTile<NeonVec, Bf16Bits>;
using V = NeonVec;
using F = V::F;

constexpr int kTile = Shared::kTile;
constexpr int kKeys = Shared::kKeys;
constexpr int kStep = 8;        // dims of one load
static_assert(kKeys % 2 == 0);  // FindKeyRows rounds a tile up to it: every key has a partner

bfloat16x8_t LoadBf16(const Bf16Bits* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }
F AddDot(F sum, bfloat16x8_t a, bfloat16x8_t b) { return vbfdotq_f32(sum, a, b); }
bfloat16x8_t Narrow(F first, F second) { return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first), second); }

// Queries lie in the place of the shared kernel's, weights in that of its scores, both as bf16.
const Bf16Bits* Bf16At(const float* p) { return reinterpret_cast<const Bf16Bits*>(p); }
void StoreBf16(float* to, bfloat16x8_t values) { V::Store(to, vreinterpretq_f32_bf16(values)); }

// s[r][0..kKeys) = q[r] . k[0..kKeys) for kR rows.
template <int kR>
[[gnu::noinline]] void Scores(const float* q, int head_dim, const Bf16Bits* const* k, float* s) {
  F c[kR][kKeys];
  ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
    ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) c[r][j] = V::Zero();
  }
  for (int d = 0; d < head_dim; d += kStep) {
    bfloat16x8_t a[kKeys];
    ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) a[j] = LoadBf16(k[j] + d);
    ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
      const bfloat16x8_t y = LoadBf16(Bf16At(q + r * head_dim) + d);
      ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) c[r][j] = AddDot(c[r][j], a[j], y);
    }
  }
  ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
    V::StoreSums4(s + r * Shared::kScoreStride, c[r][0], c[r][1], c[r][2], c[r][3]);
  }
}

// Weights of `keys` keys, rounded where the scores were.
void RoundWeights(int keys, float* s) {
  for (int i = 0; i < keys; i += kStep) {  // the row's room is a multiple of it
    const bfloat16x8_t weights = Narrow(V::Load(s + i), V::Load(s + i + V::kLanes));
    StoreBf16(s + i / 2, weights);  // over scores already read
  }
}

// o[r][d..d + kSteps * kStep) += sum over keys of weight[r][key] * v[key], kR rows; `keys` is even.
template <int kR, int kSteps>
[[gnu::noinline]] void Values(const float* s, int keys, const Bf16Bits* const* v, int d, float* o,
                              int v_head_dim) {
  F c[kR][2 * kSteps];
  ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
    ATTEST_UNROLL for (int x = 0; x < 2 * kSteps; ++x) c[r][x] =
        V::Load(o + r * v_head_dim + d + x * V::kLanes);
  }
  for (int key = 0; key < keys; key += 2) {
    const Bf16Bits* even = v[key] + d;
    const Bf16Bits* odd = v[key + 1] + d;
    ATTEST_UNROLL for (int x = 0; x < kSteps; ++x) {
      const uint16x8_t a = vld1q_u16(even + x * kStep);
      const uint16x8_t b = vld1q_u16(odd + x * kStep);
      const bfloat16x8_t low = vreinterpretq_bf16_u16(vzip1q_u16(a, b));
      const bfloat16x8_t high = vreinterpretq_bf16_u16(vzip2q_u16(a, b));
      ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
        const bfloat16x8_t w = vreinterpretq_bf16_f32(V::Broadcast(s + r * Shared::kScoreStride + key / 2));
        c[r][2 * x] = AddDot(c[r][2 * x], low, w);
        c[r][2 * x + 1] = AddDot(c[r][2 * x + 1], high, w);
      }
    }
  }
  ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
    ATTEST_UNROLL for (int x = 0; x < 2 * kSteps; ++x)
        V::Store(o + r * v_head_dim + d + x * V::kLanes, c[r][x]);
  }
}

// Adds the V rows that were set aside to the rows that see their keys.
[[gnu::noinline]] void AddHidden(const AttentionTile& t, const HiddenValues<Bf16Bits, kTile>& hidden,
                                 int32_t first, const Shared::Buffers& b) {
  for (int i = 0; i < hidden.count; ++i) {
    const int key = hidden.keys[i];
    for (int row = 0; row < t.num_rows; ++row) {
      if (first + key < t.rows[row].begin || first + key >= t.rows[row].end) continue;
      const float weight = ValueOf(Bf16At(b.s + row * Shared::kScoreStride)[key]);
      float* o = b.o + row * t.v_head_dim;
      for (int d = 0; d < t.v_head_dim; ++d) o[d] += weight * ValueOf(hidden.rows[i][d]);
    }
  }
}

template <int kR>
void RowBlock(const AttentionTile& t, int row, int32_t first, int keys, const Shared::Buffers& b, int now,
              int next_keys) {
  const float* q = b.q + row * t.head_dim;
  float* s = b.s + row * Shared::kScoreStride;
  for (int key = 0; key < keys; key += kKeys) {
    if (row == 0) {
      for (int i = key; i < MinInt(key + kKeys, next_keys); ++i) {
        Shared::Prefetch(b.k[now ^ 1][i], t.head_dim);
        Shared::Prefetch(b.v[now ^ 1][i], t.v_head_dim);
      }
    }
    Scores<kR>(q, t.head_dim, b.k[now] + key, s + key);
  }
  const int padded = RoundUp(keys, kKeys);
  for (int r = 0; r < kR; ++r) {
    Shared::Softmax(t, row + r, first, keys, b);
    RoundWeights(padded, s + r * Shared::kScoreStride);
  }
  float* o = b.o + row * t.v_head_dim;
  int d = 0;
  for (; d + 2 * kStep <= t.v_head_dim; d += 2 * kStep)
    Values<kR, 2>(s, padded, b.v[now], d, o, t.v_head_dim);
  if (d < t.v_head_dim) Values<kR, 1>(s, padded, b.v[now], d, o, t.v_head_dim);
}

void RowBlockOf(int rows, const AttentionTile& t, int row, int32_t first, int keys, const Shared::Buffers& b,
                int now, int next_keys) {
  static_assert(Shared::kMaxBlockRows == 6);
  if (rows == 1) RowBlock<1>(t, row, first, keys, b, now, next_keys);
  if (rows == 2) RowBlock<2>(t, row, first, keys, b, now, next_keys);
  if (rows == 3) RowBlock<3>(t, row, first, keys, b, now, next_keys);
  if (rows == 4) RowBlock<4>(t, row, first, keys, b, now, next_keys);
  if (rows == 5) RowBlock<5>(t, row, first, keys, b, now, next_keys);
  if (rows == 6) RowBlock<6>(t, row, first, keys, b, now, next_keys);
}

void RunTile(const AttentionTile& t, std::byte* scratch) {
  ATTEST_KERNEL_CHECK(t.head_dim % kStep, ==, 0);  // Scores and Values step by it
  ATTEST_KERNEL_CHECK(t.v_head_dim % kStep, ==, 0);
  const Shared::Buffers b = Shared::Carve(scratch, t.head_dim, t.v_head_dim);
  for (int row = 0; row < t.num_rows; ++row) {
    const F sign = V::Set1(t.q_sign);
    for (int d = 0; d < t.head_dim; d += kStep) {
      const F first = V::Mul(V::Load(t.rows[row].q + d), sign);
      const F second = V::Mul(V::Load(t.rows[row].q + d + V::kLanes), sign);
      StoreBf16(b.q + row * t.head_dim + d / 2, Narrow(first, second));
    }
    for (int d = 0; d < t.v_head_dim; d += V::kLanes) V::Store(b.o + row * t.v_head_dim + d, V::Zero());
    V::Store(b.sum + row * V::kLanes, V::Zero());
    b.max[row] = kNoMax;
  }
  int now = 0;
  int keys = MinInt(kTile, t.end - t.begin);
  FindKeyRows(t, t.begin, keys, kKeys, b.k[now], b.v[now]);
  for (int32_t first = t.begin; first < t.end; first += keys, now ^= 1) {
    keys = MinInt(kTile, t.end - first);
    const int next_keys = MinInt(kTile, t.end - first - keys);
    FindKeyRows(t, first + keys, next_keys, kKeys, b.k[now ^ 1], b.v[now ^ 1]);
    HiddenValues<Bf16Bits, kTile> hidden;
    hidden.SetAside(t, first, keys, b.v[now]);
    for (int row = 0; row < t.num_rows;) {
      // 7 = 4 + 3 rather than 6 + 1: a block of one row has too few sums in flight.
      const int left = t.num_rows - row;
      const int take = left <= Shared::kMaxBlockRows      ? left
                       : left < 2 * Shared::kMaxBlockRows ? (left + 1) / 2
                                                          : Shared::kMaxBlockRows;
      RowBlockOf(take, t, row, first, keys, b, now, next_keys);
      row += take;
    }
    if (hidden.count > 0) AddHidden(t, hidden, first, b);
  }
  for (int row = 0; row < t.num_rows; ++row) {
    const AttentionTileRow& r = t.rows[row];
    const float factor = FinishAttentionRow(t, r, b.max[row], V::ReduceAdd(V::Load(b.sum + row * V::kLanes)));
    const float* o = b.o + row * t.v_head_dim;
    for (int d = 0; d < t.v_head_dim; d += V::kLanes)
      V::Store(r.out + d, V::Mul(V::Load(o + d), V::Set1(factor)));
  }
}

void Run(const AttentionParams& params, const AttentionWorkItem& item, const AttentionScratch& scratch) {
  AttentionTile tile;
  const int64_t rows = AttentionItemRows(params, item);
  for (int64_t row = 0; row < rows; row += kMaxTileRows) {
    BuildAttentionTile(params, item, scratch, row, static_cast<int>(Min64(rows - row, kMaxTileRows)), &tile);
    ATTEST_KERNEL_CHECK(static_cast<int>(tile.kv_dtype), ==, static_cast<int>(DType::kBF16));
    RunTile(tile, AttentionThreadScratch(scratch));
  }
}
int32_t RowTile(const AttentionShape&) { return kDecodeMaxTokens; }
int64_t ThreadScratchBytes(const AttentionShape& shape) {
  return Shared::ScratchBytes(shape.head_dim, shape.v_head_dim);
}

}  // namespace

const AttentionKernel kAttentionDecodeNeonBf16 = {
    .run = &Run,
    .row_tile = &RowTile,
    .thread_scratch_bytes = &ThreadScratchBytes,
};

}  // namespace attest
