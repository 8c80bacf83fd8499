// The prefill and extend tile of the f32 attention kernels (AVX2, AVX-512, NEON), written once over a vector
// type.
//
// Rows (token x head of the GQA group) sit in vector lanes: a panel is kPanelVecs vectors of rows. Scores are
// kept transposed, S[key][row], so softmax needs no horizontal step: maximum, rescale and sum are vectors.
// Per key block (64 keys) K and V are widened once to f32 in scratch, whatever pages they lie in, and serve
// all panels of the tile; both products are broadcast-FMA loops that keep a 4 x 3 (AVX2) or 8 x 3 (others)
// block in registers. docs/kernels/attention_prefill_f32.md has the numbers.
//
// Include only from files compiled for the instruction set.
#pragma once

#include "kernels/cpu/attention_simd_pages.h"
#include "kernels/cpu/attention_simd_tile.h"
#include "kernels/cpu/attention_simd_vec.h"
#include "kernels/cpu/kernel_check.h"

namespace attest {
namespace {

// What is multiplied: float32 values. An operand word holds one value.
template <class Vec>
struct F32Arithmetic {
  using V = Vec;
  using F = typename V::F;
  static constexpr int kPack = 1;      // dims of a query or key row, or keys of a value row, in one word
  static constexpr int kGroup = 1;     // dims of a query row, or keys of a value row, that lie together
  static constexpr int kKeyGroup = 1;  // key rows that lie together
  static constexpr bool kHasProducts = false;  // Scores and Values of its own
  static F MulAdd(F a, F b, F c) { return V::Fma(a, b, c); }
  static F Weight(F t) { return Exp2<V>(t); }
  // x[i] holds dim i of a block of rows; word rows are `step` apart.
  using Block = typename V::Block;
  static void StoreQueryWords(const typename Block::T* x, float* to, int64_t step) {
    for (int i = 0; i < Block::kSize; ++i) Block::Store(to + i * step, x[i]);
  }
  // kKeyGroup rows.
  template <class KvT>
  static void PackKeyRows(const KvT* const* rows, int dim, float* packed) {
    for (int d = 0; d < dim; d += V::kLanes) V::Store(packed + d, V::Widen(rows[0] + d));
  }
  // kGroup rows.
  template <class KvT>
  static void PackValueRows(const KvT* const* rows, int dim, float* packed) {
    PackKeyRows(rows, dim, packed);
  }
  static void StoreWeights(const F* weights, float* to) { V::Store(to, weights[0]); }
  // The weight of a row for the i-th key of a group.
  static float WeightOf(const float* words, int lane, int /*i*/) { return words[lane]; }
};

// What bf16 arithmetics share: an operand word holds two values, the first in its low half.
struct Bf16Words {
  static constexpr int kPack = 2;
  static constexpr int kGroup = 2;
  static constexpr int kKeyGroup = 1;
  static constexpr bool kHasProducts = false;
  static constexpr bool kReadsBytes = false;  // packs fp8 and int8 rows too
  static float WeightOf(const float* words, int lane, int i) {
    Bf16Bits weights[2];
    __builtin_memcpy(weights, words + lane, sizeof(weights));
    return ValueOf(weights[i]);
  }
};

template <class A>
struct PrefillTile {
  using V = typename A::V;
  using F = typename V::F;
  using Block = typename V::Block;
  static constexpr int kBlock = Block::kSize;
  static constexpr int kPack = A::kPack;
  static constexpr int kGroup = A::kGroup;
  static constexpr int kGroupWords = kGroup / kPack;
  static constexpr int kPanelVecs = 3;
  static constexpr int kPanel = kPanelVecs * V::kLanes;      // rows of one panel: 12, 24 or 48
  static constexpr int kRows = V::kRegisters == 16 ? 4 : 8;  // keys or dims of one register block
  static constexpr int kKeyBlock = 64;
  static constexpr int kMaxPanels = kMaxTileRows / kPanel;
  static_assert(kMaxTileRows % kPanel == 0 && kKeyBlock % kRows == 0 && kRows % kPack == 0);
  static_assert(kPanel % kBlock == 0 && kBlock % kGroup == 0);
  static_assert(kRows % kGroup == 0 && kGroup % kPack == 0 && kRows % A::kKeyGroup == 0);

