#include "kernels/cpu/attention_decode_bf16.h"
#include "kernels/cpu/attention_simd_amx.h"

namespace attest {
namespace {

// Split-KV decode: S^T = K Q^T with K straight from the pages (16 keys x 32 dims is an A tile as it lies), O
// = P V with V interleaved in key pairs, 16 rows of the GQA group at a time.
// docs/kernels/attention_decode_amx.md.
constexpr int kTile = 64;   // keys
constexpr int kChunk = 16;  // rows of one pass
static_assert(kMaxTileRows % kChunk == 0 && kTile % 32 == 0);

using V = Avx512Vec;

struct Buffers {
  uint32_t* q;  // [chunk][head_dim / 32] tiles of [16 dim pairs][16 rows]
  float* o;     // [chunk][16 rows][v_head_dim]
  float* s;     // [kTile / 16] tiles of [16 keys][16 rows], then of [16 rows][16 keys]
  uint32_t* p;  // [16 rows][kTile / 2] pairs of bf16 weights
  uint32_t* k;  // [16 keys][head_dim] bf16: a group of keys that does not lie in one page
  uint32_t* v;  // [kTile / 32][v_head_dim / 16] tiles of [16 key pairs][16 dims]
  float* sum;   // [rows][16] partial sums of weights
  float* max;   // [rows]
};
int64_t ScratchWords(int head_dim, int v_head_dim) {
  return int64_t{kMaxTileRows} * (head_dim / 2 + v_head_dim + 16 + 1) + kTile * (kChunk + kChunk / 2) +
         int64_t{8} * head_dim + int64_t{kTile} * v_head_dim / 2;  // exact: the dims are multiples of 32
}
Buffers Carve(std::byte* scratch, int head_dim, int v_head_dim) {
  Buffers b;
  auto* at = reinterpret_cast<uint32_t*>(scratch);  // every piece is a multiple of 64 bytes
  b.q = at, at += int64_t{kMaxTileRows} * head_dim / 2;
  b.o = reinterpret_cast<float*>(at), at += int64_t{kMaxTileRows} * v_head_dim;
  b.s = reinterpret_cast<float*>(at), at += kTile * kChunk;
  b.p = at, at += kTile * kChunk / 2;
  b.k = at, at += int64_t{8} * head_dim;
  b.v = at, at += int64_t{kTile} * v_head_dim / 2;
  b.sum = reinterpret_cast<float*>(at), at += kMaxTileRows * 16;
  b.max = reinterpret_cast<float*>(at);
  return b;
}

void Prefetch(const Bf16Bits* row, int dim) {
  for (int d = 0; d < dim; d += 32) _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T1);
}

// Whether 16 key rows follow each other at `stride` elements: then they are an A tile where they lie.
bool IsOneRun(const Bf16Bits* const* rows, int64_t stride) {
  bool one_run = true;
  for (int i = 1; i < 16; ++i) one_run = one_run && rows[i] == rows[0] + i * stride;
  return one_run;
}

// S^T of `keys` keys (a multiple of 16) and one chunk of rows.
void Scores(const AttentionTile& t, const Bf16Bits* const* rows, int keys, const uint32_t* q, uint32_t* copy,
            float* s) {
  for (int key = 0; key < keys; key += 16, s += kTileWords) {
    const void* a = rows[key];
    int64_t stride = t.k_slot_stride * 2;
    if (!IsOneRun(rows + key, t.k_slot_stride)) {
      stride = int64_t{t.head_dim} * 2;
      uint32_t* to = copy;
      for (int i = 0; i < 16; ++i, to += t.head_dim / 2) {
        for (int d = 0; d < t.head_dim; d += 32) {
          _mm512_store_si512(to + d / 2, _mm512_loadu_si512(rows[key + i] + d));
        }
      }
      a = copy;
    }
    AmxTile<0>::Zero();
    for (int d = 0; d < t.head_dim; d += 32) {
      AmxTile<2>::Load(static_cast<const Bf16Bits*>(a) + d, stride);
      AmxTile<3>::Load(q + 8 * d, 64);
      AmxTile<0>::AddDotBf16<2, 3>();
    }
    AmxTile<0>::Store(s, 64);
  }
}

void PackValues(const Bf16Bits* const* rows, int keys, int v_head_dim, uint32_t* tiles) {
  for (int key = 0; key < keys; key += 2) {
    uint32_t* to = tiles + int64_t{key / 32} * v_head_dim * 16 + key % 32 * 8;
    for (int d = 0; d < v_head_dim; d += 16, to += kTileWords) {
      _mm512_store_si512(to, PairValues(rows[key] + d, rows[key + 1] + d));
    }
  }
}

void Values(const uint32_t* v, int keys, int v_head_dim, const uint32_t* p, float* o) {
  const int64_t o_bytes = int64_t{v_head_dim} * 4;
  for (int d = 0; d < v_head_dim; d += 32) {  // exact: v_head_dim is a multiple of 32
    AmxTile<4>::Load(o + d, o_bytes);
    AmxTile<5>::Load(o + d + 16, o_bytes);
    for (int key = 0; key < keys; key += 32) {
      const uint32_t* b = v + (int64_t{key / 32} * v_head_dim + d) * 16;
      AmxTile<6>::Load(p + key / 2, kTile * 2);
      AmxTile<7>::Load(b, 64);
      AmxTile<4>::AddDotBf16<6, 7>();
      AmxTile<7>::Load(b + kTileWords, 64);
      AmxTile<5>::AddDotBf16<6, 7>();
    }
    AmxTile<4>::Store(o + d, o_bytes);
    AmxTile<5>::Store(o + d + 16, o_bytes);
  }
}

// Adds the V rows that were set aside to the rows of a chunk that see their keys.
void AddHidden(const HiddenValues<Bf16Bits, kTile>& hidden, const AttentionTileRow* rows, int num_rows,
               int32_t first, int v_head_dim, const uint32_t* p, float* o) {
  for (int i = 0; i < hidden.count; ++i) {
    const int key = hidden.keys[i];
    for (int row = 0; row < num_rows; ++row) {
      if (first + key < rows[row].begin || first + key >= rows[row].end) continue;
      const uint32_t pair = p[row * (kTile / 2) + key / 2];
      const float weight = ValueOf(static_cast<Bf16Bits>(key % 2 == 0 ? pair : pair >> 16));
      for (int d = 0; d < v_head_dim; ++d) o[row * v_head_dim + d] += weight * ValueOf(hidden.rows[i][d]);
    }
  }
}

// Scores of one row, 16 keys per vector, become bf16 weights. `x` has padded / 16 vectors.
void Softmax(const AttentionTile& t, int row, int32_t first, int padded, const float* s, uint32_t* p,
             float* o, float* sum, float* max) {
  const AttentionTileRow& r = t.rows[row];
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 x[kTile / 16];
  __m512 top = _mm512_set1_ps(kMinusInf);
  for (int i = 0; i < padded / 16; ++i) {  // exact: padded is a multiple of 32
    __m512 y = _mm512_load_ps(s + i * kTileWords);
    const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(first + 16 * i));
    y = _mm512_mul_ps(y, _mm512_set1_ps(t.score_scale));
    if (t.softcap_log2 > 0.0f) y = _mm512_mul_ps(_mm512_set1_ps(t.softcap_log2), Tanh<V>(y));
    if (t.has_alibi) {
      const __m512 distance = _mm512_cvtepi32_ps(_mm512_sub_epi32(key, _mm512_set1_epi32(r.position)));
      y = _mm512_fnmadd_ps(_mm512_set1_ps(r.slope), V::Abs(distance), y);
    }
    const __mmask16 from = _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32(r.begin));
    const __mmask16 visible = _mm512_mask_cmplt_epi32_mask(from, key, _mm512_set1_epi32(r.end));
    x[i] = _mm512_mask_mov_ps(_mm512_set1_ps(kMinusInf), visible, y);
    top = _mm512_max_ps(top, x[i]);
  }
  const float tile_max = _mm512_reduce_max_ps(top);
  __m512 l = _mm512_load_ps(sum);
  if (tile_max > *max + 8.0f) {  // weights stay below 2^8; a rescale is rare after the first tile
    const __m512 factor = Exp2<V>(_mm512_set1_ps(*max - tile_max));
    *max = tile_max;
    l = _mm512_mul_ps(l, factor);
    for (int d = 0; d < t.v_head_dim; d += 16)
      _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), factor));
  }
  const __m512 m = _mm512_set1_ps(*max);
  for (int i = 0; i < padded / 16; i += 2) {
    const __m512 a = Exp2Degree3<V>(_mm512_sub_ps(x[i], m));
    const __m512 b = Exp2Degree3<V>(_mm512_sub_ps(x[i + 1], m));
    l = _mm512_add_ps(l, _mm512_add_ps(a, b));
    _mm512_store_si512(p + i * 8, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  _mm512_store_ps(sum, l);
}

void RunTile(const AttentionTile& t, std::byte* scratch) {
  ATTEST_KERNEL_CHECK(t.head_dim % 32, ==, 0);  // whole tiles of dim pairs
  ATTEST_KERNEL_CHECK(t.v_head_dim % 32, ==, 0);
  const Buffers b = Carve(scratch, t.head_dim, t.v_head_dim);
  const ConfiguredTiles configured;
  const int chunks = (t.num_rows + kChunk - 1) / kChunk;  // rounded up: the last may be partly empty
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const float* rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = t.rows[MinInt(chunk * kChunk + i, t.num_rows - 1)].q;
    PackQueryTiles(rows, t.head_dim, t.q_sign, b.q + int64_t{chunk} * 8 * t.head_dim);
  }
  for (int64_t i = 0; i < int64_t{chunks} * kChunk * t.v_head_dim; i += 16) {
    _mm512_store_ps(b.o + i, _mm512_setzero_ps());
  }
  for (int row = 0; row < t.num_rows; ++row) {
    _mm512_store_ps(b.sum + row * 16, _mm512_setzero_ps());
    b.max[row] = kNoMax;
  }
  // Rows that do not exist keep zero weights.
  for (int i = 0; i < kTile * kChunk / 2; i += 16) _mm512_store_si512(b.p + i, _mm512_setzero_si512());

  const Bf16Bits* k_rows[2][kTile];
  const Bf16Bits* v_rows[2][kTile];
  int now = 0;
  int keys = MinInt(kTile, t.end - t.begin);
  FindKeyRows(t, t.begin, keys, 32, k_rows[now], v_rows[now]);
  for (int32_t first = t.begin; first < t.end; first += keys, now ^= 1) {
    keys = MinInt(kTile, t.end - first);
    const int padded = RoundUp(keys, 32);
    const int next_keys = MinInt(kTile, t.end - first - keys);
    FindKeyRows(t, first + keys, next_keys, 32, k_rows[now ^ 1], v_rows[now ^ 1]);
    for (int i = 0; i < next_keys; ++i) Prefetch(k_rows[now ^ 1][i], t.head_dim);
    HiddenValues<Bf16Bits, kTile> hidden;
    hidden.SetAside(t, first, keys, v_rows[now]);
    PackValues(v_rows[now], padded, t.v_head_dim, b.v);
    for (int i = 0; i < next_keys; ++i) Prefetch(v_rows[now ^ 1][i], t.v_head_dim);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Scores(t, k_rows[now], padded, b.q + int64_t{chunk} * 8 * t.head_dim, b.k, b.s);
      for (int i = 0; i < padded / 16; ++i) {  // to rows of 16 keys
        __m512i x[16];
        for (int j = 0; j < 16; ++j) x[j] = _mm512_load_si512(b.s + i * kTileWords + 16 * j);
        Transpose16x16(x);
        for (int j = 0; j < 16; ++j) _mm512_store_si512(b.s + i * kTileWords + 16 * j, x[j]);
      }
      float* o = b.o + int64_t{chunk} * kChunk * t.v_head_dim;
      const int rows = MinInt(kChunk, t.num_rows - chunk * kChunk);
      for (int i = 0; i < rows; ++i) {
        const int row = chunk * kChunk + i;
        Softmax(t, row, first, padded, b.s + 16 * i, b.p + i * (kTile / 2), o + int64_t{i} * t.v_head_dim,
                b.sum + row * 16, b.max + row);
      }
      Values(b.v, padded, t.v_head_dim, b.p, o);
      if (hidden.count > 0) {
        AddHidden(hidden, t.rows + chunk * kChunk, rows, first, t.v_head_dim, b.p, o);
      }
    }
  }
  for (int row = 0; row < t.num_rows; ++row) {
    const AttentionTileRow& r = t.rows[row];
    const float factor =
        FinishAttentionRow(t, r, b.max[row], _mm512_reduce_add_ps(_mm512_load_ps(b.sum + row * 16)));
    const float* o = b.o + int64_t{row} * t.v_head_dim;
    for (int d = 0; d < t.v_head_dim; d += 16) {
      _mm512_storeu_ps(r.out + d, _mm512_mul_ps(_mm512_load_ps(o + d), _mm512_set1_ps(factor)));
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
int32_t RowTile(const AttentionShape&) { return kDecodeMaxTokens; }
int64_t ThreadScratchBytes(const AttentionShape& shape) {
  return ScratchWords(shape.head_dim, shape.v_head_dim) * 4;
}

}  // namespace

const AttentionKernel kAttentionDecodeAmx = {
    .run = &Run,
    .row_tile = &RowTile,
    .thread_scratch_bytes = &ThreadScratchBytes,
};

}  // namespace attest
