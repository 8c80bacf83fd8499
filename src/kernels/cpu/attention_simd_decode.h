// The split-KV decode tile of the f32 attention kernels (AVX2, AVX-512, NEON), written once over a vector
// type.
//
// Rows are the GQA group of one KV head (times a few tokens for uniform multi-token decode), so K and V are
// read from memory once per group. Dims sit in vector lanes, in the pages' own order: nothing is transposed
// or copied. Stored types are widened in registers: bf16 by a shift and a mask, which leaves even and odd
// dims in two vectors (q is packed in that order and the output is put back at the end), f16 and fp8 through
// f16. Scores of a tile of 64 keys are reduced four at a time; softmax has keys in lanes.
// docs/kernels/attention_decode_f32.md has the numbers.
//
// Include only from files compiled for the instruction set.
#pragma once

#include "kernels/cpu/attention_decode_f32.h"
#include "kernels/cpu/attention_simd_pages.h"
#include "kernels/cpu/attention_simd_tile.h"
#include "kernels/cpu/attention_simd_vec.h"
#include "kernels/cpu/kernel_check.h"

namespace attest {
namespace {

template <class V, class KvT>
struct DecodeTile {
  using F = typename V::F;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPair = 2 * V::kLanes;  // dims of WidenFirst and WidenSecond
  static constexpr int kTile = 64;             // keys
  // Keys of one score block. Three keys x three rows leave registers for the factors: with four keys every
  // multiply reads q from memory, 32 loads for 24 FMA where two of each are done per cycle.
  static constexpr int kKeys = V::kRegisters == 16 ? 3 : 4;
  static constexpr int kScoreStride = kTile + 16;  // a row's scores; the last block may pass the tile
  static constexpr int kMaxBlockRows = V::kRegisters == 16 ? 3 : 6;
  static_assert(kTile % kLanes == 0 && kKeys <= 4);

  struct Buffers {
    float* q;          // [rows][head_dim], dims in the order of WidenFirst and WidenSecond
    float* o;          // [rows][v_head_dim], the same order
    float* s;          // [rows][kScoreStride]
    float* sum;        // [rows][kLanes]: partial sums of weights
    float* max;        // [rows]
    const KvT** k[2];  // [kTile + kKeys] key rows of this tile and the next
    const KvT** v[2];
  };
  static int64_t ScratchBytes(int head_dim, int v_head_dim) {
    return int64_t{kMaxTileRows} * (head_dim + v_head_dim + kScoreStride + kLanes + 1) * 4 +
           4 * (kTile + kKeys) * 8;
  }
  static Buffers Carve(std::byte* scratch, int head_dim, int v_head_dim) {
    Buffers b;
    auto* at = reinterpret_cast<float*>(scratch);  // kMaxTileRows floats are a multiple of 64 bytes
    b.q = at, at += int64_t{kMaxTileRows} * head_dim;
    b.o = at, at += int64_t{kMaxTileRows} * v_head_dim;
    b.s = at, at += int64_t{kMaxTileRows} * kScoreStride;
    b.sum = at, at += int64_t{kMaxTileRows} * kLanes;
    b.max = at, at += kMaxTileRows;
    auto* pointers = reinterpret_cast<const KvT**>(at);
    for (int i = 0; i < 2; ++i) {
      b.k[i] = pointers, pointers += kTile + kKeys;
      b.v[i] = pointers, pointers += kTile + kKeys;
    }
    return b;
  }

  // The cache lines of one row of the next tile. The hardware follows a stream of addresses, but pages of one
  // sequence lie anywhere: without this, each page starts with a miss that nothing hides.
  static void Prefetch(const KvT* row, int dim) {
    for (int d = 0; d < dim; d += 64 / static_cast<int>(sizeof(KvT))) {
      __builtin_prefetch(row + d, 0, 2);  // into L2
    }
  }