  // Per panel: rows in lanes.
  struct Panel {
    alignas(64) int32_t begin[kPanel];
    alignas(64) int32_t end[kPanel];
    alignas(64) float max[kPanel];
    alignas(64) float sum[kPanel];
    alignas(64) float slope[kPanel];
    alignas(64) float position[kPanel];
    int32_t min_begin, max_begin, min_end, max_end;  // over rows that see a key
  };
  struct Buffers {
    float* q;  // [panel][head_dim / kGroup][kPanel][kGroupWords] words
    float* o;  // [panel][v_head_dim][kPanel]
    float* s;  // [kKeyBlock][kPanel]: scores, then weights in words
    float* k;  // [kKeyBlock][head_dim / kPack] words
    float* v;  // [kKeyBlock / kGroup][v_head_dim][kGroupWords] words
    Panel* panels;
  };

  static int64_t ScratchBytes(int head_dim, int v_head_dim) {
    const int64_t floats = int64_t{kMaxTileRows} * (head_dim + v_head_dim) + int64_t{kKeyBlock} * kPanel +
                           int64_t{kKeyBlock} * (head_dim + v_head_dim);
    return floats * 4 + static_cast<int64_t>(sizeof(Panel)) * kMaxPanels;
  }
  static Buffers Carve(std::byte* scratch, int head_dim, int v_head_dim) {
    Buffers b;
    auto* at = reinterpret_cast<float*>(scratch);  // every piece is a multiple of 64 bytes
    b.q = at, at += int64_t{kMaxTileRows} * head_dim;
    b.o = at, at += int64_t{kMaxTileRows} * v_head_dim;
    b.s = at, at += int64_t{kKeyBlock} * kPanel;
    b.k = at, at += int64_t{kKeyBlock} * head_dim;
    b.v = at, at += int64_t{kKeyBlock} * v_head_dim;
    b.panels = reinterpret_cast<Panel*>(at);
    return b;
  }

