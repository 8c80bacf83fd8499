// The prefill and extend tile of the f32 attention kernels (AVX2, AVX-512), written once over a vector type.
//
// Rows (token x head of the GQA group) sit in vector lanes: a panel is kPanelVecs vectors of rows. Scores are
// kept transposed, S[key][row], so softmax needs no horizontal step: maximum, rescale and sum are vectors.
// Per key block (64 keys) K and V are widened once to f32 in scratch, whatever pages they lie in, and serve
// all panels of the tile; both products are broadcast-FMA loops that keep a 4 x 3 (AVX2) or 8 x 3 (AVX-512)
// block in registers. docs/kernels/attention_prefill_f32.md has the numbers.
//
// Include only from files compiled for the instruction set.
#pragma once

#include "kernels/cpu/attention_simd_tile.h"
#include "kernels/cpu/attention_simd_vec.h"
#include "kernels/cpu/kernel_check.h"

namespace attest {
namespace {

// Copies `keys` rows of `dim` values from the pages to dense f32 rows, then zero rows up to `padded`: the
// products may then run over whole register blocks, and slots at or past `keys` are never read.
template <class V, class KvT>
void PackRows(const KvT* data, const int32_t* table, int32_t block_size, int64_t block_stride,
              int64_t slot_stride, int32_t first_key, int keys, int padded, int dim, float* packed) {
  int done = 0;
  while (done < keys) {
    const int32_t key = first_key + done;
    const int32_t block = key / block_size;  // rounded down on purpose
    const int32_t slot = key - block * block_size;
    const int run = MinInt(keys - done, block_size - slot);
    const KvT* row = data + table[block] * block_stride + slot * slot_stride;
    for (int i = 0; i < run; ++i, row += slot_stride, packed += dim) {
      for (int d = 0; d < dim; d += V::kLanes) V::Store(packed + d, V::Widen(row + d));
    }
    done += run;
  }
  for (int64_t i = 0; i < int64_t{padded - keys} * dim; i += V::kLanes) V::Store(packed + i, V::Zero());
}

template <class V>
struct PrefillTile {
  using F = typename V::F;
  static constexpr int kPanelVecs = 3;
  static constexpr int kPanel = kPanelVecs * V::kLanes;      // rows of one panel: 24 or 48
  static constexpr int kRows = V::kRegisters == 16 ? 4 : 8;  // keys or dims of one register block
  static constexpr int kKeyBlock = 64;
  static constexpr int kMaxPanels = kMaxTileRows / kPanel;
  static_assert(kMaxTileRows % kPanel == 0 && kKeyBlock % kRows == 0);

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
    float* q;  // [panel][head_dim][kPanel]
    float* o;  // [panel][v_head_dim][kPanel]
    float* s;  // [kKeyBlock][kPanel]
    float* k;  // [kKeyBlock][head_dim]
    float* v;  // [kKeyBlock][v_head_dim]
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