  // s[r][0..kKeys) = q[r] . k[0..kKeys) for kR rows.
  // Not inlined, here and below: the sums need nearly all registers, and inside Run some of them are spilled.
  template <int kR>
  [[gnu::noinline]] static void Scores(const float* q, int head_dim, const KvT* const* k, float* s) {
    F c[kR][kKeys];
    ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
      ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) c[r][j] = V::Zero();
    }
    const KvT* rows[kKeys];
    ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) rows[j] = k[j];
    for (int d = 0; d < head_dim; d += kPair) {
      const float* x = q + d;
      F a[kKeys];
      ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) a[j] = V::WidenFirst(rows[j] + d);
      ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
        const F y = V::Load(x + r * head_dim);
        ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) c[r][j] = V::Fma(a[j], y, c[r][j]);
      }
      ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) a[j] = V::WidenSecond(rows[j] + d);
      ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
        const F y = V::Load(x + r * head_dim + kLanes);
        ATTEST_UNROLL for (int j = 0; j < kKeys; ++j) c[r][j] = V::Fma(a[j], y, c[r][j]);
      }
    }
    ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
      V::StoreSums4(s + r * kScoreStride, c[r][0], c[r][1], c[r][2], c[r][kKeys - 1]);
    }
  }

  // o[r][0..kPairs * kPair) += sum over keys of s[r][key] * v[key], kR rows.
  template <int kR, int kPairs>
  [[gnu::noinline]] static void Values(const float* s, int keys, const KvT* const* v, int d, float* o,
                                       int v_head_dim) {
    F c[kR][2 * kPairs];
    ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
      ATTEST_UNROLL for (int x = 0; x < 2 * kPairs; ++x) c[r][x] =
          V::Load(o + r * v_head_dim + d + x * kLanes);
    }
    for (int key = 0; key < keys; ++key) {
      const KvT* row = v[key] + d;
      ATTEST_UNROLL for (int x = 0; x < kPairs; ++x) {
        const F a = V::WidenFirst(row + x * kPair);
        const F b = V::WidenSecond(row + x * kPair);
        ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
          const F w = V::BroadcastAgain(s + r * kScoreStride + key);
          c[r][2 * x] = V::Fma(w, a, c[r][2 * x]);
          c[r][2 * x + 1] = V::Fma(w, b, c[r][2 * x + 1]);
        }
      }
    }
    ATTEST_UNROLL for (int r = 0; r < kR; ++r) {
      ATTEST_UNROLL for (int x = 0; x < 2 * kPairs; ++x)
          V::Store(o + r * v_head_dim + d + x * kLanes, c[r][x]);
    }
  }

  // One row's scores become weights in place; its maximum, sum and output are brought up to date.
  static void Softmax(const AttentionTile& t, int row, int32_t first, int keys, const Buffers& b) {
    const AttentionTileRow& r = t.rows[row];
    float* s = b.s + row * kScoreStride;
    const int padded = RoundUp(keys, kLanes);
    if (t.transforms_scores) {
      for (int i = 0; i < padded; i += kLanes) {
        const F y = V::Mul(V::Load(s + i), V::Set1(t.score_scale));
        V::Store(s + i, t.softcap_log2 > 0.0f ? V::Mul(V::Set1(t.softcap_log2), Tanh<V>(y)) : y);
      }
    }
    if (t.has_alibi) {
      for (int i = 0; i < keys; ++i) {
        const int32_t distance = first + i - r.position;
        s[i] -= r.slope * static_cast<float>(distance < 0 ? -distance : distance);
      }
    }
    // Scores past `keys` are of repeated rows or old; they lie past every row's end.
    for (int i = 0; i < MinInt(r.begin - first, keys); ++i) s[i] = kMinusInf;
    for (int i = MaxInt(r.end - first, 0); i < padded; ++i) s[i] = kMinusInf;

    F top = V::Load(s);
    for (int i = kLanes; i < padded; i += kLanes) top = V::Max(top, V::Load(s + i));
    const float scale = t.transforms_scores ? 1.0f : t.score_scale;
    const float tile_max = V::ReduceMax(top) * scale;
    float m = b.max[row];
    F l = V::Load(b.sum + row * kLanes);
    if (tile_max > m + 8.0f) {  // weights stay below 2^8; a rescale is rare after the first tile
      const F factor = Exp2<V>(V::Set1(m - tile_max));
      m = tile_max;
      b.max[row] = m;
      l = V::Mul(l, factor);
      float* o = b.o + row * t.v_head_dim;
      for (int d = 0; d < t.v_head_dim; d += kLanes) V::Store(o + d, V::Mul(V::Load(o + d), factor));
    }
    const F top_m = V::Set1(m);
    for (int i = 0; i < padded; i += kLanes) {
      const F weight = Exp2<V>(V::Msub(V::Load(s + i), V::Set1(scale), top_m));
      l = V::Add(l, weight);
      V::Store(s + i, weight);
    }
    V::Store(b.sum + row * kLanes, l);
  }

  // Adds the V rows that were set aside to the rows that see their keys.
  [[gnu::noinline]] static void AddHidden(const AttentionTile& t, const HiddenValues<KvT, kTile>& hidden,
                                          int32_t first, const Buffers& b) {
    for (int i = 0; i < hidden.count; ++i) {
      const int key = hidden.keys[i];
      for (int row = 0; row < t.num_rows; ++row) {
        if (first + key < t.rows[row].begin || first + key >= t.rows[row].end) continue;
        const float weight = b.s[row * kScoreStride + key];
        float* o = b.o + row * t.v_head_dim;
        for (int d = 0; d < t.v_head_dim; ++d) {
          const int in_pair = d % kPair;
          // o is in the order of WidenFirst and WidenSecond: bf16 keeps even and odd dims apart.
          const int at = kEvenThenOdd<KvT> ? in_pair / 2 + in_pair % 2 * kLanes : in_pair;
          o[d - in_pair + at] += weight * ValueOf(hidden.rows[i][d]);
        }
      }
    }
  }

  template <int kR>
  static void RowBlock(const AttentionTile& t, int row, int32_t first, int keys, const Buffers& b, int now,
                       int next_keys) {
    const float* q = b.q + row * t.head_dim;
    float* s = b.s + row * kScoreStride;
    for (int key = 0; key < keys; key += kKeys) {
      if (row == 0 && key < next_keys) {
        for (int i = key; i < MinInt(key + kKeys, next_keys); ++i) {
          Prefetch(b.k[now ^ 1][i], t.head_dim);
          Prefetch(b.v[now ^ 1][i], t.v_head_dim);
        }
      }
      Scores<kR>(q, t.head_dim, b.k[now] + key, s + key);
    }
    for (int r = 0; r < kR; ++r) Softmax(t, row + r, first, keys, b);
    float* o = b.o + row * t.v_head_dim;
    int d = 0;
    for (; d + 2 * kPair <= t.v_head_dim; d += 2 * kPair) {
      Values<kR, 2>(s, keys, b.v[now], d, o, t.v_head_dim);
    }
    if (d < t.v_head_dim) Values<kR, 1>(s, keys, b.v[now], d, o, t.v_head_dim);
  }

  // The rows of keys [first, first + keys), whole blocks of kKeys. Keys before the tile's first are not read:
  // its K row and zeros stand for them, and the mask hides them.
  static void FindTile(const AttentionTile& t, int32_t first, int keys, const KvT** k, const KvT** v) {
    const int skipped = MinInt(MaxInt(t.begin - first, 0), keys);
    FindKeyRows(t, first + skipped, keys - skipped, 1, k + skipped, v + skipped);
    for (int i = 0; i < skipped; ++i) {
      k[i] = k[skipped];
      v[i] = kZeroRow<KvT>;
    }
    for (int i = keys; i % kKeys != 0; ++i) {
      k[i] = k[keys - 1];
      v[i] = kZeroRow<KvT>;
    }
  }

  static void Run(const AttentionTile& t, std::byte* scratch) {
    ATTEST_KERNEL_CHECK(t.head_dim % kPair, ==, 0);  // Scores and Values step by whole pairs
    ATTEST_KERNEL_CHECK(t.v_head_dim % kPair, ==, 0);
    const Buffers b = Carve(scratch, t.head_dim, t.v_head_dim);
    for (int row = 0; row < t.num_rows; ++row) {
      float* q = b.q + row * t.head_dim;
      const F sign = V::Set1(t.q_sign);
      for (int d = 0; d < t.head_dim; d += kPair) {
        F first = V::Mul(V::Load(t.rows[row].q + d), sign);
        F second = V::Mul(V::Load(t.rows[row].q + d + kLanes), sign);
        if constexpr (kEvenThenOdd<KvT>) V::Deinterleave(&first, &second);
        V::Store(q + d, first);
        V::Store(q + d + kLanes, second);
      }
      float* o = b.o + row * t.v_head_dim;
      for (int d = 0; d < t.v_head_dim; d += kLanes) V::Store(o + d, V::Zero());
      V::Store(b.sum + row * kLanes, V::Zero());
      b.max[row] = kNoMax;
    }
    int now = 0;
    // Tiles lie at absolute multiples of 64 keys, so that a row's sums do not depend on where the first key
    // of the rows beside it is.
    const int32_t begin =
        t.begin < t.end ? t.begin / kTile * kTile : t.end;  // rounded down; no keys, no tile
    int keys = MinInt(kTile, t.end - begin);
    FindTile(t, begin, keys, b.k[now], b.v[now]);
    for (int32_t first = begin; first < t.end; first += keys, now ^= 1) {
      keys = MinInt(kTile, t.end - first);
      const int next_keys = MinInt(kTile, t.end - first - keys);
      FindTile(t, first + keys, next_keys, b.k[now ^ 1], b.v[now ^ 1]);
      HiddenValues<KvT, kTile> hidden;
      hidden.SetAside(t, first, keys, b.v[now]);
      int row = 0;
      while (row < t.num_rows) {
        // 4 = 2 + 2 rather than 3 + 1 on AVX2: a block of one row has too few sums in flight.
        const int left = t.num_rows - row;
        const int take = left <= kMaxBlockRows      ? left
                         : left < 2 * kMaxBlockRows ? (left + 1) / 2
                                                    : kMaxBlockRows;
        RowBlockOf(take, t, row, first, keys, b, now, next_keys);
        row += take;
      }
      if (hidden.count > 0) AddHidden(t, hidden, first, b);
    }
    for (int row = 0; row < t.num_rows; ++row) {
      const AttentionTileRow& r = t.rows[row];
      const float factor = FinishAttentionRow(t, r, b.max[row], V::ReduceAdd(V::Load(b.sum + row * kLanes)));
      const float* o = b.o + row * t.v_head_dim;
      for (int d = 0; d < t.v_head_dim; d += kPair) {
        F first = V::Mul(V::Load(o + d), V::Set1(factor));
        F second = V::Mul(V::Load(o + d + kLanes), V::Set1(factor));
        if constexpr (kEvenThenOdd<KvT>) V::Interleave(&first, &second);
        V::Store(r.out + d, first);
        V::Store(r.out + d + kLanes, second);
      }
    }
  }

  static void RowBlockOf(int rows, const AttentionTile& t, int row, int32_t first, int keys, const Buffers& b,
                         int now, int next_keys) {
    if (rows == 1) RowBlock<1>(t, row, first, keys, b, now, next_keys);
    if (rows == 2) RowBlock<2>(t, row, first, keys, b, now, next_keys);
    if (rows == 3) RowBlock<3>(t, row, first, keys, b, now, next_keys);
    if constexpr (kMaxBlockRows > 3) {
      if (rows == 4) RowBlock<4>(t, row, first, keys, b, now, next_keys);
      if (rows == 5) RowBlock<5>(t, row, first, keys, b, now, next_keys);
      if (rows == 6) RowBlock<6>(t, row, first, keys, b, now, next_keys);
    }
  }
};

// The launch functions of the decode and the rowwise kernel over vector type V.
template <class V>
struct DecodeKernel {
  static void Run(const AttentionParams& params, const AttentionWorkItem& item,
                  const AttentionScratch& scratch) {
    AttentionTile tile;
    const int64_t rows = AttentionItemRows(params, item);
    for (int64_t row = 0; row < rows; row += kMaxTileRows) {
      BuildAttentionTile(params, item, scratch, row, static_cast<int>(Min64(rows - row, kMaxTileRows)),
                         &tile);
      std::byte* bytes = AttentionThreadScratch(scratch);
      WithKvType(tile.kv_dtype, [&]<class KvT>(const KvT*) { DecodeTile<V, KvT>::Run(tile, bytes); });
    }
  }
  static int32_t RowTile(const AttentionShape&) { return kDecodeMaxTokens; }
  static int32_t LongRowTile(const AttentionShape& shape) { return AttentionRowTile(shape); }
  static int64_t ThreadScratchBytes(const AttentionShape& shape) {
    return DecodeTile<V, float>::ScratchBytes(shape.head_dim, shape.v_head_dim);
  }
};

}  // namespace
}  // namespace attest