  // Scores: out[r][lane] = sum over i < n of a[r * row_step + i] * b[i][lane], kRows keys.
  // Values: out[r][lane] += sum over i < n of a[i * step + r] * b[i][lane], kRows dims.
  // The sums of a block are added at its end: a chain of 64 keys rounds less than one over the whole context.
  // Not inlined: inside Run the offsets of the four rows are spilled and reloaded in the inner loop.
  [[gnu::noinline]] static void Scores(const float* a, int64_t row_step, int n, const float* b, float* out) {
    F c[kRows][kPanelVecs];
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) c[r][x] = V::Zero();
    }
    const float* rows[kRows];
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) rows[r] = a + r * row_step;
    for (int64_t i = 0; i < n; ++i, b += kPanel) {
      F y[kPanelVecs];
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) y[x] = V::Load(b + x * V::kLanes);
      ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
        const F w = V::Broadcast(rows[r] + i);
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) c[r][x] = A::MulAdd(w, y[x], c[r][x]);
      }
    }
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        V::Store(out + r * kPanel + x * V::kLanes, c[r][x]);
      }
    }
  }
  [[gnu::noinline]] static void Values(const float* a, int64_t step, int n, const float* b, float* out) {
    F c[kRows][kPanelVecs];
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) c[r][x] = V::Zero();
    }
    for (int i = 0; i < n; ++i, a += step, b += kPanel) {
      F y[kPanelVecs];
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) y[x] = V::Load(b + x * V::kLanes);
      ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
        const F w = V::Broadcast(a + r);
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) c[r][x] = A::MulAdd(w, y[x], c[r][x]);
      }
    }
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        float* at = out + r * kPanel + x * V::kLanes;
        V::Store(at, V::Add(V::Load(at), c[r][x]));
      }
    }
  }

  // Rows past the tile's last are copies of it that see no key, and their results are not stored.
  static void PackQueries(const AttentionTile& t, int panel, float* q, Panel* p) {
    p->min_begin = p->min_end = 0x7fffffff;
    p->max_begin = p->max_end = 0;
    const float* rows[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) {
      const int row = panel * kPanel + lane;
      const bool exists = row < t.num_rows;
      const AttentionTileRow& r = t.rows[exists ? row : t.num_rows - 1];
      rows[lane] = r.q;
      p->max[lane] = kNoMax;
      p->sum[lane] = 0.0f;
      p->begin[lane] = exists ? r.begin : 0;
      p->end[lane] = exists ? r.end : 0;
      p->slope[lane] = r.slope;
      p->position[lane] = static_cast<float>(r.position);
      if (exists && r.begin < r.end) {
        p->min_begin = MinInt(p->min_begin, r.begin);
        p->max_begin = MaxInt(p->max_begin, r.begin);
        p->min_end = MinInt(p->min_end, r.end);
        p->max_end = MaxInt(p->max_end, r.end);
      } else {
        p->max_begin = 0x7fffffff;  // a row sees nothing: every block of the panel is an edge block
      }
    }
    for (int lane = 0; lane < kPanel; lane += kBlock) {  // exact: a panel is whole blocks
      for (int d = 0; d < t.head_dim; d += kBlock) {     // exact: so is head_dim
        typename Block::T x[kBlock];
        for (int i = 0; i < kBlock; ++i) x[i] = Block::Scale(Block::Load(rows[lane + i] + d), t.q_sign);
        Block::Transpose(x);
        A::StoreQueryWords(x, q + d / kPack * kPanel + lane * kGroupWords, kPanel);
      }
    }
  }

  template <bool kTransform>
  static void Softmax(const AttentionTile& t, Panel* p, int32_t first_key, int keys, float* s, float* o) {
    const bool edge = first_key < p->max_begin || first_key + keys > p->min_end;
    F top[kPanelVecs];
    ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) top[x] = V::Set1(kMinusInf);
    if (kTransform || edge) {
      for (int key = 0; key < keys; ++key) {
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
          float* at = s + key * kPanel + x * V::kLanes;
          F y = V::Load(at);
          if constexpr (kTransform) {
            y = V::Mul(y, V::Set1(t.score_scale));
            if (t.softcap_log2 > 0.0f) y = V::Mul(V::Set1(t.softcap_log2), Tanh<V>(y));
            if (t.has_alibi) {
              const F distance =
                  V::Sub(V::Set1(static_cast<float>(first_key + key)), V::Load(p->position + x * V::kLanes));
              y = V::Nmadd(V::Load(p->slope + x * V::kLanes), V::Abs(distance), y);
            }
          }
          y = V::MaskKey(y, first_key + key, p->begin + x * V::kLanes, p->end + x * V::kLanes);
          V::Store(at, y);
          top[x] = V::Max(top[x], y);
        }
      }
    } else {
      for (int key = 0; key < keys; ++key) {
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
          top[x] = V::Max(top[x], V::Load(s + key * kPanel + x * V::kLanes));
        }
      }
    }
    // The maximum moves only when it grew by more than 8 (weights stay below 2^8): a rescale of the output
    // costs as much as 1/64 of a product and is almost never needed after the first block.
    const F scale = V::Set1(kTransform ? 1.0f : t.score_scale);
    F m[kPanelVecs];
    F l[kPanelVecs];
    bool grew = false;
    ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
      top[x] = V::Mul(top[x], scale);
      m[x] = V::Load(p->max + x * V::kLanes);
      l[x] = V::Load(p->sum + x * V::kLanes);
      grew = grew || V::AnyGreater(top[x], V::Add(m[x], V::Set1(8.0f)));
    }
    if (grew) {
      F factor[kPanelVecs];
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        const F raised = V::SelectLess(V::Add(m[x], V::Set1(8.0f)), top[x], top[x], m[x]);
        factor[x] = Exp2<V>(V::Sub(m[x], raised));
        m[x] = raised;
        l[x] = V::Mul(l[x], factor[x]);
        V::Store(p->max + x * V::kLanes, m[x]);
      }
      for (int d = 0; d < t.v_head_dim; ++d) {
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
          float* at = o + d * kPanel + x * V::kLanes;
          V::Store(at, V::Mul(V::Load(at), factor[x]));
        }
      }
    }
    for (int key = 0; key < keys; key += kGroup) {  // exact: keys is a multiple of kRows, and kRows of kGroup
      F weights[kPanelVecs][kGroup];
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        ATTEST_UNROLL for (int i = 0; i < kGroup; ++i) {
          weights[x][i] = A::Weight(V::Msub(V::Load(s + (key + i) * kPanel + x * V::kLanes), scale, m[x]));
          l[x] = V::Add(l[x], weights[x][i]);
        }
        if constexpr (kGroupWords == 1) {
          A::StoreWeights(weights[x], s + key / kPack * kPanel + x * V::kLanes);
        }
      }
      // Several words lie over scores of other rows: they wait until all have been read.
      if constexpr (kGroupWords > 1) {
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
          A::StoreWeights(weights[x], s + key / kPack * kPanel + x * V::kLanes * kGroupWords);
        }
      }
    }
    ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) V::Store(p->sum + x * V::kLanes, l[x]);
  }

  // Adds the V rows that were set aside to the rows that see their keys. `s` holds the weights of keys from
  // `from` on.
  template <class KvT>
  [[gnu::noinline]] static void AddHidden(const HiddenValues<KvT, kKeyBlock>& hidden, const Panel& p,
                                          int32_t first, int from, int to, int v_head_dim, const float* s,
                                          float* o) {
    for (int i = 0; i < hidden.count; ++i) {
      const int key = hidden.keys[i];
      if (key < from || key >= to) continue;
      const float* words = s + (key - from) / kGroup * kGroupWords * kPanel;
      for (int lane = 0; lane < kPanel; ++lane) {
        if (first + key < p.begin[lane] || first + key >= p.end[lane]) continue;
        const float weight = A::WeightOf(words, lane, (key - from) % kGroup);
        for (int d = 0; d < v_head_dim; ++d) o[d * kPanel + lane] += weight * ValueOf(hidden.rows[i][d]);
      }
    }
  }

  static void Finish(const AttentionTile& t, int panel, const float* o, const Panel& p) {
    const int rows = MinInt(kPanel, t.num_rows - panel * kPanel);
    for (int first = 0; first < rows; first += kBlock) {  // the last block may be partly empty
      const int count = MinInt(kBlock, rows - first);
      const AttentionTileRow* r = t.rows + panel * kPanel + first;
      float factor[kBlock];
      for (int i = 0; i < count; ++i)
        factor[i] = FinishAttentionRow(t, r[i], p.max[first + i], p.sum[first + i]);
      for (int d = 0; d < t.v_head_dim; d += kBlock) {
        typename Block::T x[kBlock];
        for (int i = 0; i < kBlock; ++i) x[i] = Block::Load(o + (d + i) * kPanel + first);
        Block::Transpose(x);
        for (int i = 0; i < count; ++i) Block::Store(r[i].out + d, Block::Scale(x[i], factor[i]));
      }
    }
  }

  template <class KvT, bool kTransform>
  static void Run(const AttentionTile& t, std::byte* scratch) {
    ATTEST_KERNEL_CHECK(t.head_dim % (kPack * V::kLanes), ==, 0);  // rows are packed in whole vectors
    ATTEST_KERNEL_CHECK(t.v_head_dim % (kPack * V::kLanes), ==, 0);
    ATTEST_KERNEL_CHECK(t.v_head_dim % kRows, ==, 0);  // Values steps by kRows dims
    const int words = t.head_dim / kPack;
    const Buffers b = Carve(scratch, t.head_dim, t.v_head_dim);
    const int panels = (t.num_rows + kPanel - 1) / kPanel;  // rounded up: the last panel may be partly empty
    for (int panel = 0; panel < panels; ++panel) {
      PackQueries(t, panel, b.q + int64_t{panel} * words * kPanel, b.panels + panel);
      float* o = b.o + int64_t{panel} * t.v_head_dim * kPanel;
      for (int64_t i = 0; i < int64_t{t.v_head_dim} * kPanel; i += V::kLanes) V::Store(o + i, V::Zero());
    }
    for (int32_t first = t.begin; first < t.end; first += kKeyBlock) {
      const int keys = MinInt(kKeyBlock, t.end - first);
      const int padded = RoundUp(keys, kRows);
      const KvT* k_rows[kKeyBlock];
      const KvT* v_rows[kKeyBlock];
      FindKeyRows(t, first, keys, kRows, k_rows, v_rows);
      HiddenValues<KvT, kKeyBlock> hidden;
      hidden.SetAside(t, first, keys, v_rows);
      for (int key = 0; key < padded; key += A::kKeyGroup) {
        A::PackKeyRows(k_rows + key, t.head_dim, b.k + int64_t{key} * words);
      }
      for (int key = 0; key < padded; key += kGroup) {
        A::PackValueRows(v_rows + key, t.v_head_dim, b.v + int64_t{key / kPack} * t.v_head_dim);
      }
      for (int panel = 0; panel < panels; ++panel) {
        Panel* p = b.panels + panel;
        if (first >= p->max_end || first + keys <= p->min_begin) continue;  // no row sees the block
        const float* q = b.q + int64_t{panel} * words * kPanel;
        float* o = b.o + int64_t{panel} * t.v_head_dim * kPanel;
        // Of the block, only the keys that the panel's rows see: a causal diagonal would waste half a block.
        const int from = MaxInt(0, p->min_begin - first) / kRows * kRows;  // rounded down
        const int to = MinInt(padded, RoundUp(p->max_end - first, kRows));
        for (int key = from; key < to; key += kRows) {
          if constexpr (A::kHasProducts) {
            A::Scores(b.k + int64_t{key} * words, words, q, b.s + key * kPanel);
          } else {
            Scores(b.k + int64_t{key} * words, words, words, q, b.s + key * kPanel);
          }
        }
        Softmax<kTransform>(t, p, first + from, to - from, b.s + from * kPanel, o);
        const float* values =
            b.v + int64_t{from / kPack} * t.v_head_dim;  // exact: kRows is a multiple of kGroup
        const float* weights = b.s + from * kPanel;
        for (int d = 0; d < t.v_head_dim; d += kRows) {
          if constexpr (A::kHasProducts) {
            A::Values(values + d * kGroupWords, t.v_head_dim, to - from, weights, o + int64_t{d} * kPanel);
          } else {
            Values(values + d, t.v_head_dim, (to - from) / kPack, weights, o + int64_t{d} * kPanel);
          }
        }
        if (hidden.count > 0) AddHidden(hidden, *p, first, from, to, t.v_head_dim, weights, o);
      }
    }
    for (int panel = 0; panel < panels; ++panel) {
      Finish(t, panel, b.o + int64_t{panel} * t.v_head_dim * kPanel, b.panels[panel]);
    }
  }
};