  // out[r][lane] (+)= sum over i < n of a[r * row_step + i * step] * b[i][lane], lanes of one panel.
  template <bool kAccumulate>
  static void Product(const float* a, int64_t row_step, int64_t step, int n, const float* b, float* out) {
    F c[kRows][kPanelVecs];
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        c[r][x] = kAccumulate ? V::Load(out + r * kPanel + x * V::kLanes) : V::Zero();
      }
    }
    for (int i = 0; i < n; ++i, a += step, b += kPanel) {
      F y[kPanelVecs];
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) y[x] = V::Load(b + x * V::kLanes);
      ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
        const F w = V::Broadcast(a + r * row_step);
        ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) c[r][x] = V::Fma(w, y[x], c[r][x]);
      }
    }
    ATTEST_UNROLL for (int r = 0; r < kRows; ++r) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        V::Store(out + r * kPanel + x * V::kLanes, c[r][x]);
      }
    }
  }

  static void PackQueries(const AttentionTile& t, int panel, float* q, Panel* p) {
    p->min_begin = p->min_end = 0x7fffffff;
    p->max_begin = p->max_end = 0;
    for (int lane = 0; lane < kPanel; ++lane) {
      const int row = panel * kPanel + lane;
      p->max[lane] = kNoMax;
      p->sum[lane] = 0.0f;
      if (row >= t.num_rows) {  // lanes past the tile see no key and store nothing
        p->begin[lane] = p->end[lane] = 0;
        p->slope[lane] = p->position[lane] = 0.0f;
        for (int d = 0; d < t.head_dim; ++d) q[d * kPanel + lane] = 0.0f;
        continue;
      }
      const AttentionTileRow& r = t.rows[row];
      p->begin[lane] = r.begin;
      p->end[lane] = r.end;
      p->slope[lane] = r.slope;
      p->position[lane] = static_cast<float>(r.position);
      if (r.begin < r.end) {
        p->min_begin = MinInt(p->min_begin, r.begin);
        p->max_begin = MaxInt(p->max_begin, r.begin);
        p->min_end = MinInt(p->min_end, r.end);
        p->max_end = MaxInt(p->max_end, r.end);
      } else {  // sees nothing: every block of the panel is an edge block
        p->max_begin = 0x7fffffff;
      }
      for (int d = 0; d < t.head_dim; ++d) q[d * kPanel + lane] = r.q[d] * t.q_factor;
    }
    if (panel * kPanel + kPanel > t.num_rows) p->max_begin = 0x7fffffff;
  }

  // Scores of one block become weights in place; the panel's maximum, sum and output are brought up to date.
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
    F m[kPanelVecs];
    F l[kPanelVecs];
    bool grew = false;
    ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
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
    for (int key = 0; key < keys; ++key) {
      ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) {
        float* at = s + key * kPanel + x * V::kLanes;
        const F weight = Exp2<V>(V::Sub(V::Load(at), m[x]));
        l[x] = V::Add(l[x], weight);
        V::Store(at, weight);
      }
    }
    ATTEST_UNROLL for (int x = 0; x < kPanelVecs; ++x) V::Store(p->sum + x * V::kLanes, l[x]);
  }

  static void Finish(const AttentionTile& t, int panel, const float* o, const Panel& p) {
    for (int lane = 0; lane < kPanel && panel * kPanel + lane < t.num_rows; ++lane) {
      const AttentionTileRow& r = t.rows[panel * kPanel + lane];
      const float factor = FinishAttentionRow(t, r, p.max[lane], p.sum[lane]);
      for (int d = 0; d < t.v_head_dim; ++d) r.out[d] = o[d * kPanel + lane] * factor;
    }
  }

  template <class KvT, bool kTransform>
  static void Run(const AttentionTile& t, std::byte* scratch) {
    ATTEST_KERNEL_CHECK(t.head_dim % V::kLanes, ==, 0);  // PackRows and the products run over whole vectors
    ATTEST_KERNEL_CHECK(t.v_head_dim % V::kLanes, ==, 0);
    const Buffers b = Carve(scratch, t.head_dim, t.v_head_dim);
    const int panels = (t.num_rows + kPanel - 1) / kPanel;  // rounded up: the last panel may be partly empty
    for (int panel = 0; panel < panels; ++panel) {
      PackQueries(t, panel, b.q + int64_t{panel} * t.head_dim * kPanel, b.panels + panel);
      float* o = b.o + int64_t{panel} * t.v_head_dim * kPanel;
      for (int64_t i = 0; i < int64_t{t.v_head_dim} * kPanel; i += V::kLanes) V::Store(o + i, V::Zero());
    }
    for (int32_t first = t.begin; first < t.end; first += kKeyBlock) {
      const int keys = MinInt(kKeyBlock, t.end - first);
      const int padded = RoundUp(keys, kRows);
      PackRows<V>(static_cast<const KvT*>(t.k), t.table, t.block_size, t.k_block_stride, t.k_slot_stride,
                  first, keys, padded, t.head_dim, b.k);
      PackRows<V>(static_cast<const KvT*>(t.v), t.table, t.block_size, t.v_block_stride, t.v_slot_stride,
                  first, keys, padded, t.v_head_dim, b.v);
      for (int panel = 0; panel < panels; ++panel) {
        Panel* p = b.panels + panel;
        if (first >= p->max_end || first + keys <= p->min_begin) continue;  // no row sees the block
        const float* q = b.q + int64_t{panel} * t.head_dim * kPanel;
        float* o = b.o + int64_t{panel} * t.v_head_dim * kPanel;
        for (int key = 0; key < padded; key += kRows) {
          Product<false>(b.k + int64_t{key} * t.head_dim, t.head_dim, 1, t.head_dim, q, b.s + key * kPanel);
        }
        Softmax<kTransform>(t, p, first, padded, b.s, o);
        for (int d = 0; d < t.v_head_dim; d += kRows) {
          Product<true>(b.v + d, 1, t.v_head_dim, padded, b.s, o + int64_t{d} * kPanel);
        }
      }
    }
    for (int panel = 0; panel < panels; ++panel) {
      Finish(t, panel, b.o + int64_t{panel} * t.v_head_dim * kPanel, b.panels[panel]);
    }
  }
};

// The launch functions of a kernel over vector type V.
template <class V>
struct PrefillKernel {
  using Tile = PrefillTile<V>;

  static void Run(const AttentionParams& params, const AttentionWorkItem& item,
                  const AttentionScratch& scratch) {
    AttentionTile tile;
    const int64_t rows = AttentionItemRows(params, item);
    for (int64_t row = 0; row < rows; row += kMaxTileRows) {
      BuildAttentionTile(params, item, scratch, row, static_cast<int>(Min64(rows - row, kMaxTileRows)),
                         &tile);
      std::byte* bytes = AttentionThreadScratch(scratch);
      const bool transform = tile.softcap_log2 > 0.0f || tile.has_alibi;
      if (tile.kv_is_bf16) {
        transform ? Tile::template Run<Bf16Bits, true>(tile, bytes)
                  : Tile::template Run<Bf16Bits, false>(tile, bytes);
      } else {
        transform ? Tile::template Run<float, true>(tile, bytes)
                  : Tile::template Run<float, false>(tile, bytes);
      }
    }
  }
  // Tokens whose rows fill the tile; a group above 96 heads takes several tiles for one token.
  static int32_t RowTile(const AttentionShape& shape) {
    return MaxInt(1, kMaxTileRows / (shape.q_heads / shape.kv_heads));  // rounded down: rows are bounded
  }
  static int64_t ThreadScratchBytes(const AttentionShape& shape) {
    return Tile::ScratchBytes(shape.head_dim, shape.v_head_dim);
  }
};

}  // namespace
}  // namespace attest
