#include "kernels/cpu/attention_prefill_bf16.h"
#include "kernels/cpu/attention_simd_amx.h"

namespace attest {
namespace {

// Prefill in the transposed form: S^T = K Q^T and O^T = V^T P^T. K is used as it lies (a dense copy of its
// rows is the A operand), V is transposed once per key block, rows sit in vector lanes: no horizontal step
// anywhere. A step is 128 keys x 32 rows: two columns of 16 rows. docs/kernels/attention_prefill_amx.md.
constexpr int kKeyBlock = 128;
constexpr int kSubRows = 32;
constexpr int kMaxSubs = kMaxTileRows / kSubRows;
static_assert(kMaxTileRows % kSubRows == 0 && kKeyBlock % 32 == 0);

using V = Avx512Vec;

struct Column {
  alignas(64) int32_t begin[16];
  alignas(64) int32_t end[16];
  alignas(64) float max[16];
  alignas(64) float sum[16];
  alignas(64) float slope[16];
  alignas(64) float position[16];
};
struct Sub {
  Column columns[2];
  int32_t min_begin, max_begin, min_end, max_end;  // over rows that see a key
};
struct Buffers {
  uint32_t* q;  // [sub][column][head_dim / 32] tiles of [16 dim pairs][16 rows]
  float* o;     // [sub][v_head_dim / 16][column] tiles of [16 dims][16 rows]
  float* s;     // [kKeyBlock / 16][column] tiles of [16 keys][16 rows]
  uint32_t* p;  // [kKeyBlock / 32][column] tiles of [16 key pairs][16 rows]
  uint32_t* k;  // [kKeyBlock][head_dim] bf16
  uint32_t* v;  // [kKeyBlock / 32][v_head_dim / 16] tiles of [16 dims][16 key pairs]
  Sub* subs;
};

int64_t ScratchWords(int head_dim, int v_head_dim) {
  return int64_t{kMaxTileRows} * (head_dim / 2 + v_head_dim) + kKeyBlock * (kSubRows + kSubRows / 2) +
         int64_t{kKeyBlock} * (head_dim + v_head_dim) / 2;  // exact: the dims are multiples of 32
}
Buffers Carve(std::byte* scratch, int head_dim, int v_head_dim) {
  Buffers b;
  auto* at = reinterpret_cast<uint32_t*>(scratch);  // every piece is a multiple of 64 bytes
  b.q = at, at += int64_t{kMaxTileRows} * head_dim / 2;
  b.o = reinterpret_cast<float*>(at), at += int64_t{kMaxTileRows} * v_head_dim;
  b.s = reinterpret_cast<float*>(at), at += kKeyBlock * kSubRows;
  b.p = at, at += kKeyBlock * kSubRows / 2;
  b.k = at, at += int64_t{kKeyBlock} * head_dim / 2;
  b.v = at, at += int64_t{kKeyBlock} * v_head_dim / 2;
  b.subs = reinterpret_cast<Sub*>(at);
  return b;
}

// Rows past the tile's last are copies of it that see no key, and their results are not stored.
void PackSub(const AttentionTile& t, int index, uint32_t* q, Sub* sub) {
  sub->min_begin = sub->min_end = 0x7fffffff;
  sub->max_begin = sub->max_end = 0;
  for (int column = 0; column < 2; ++column) {
    Column& c = sub->columns[column];
    const float* rows[16];
    for (int lane = 0; lane < 16; ++lane) {
      const int row = index * kSubRows + column * 16 + lane;
      const bool exists = row < t.num_rows;
      const AttentionTileRow& r = t.rows[exists ? row : t.num_rows - 1];
      rows[lane] = r.q;
      c.max[lane] = kNoMax;
      c.sum[lane] = 0.0f;
      c.begin[lane] = exists ? r.begin : 0;
      c.end[lane] = exists ? r.end : 0;
      c.slope[lane] = r.slope;
      c.position[lane] = static_cast<float>(r.position);
      if (exists && r.begin < r.end) {
        sub->min_begin = MinInt(sub->min_begin, r.begin);
        sub->max_begin = MaxInt(sub->max_begin, r.begin);
        sub->min_end = MinInt(sub->min_end, r.end);
        sub->max_end = MaxInt(sub->max_end, r.end);
      } else {
        sub->max_begin = 0x7fffffff;  // a row sees nothing: every block is an edge block
      }
    }
    PackQueryTiles(rows, t.head_dim, t.q_sign, q + int64_t{column} * 8 * t.head_dim);  // 16 rows of words
  }
}

void PackKeys(const Bf16Bits* const* rows, int keys, int head_dim, uint32_t* packed) {
  for (int key = 0; key < keys; ++key, packed += head_dim / 2) {
    for (int d = 0; d < head_dim; d += 32)
      _mm512_storeu_si512(packed + d / 2, _mm512_loadu_si512(rows[key] + d));
  }
}

void PackValues(const Bf16Bits* const* rows, int keys, int v_head_dim, uint32_t* tiles) {
  for (int key = 0; key < keys; key += 32) {
    for (int d = 0; d < v_head_dim; d += 16, tiles += kTileWords) {
      __m512i x[16];
      for (int i = 0; i < 16; ++i) x[i] = PairValues(rows[key + 2 * i] + d, rows[key + 2 * i + 1] + d);
      Transpose16x16(x);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tiles + 16 * i, x[i]);
    }
  }
}

// Scores of `keys` keys (a multiple of 32) and the 32 rows of a sub. The tiles of the second row group are
// stored one group late, beside the products of the next.
void Scores(const uint32_t* k, int keys, int head_dim, const uint32_t* q, float* s) {
  const int64_t key_bytes = int64_t{head_dim} * 2;
  const uint32_t* q0 = q;
  const uint32_t* q1 = q + int64_t{8} * head_dim;
  for (int key = 0; key < keys; key += 32, s += 4 * kTileWords) {
    const uint32_t* a0 = k + int64_t{key} * head_dim / 2;
    const uint32_t* a1 = a0 + int64_t{8} * head_dim;
    AmxTile<0>::Zero();
    AmxTile<1>::Zero();
    for (int d = 0; d < head_dim; d += 32) {
      AmxTile<4>::Load(a0 + d / 2, key_bytes);
      AmxTile<6>::Load(q0 + 8 * d, 64);
      AmxTile<0>::AddDotBf16<4, 6>();
      AmxTile<7>::Load(q1 + 8 * d, 64);
      AmxTile<1>::AddDotBf16<4, 7>();
    }
    if (key > 0) {
      AmxTile<2>::Store(s - 2 * kTileWords, 64);
      AmxTile<3>::Store(s - kTileWords, 64);
    }
    AmxTile<2>::Zero();
    AmxTile<3>::Zero();
    for (int d = 0; d < head_dim; d += 32) {
      AmxTile<5>::Load(a1 + d / 2, key_bytes);
      AmxTile<6>::Load(q0 + 8 * d, 64);
      AmxTile<2>::AddDotBf16<5, 6>();
      AmxTile<7>::Load(q1 + 8 * d, 64);
      AmxTile<3>::AddDotBf16<5, 7>();
    }
    AmxTile<0>::Store(s, 64);
    AmxTile<1>::Store(s + kTileWords, 64);
  }
  AmxTile<2>::Store(s - 2 * kTileWords, 64);
  AmxTile<3>::Store(s - kTileWords, 64);
}

// o += V^T P^T over `keys` keys (a multiple of 32).
void Values(const uint32_t* v, int keys, int v_head_dim, const uint32_t* p, float* o) {
  for (int d = 0; d < v_head_dim; d += 32, o += 4 * kTileWords) {  // exact: v_head_dim is a multiple of 32
    AmxTile<0>::Load(o, 64);
    AmxTile<1>::Load(o + kTileWords, 64);
    AmxTile<2>::Load(o + 2 * kTileWords, 64);
    AmxTile<3>::Load(o + 3 * kTileWords, 64);
    for (int key = 0; key < keys; key += 32) {
      const uint32_t* a = v + int64_t{key} * v_head_dim / 2 + 16 * d;
      const uint32_t* b = p + key * 16;
      AmxTile<4>::Load(a, 64);
      AmxTile<6>::Load(b, 64);
      AmxTile<0>::AddDotBf16<4, 6>();
      AmxTile<7>::Load(b + kTileWords, 64);
      AmxTile<1>::AddDotBf16<4, 7>();
      AmxTile<5>::Load(a + kTileWords, 64);
      AmxTile<2>::AddDotBf16<5, 6>();
      AmxTile<3>::AddDotBf16<5, 7>();
    }
    AmxTile<0>::Store(o, 64);
    AmxTile<1>::Store(o + kTileWords, 64);
    AmxTile<2>::Store(o + 2 * kTileWords, 64);
    AmxTile<3>::Store(o + 3 * kTileWords, 64);
  }
}

// Where a key's scores, and a pair of keys' weights, lie for one column of rows.
float* ScoreRow(float* s, int key) { return s + key / 16 * (2 * kTileWords) + key % 16 * 16; }
uint32_t* WeightRow(uint32_t* p, int key) { return p + key / 32 * (2 * kTileWords) + key % 32 / 2 * 16; }

// One column of scores becomes pairs of bf16 weights. `s` and `p` point at the column's first tile.
void Softmax(const AttentionTile& t, Column* c, bool edge, int32_t first_key, int keys, float* s, uint32_t* p,
             float* o, const FixedPointExp2& exp2) {
  if (t.transforms_scores || edge) {
    for (int key = 0; key < keys; ++key) {
      float* at = ScoreRow(s, key);
      __m512 y = _mm512_load_ps(at);
      if (t.transforms_scores) y = _mm512_mul_ps(y, _mm512_set1_ps(t.score_scale));
      if (t.softcap_log2 > 0.0f) y = _mm512_mul_ps(_mm512_set1_ps(t.softcap_log2), Tanh<V>(y));
      if (t.has_alibi) {
        const __m512 distance =
            _mm512_sub_ps(_mm512_set1_ps(static_cast<float>(first_key + key)), _mm512_load_ps(c->position));
        y = _mm512_fnmadd_ps(_mm512_load_ps(c->slope), V::Abs(distance), y);
      }
      _mm512_store_ps(at, V::MaskKey(y, first_key + key, c->begin, c->end));
    }
  }
  // Maximum, and the sum of the scores: NaN when one of them is, infinite when one overflowed.
  __m512 top[4];
  __m512 sum[4];
  ATTEST_UNROLL for (int i = 0; i < 4; ++i) {
    top[i] = _mm512_set1_ps(kMinusInf);
    sum[i] = _mm512_setzero_ps();
  }
  for (int key = 0; key < keys; key += 4) {
    const float* at = ScoreRow(s, key);
    ATTEST_UNROLL for (int i = 0; i < 4; ++i) {
      const __m512 y = _mm512_load_ps(at + 16 * i);
      top[i] = _mm512_max_ps(top[i], y);
      sum[i] = _mm512_add_ps(sum[i], y);
    }
  }
  const __m512 highest = _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
  const __m512 scale = _mm512_set1_ps(t.transforms_scores ? 1.0f : t.score_scale);
  const __m512 block_max = _mm512_mul_ps(highest, scale);
  const __m512 total = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  const __mmask16 is_bad = _mm512_cmp_ps_mask(total, _mm512_set1_ps(-kMinusInf), _CMP_NLT_UQ);

  __m512 m = _mm512_load_ps(c->max);
  __m512 l = _mm512_load_ps(c->sum);
  const __mmask16 grew = _mm512_cmp_ps_mask(block_max, _mm512_add_ps(m, _mm512_set1_ps(8.0f)), _CMP_GT_OQ);
  if (grew != 0) {  // weights stay below 2^8; a rescale is rare after the first block
    const __m512 raised = _mm512_mask_mov_ps(m, grew, block_max);
    const __m512 factor = Exp2<V>(_mm512_sub_ps(m, raised));
    m = raised;
    l = _mm512_mul_ps(l, factor);
    _mm512_store_ps(c->max, m);
    for (int d = 0; d < t.v_head_dim; d += 16) {
      float* tile = o + d / 16 * (2 * kTileWords);
      for (int i = 0; i < kTileWords; i += 16)
        _mm512_store_ps(tile + i, _mm512_mul_ps(_mm512_load_ps(tile + i), factor));
    }
  }
  // Without an LSE only the ratio of weights counts, and the sum is of the rounded weights. An LSE also shows
  // their common error, up to 0.6 % when all scores are alike, so then the weights are computed in float32
  // first.
  if (t.rows[0].lse == nullptr) {
    const __m512 bias = FixedPointExp2::Bias(m);
    const __m512 fixed = _mm512_mul_ps(scale, _mm512_set1_ps(FixedPointExp2::kOne));
    const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 part = _mm512_setzero_ps();
    for (int key = 0; key < keys; key += 4) {
      const float* at = ScoreRow(s, key);
      uint32_t* to = WeightRow(p, key);
      const __m512i w = exp2.Pair(_mm512_load_ps(at), _mm512_load_ps(at + 16), fixed, bias);
      const __m512i w1 = exp2.Pair(_mm512_load_ps(at + 32), _mm512_load_ps(at + 48), fixed, bias);
      l = _mm512_dpbf16_ps(l, (__m512bh)w, ones);
      part = _mm512_dpbf16_ps(part, (__m512bh)w1, ones);
      _mm512_store_si512(to, w);
      _mm512_store_si512(to + 16, w1);
    }
    l = _mm512_add_ps(l, part);
  } else {
    for (int key = 0; key < keys; key += 2) {
      const float* at = ScoreRow(s, key);
      const __m512 w = Exp2Degree3<V>(_mm512_fmsub_ps(_mm512_load_ps(at), scale, m));
      const __m512 w1 = Exp2Degree3<V>(_mm512_fmsub_ps(_mm512_load_ps(at + 16), scale, m));
      l = _mm512_add_ps(l, _mm512_add_ps(w, w1));
      _mm512_store_si512(WeightRow(p, key), PairWeights(w, w1));
    }
  }
  _mm512_store_ps(c->sum, _mm512_mask_mov_ps(l, is_bad, _mm512_set1_ps(__builtin_nanf(""))));
}

// Adds the V rows that were set aside to the rows that see their keys. `p` holds the weights of keys from
// `from` on.
void AddHidden(const HiddenValues<Bf16Bits, kKeyBlock>& hidden, const Sub& sub, int32_t first, int from,
               int to, int v_head_dim, uint32_t* p, float* o) {
  for (int i = 0; i < hidden.count; ++i) {
    const int key = hidden.keys[i];
    if (key < from || key >= to) continue;
    for (int row = 0; row < kSubRows; ++row) {
      const Column& c = sub.columns[row / 16];
      const int lane = row % 16;
      if (first + key < c.begin[lane] || first + key >= c.end[lane]) continue;
      const uint32_t pair = WeightRow(p + row / 16 * kTileWords, key - from)[lane];
      const float weight = ValueOf(static_cast<Bf16Bits>((key - from) % 2 == 0 ? pair : pair >> 16));
      float* column = o + row / 16 * kTileWords + lane;
      for (int d = 0; d < v_head_dim; ++d) {
        column[d / 16 * (2 * kTileWords) + d % 16 * 16] += weight * ValueOf(hidden.rows[i][d]);
      }
    }
  }
}

void FinishColumn(const AttentionTile& t, int first_row, const Column& c, const float* o) {
  const int rows = MinInt(16, t.num_rows - first_row);
  const AttentionTileRow* r = t.rows + first_row;
  float factor[16];
  for (int i = 0; i < rows; ++i) factor[i] = FinishAttentionRow(t, r[i], c.max[i], c.sum[i]);
  for (int d = 0; d < t.v_head_dim; d += 16) {
    const float* tile = o + d / 16 * (2 * kTileWords);
    __m512i x[16];
    for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(tile + 16 * i);
    Transpose16x16(x);
    for (int i = 0; i < rows; ++i) {
      _mm512_storeu_ps(r[i].out + d, _mm512_mul_ps(_mm512_castsi512_ps(x[i]), _mm512_set1_ps(factor[i])));
    }
  }
}

void RunTile(const AttentionTile& t, std::byte* scratch) {
  ATTEST_KERNEL_CHECK(t.head_dim % 32, ==, 0);  // whole tiles of dim pairs
  ATTEST_KERNEL_CHECK(t.v_head_dim % 32, ==, 0);
  const Buffers b = Carve(scratch, t.head_dim, t.v_head_dim);
  const ConfiguredTiles configured;
  const FixedPointExp2 exp2;
  const int subs = (t.num_rows + kSubRows - 1) / kSubRows;  // rounded up: the last may be partly empty
  const int64_t q_words = int64_t{16} * t.head_dim;         // of one sub
  const int64_t o_words = int64_t{kSubRows} * t.v_head_dim;
  for (int sub = 0; sub < subs; ++sub) {
    PackSub(t, sub, b.q + sub * q_words, b.subs + sub);
    for (int64_t i = 0; i < o_words; i += 16) _mm512_store_ps(b.o + sub * o_words + i, _mm512_setzero_ps());
  }
  for (int32_t first = t.begin; first < t.end; first += kKeyBlock) {
    const int keys = MinInt(kKeyBlock, t.end - first);
    const int padded = RoundUp(keys, 32);
    const Bf16Bits* k_rows[kKeyBlock];
    const Bf16Bits* v_rows[kKeyBlock];
    FindKeyRows(t, first, keys, 32, k_rows, v_rows);
    HiddenValues<Bf16Bits, kKeyBlock> hidden;
    hidden.SetAside(t, first, keys, v_rows);
    PackKeys(k_rows, padded, t.head_dim, b.k);
    PackValues(v_rows, padded, t.v_head_dim, b.v);
    for (int sub = 0; sub < subs; ++sub) {
      Sub* u = b.subs + sub;
      if (first >= u->max_end || first + keys <= u->min_begin) continue;  // no row sees the block
      // Of the block, only the keys that the sub's rows see.
      const int from = MaxInt(0, u->min_begin - first) / 32 * 32;  // rounded down
      const int to = MinInt(padded, RoundUp(u->max_end - first, 32));
      const bool edge = first + from < u->max_begin || first + to > u->min_end;
      float* o = b.o + sub * o_words;
      Scores(b.k + int64_t{from} * t.head_dim / 2, to - from, t.head_dim, b.q + sub * q_words, b.s);
      for (int column = 0; column < 2; ++column) {
        Softmax(t, u->columns + column, edge, first + from, to - from, b.s + column * kTileWords,
                b.p + column * kTileWords, o + column * kTileWords, exp2);
      }
      Values(b.v + int64_t{from} * t.v_head_dim / 2, to - from, t.v_head_dim, b.p, o);
      if (hidden.count > 0) AddHidden(hidden, *u, first, from, to, t.v_head_dim, b.p, o);
    }
  }
  for (int sub = 0; sub < subs; ++sub) {
    for (int column = 0; column < 2; ++column) {
      const int first_row = sub * kSubRows + column * 16;
      if (first_row < t.num_rows) {  // the second column of the last sub may lie past the tile
        FinishColumn(t, first_row, b.subs[sub].columns[column], b.o + sub * o_words + column * kTileWords);
      }
    }
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
int64_t ThreadScratchBytes(const AttentionShape& shape) {
  return ScratchWords(shape.head_dim, shape.v_head_dim) * 4 +
         int64_t{kMaxSubs} * static_cast<int64_t>(sizeof(Sub));
}

}  // namespace

const AttentionKernel kAttentionPrefillAmx = {
    .run = &Run,
    .row_tile = &AttentionRowTile,
    .thread_scratch_bytes = &ThreadScratchBytes,
};

}  // namespace attest