// The launch functions of a kernel with f32 products over vector type V.
template <class V>
struct PrefillKernel {
  using Tile = PrefillTile<F32Arithmetic<V>>;

  static void Run(const AttentionParams& params, const AttentionWorkItem& item,
                  const AttentionScratch& scratch) {
    AttentionTile tile;
    const int64_t rows = AttentionItemRows(params, item);
    for (int64_t row = 0; row < rows; row += kMaxTileRows) {
      BuildAttentionTile(params, item, scratch, row, static_cast<int>(Min64(rows - row, kMaxTileRows)),
                         &tile);
      std::byte* bytes = AttentionThreadScratch(scratch);
      WithKvType(tile.kv_dtype, [&]<class KvT>(const KvT*) {
        tile.transforms_scores ? Tile::template Run<KvT, true>(tile, bytes)
                               : Tile::template Run<KvT, false>(tile, bytes);
      });
    }
  }
  // Tokens whose rows fill the tile; a group above 96 heads takes several tiles for one token.
  static int32_t RowTile(const AttentionShape& shape) { return AttentionRowTile(shape); }
  static int64_t ThreadScratchBytes(const AttentionShape& shape) {
    return Tile::ScratchBytes(shape.head_dim, shape.v_head_dim);
  }
};

// The same of a kernel whose arithmetic A packs bf16 pairs.
template <class A>
struct Bf16PrefillKernel {
  using Tile = PrefillTile<A>;

  static void Run(const AttentionParams& params, const AttentionWorkItem& item,
                  const AttentionScratch& scratch) {
    AttentionTile tile;
    const int64_t rows = AttentionItemRows(params, item);
    for (int64_t row = 0; row < rows; row += kMaxTileRows) {
      BuildAttentionTile(params, item, scratch, row, static_cast<int>(Min64(rows - row, kMaxTileRows)),
                         &tile);
      std::byte* bytes = AttentionThreadScratch(scratch);
      const auto run = [&]<class KvT>(const KvT*) {
        tile.transforms_scores ? Tile::template Run<KvT, true>(tile, bytes)
                               : Tile::template Run<KvT, false>(tile, bytes);
      };
      if constexpr (A::kReadsBytes) {
        WithBf16KvType(tile.kv_dtype, run);
      } else {
        ATTEST_KERNEL_CHECK(static_cast<int>(tile.kv_dtype), ==, static_cast<int>(DType::kBF16));
        run(static_cast<const Bf16Bits*>(nullptr));
      }
    }
  }
  static int32_t RowTile(const AttentionShape& shape) { return AttentionRowTile(shape); }
  static int64_t ThreadScratchBytes(const AttentionShape& shape) {
    return Tile::ScratchBytes(shape.head_dim, shape.v_head_dim);
  }
};

}  // namespace
}  // namespace attest
