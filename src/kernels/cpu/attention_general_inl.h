// The body of the general kernel. Included once by each attention_general*.cc after ATTEST_VECTOR_FLOATS is
// set; everything lies in an unnamed namespace so that code built for one instruction set stays in its
// object.
//
// One item: the query rows (tokens x heads of the group) are converted to f32 once; keys are taken in tiles
// of 32, converted to f32 once per tile and shared by all rows. Softmax is online: a running maximum and sum
// per row, the output rescaled when the maximum grows. Per row only the keys it sees are scored and summed,
// so a NaN in a key that a row does not see cannot reach it.

#include <math.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/attention_params.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/kernel_check.h"

namespace attest {
namespace {

constexpr int kVec = ATTEST_VECTOR_FLOATS;
constexpr int kKeyTile = 32;
static_assert(kKeyTile % kVec == 0, "a tile of scores is whole vectors");

using VecF = float __attribute__((vector_size(kVec * 4)));
using VecI = int32_t __attribute__((vector_size(kVec * 4)));

[[gnu::always_inline]] inline VecF Load(const float* p) {
  VecF v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
[[gnu::always_inline]] inline void Store(float* p, VecF v) { __builtin_memcpy(p, &v, sizeof(v)); }
[[gnu::always_inline]] inline VecF Splat(float x) { return x - VecF{}; }
[[gnu::always_inline]] inline float Sum(VecF v) {
  float part[kVec];
  Store(part, v);
  for (int width = kVec / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}

constexpr float kInf = std::numeric_limits<float>::infinity();

// e^x for x <= 0, within 2 ulp (Cephes' polynomial); below -87.33 the result is 0; NaN stays NaN.
[[gnu::always_inline]] inline VecF Exp(VecF x) {
  const VecF clamped = x < -87.33654f ? Splat(-87.33654f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const VecF shifted = clamped * 1.44269504088896341f + kRound;
  const VecF n = shifted - kRound;
  const VecF r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  VecF y = Splat(1.9875691500e-4f);
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  VecI bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  const VecI exponent = (bits << 23) + 0x3f800000;
  VecF power;
  __builtin_memcpy(&power, &exponent, sizeof(power));
  y = y * power;
  y = x < -87.33654f ? VecF{} : y;
  return x == x ? y : x;
}

constexpr int PadToVec(int n) { return (n + kVec - 1) / kVec * kVec; }

// ---- stored elements -> f32 ----

float DecodeF8(uint8_t bits, bool e4m3) {
  const int fraction_bits = e4m3 ? 3 : 2;
  const int bias = e4m3 ? 7 : 15;
  const int magnitude = bits & 0x7f;
  const int exponent = magnitude >> fraction_bits;
  const int fraction = magnitude & ((1 << fraction_bits) - 1);
  const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
  if (e4m3 && magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (!e4m3 && exponent == 31) {
    return fraction == 0 ? sign * kInf : std::numeric_limits<float>::quiet_NaN();
  }
  const float steps = static_cast<float>(exponent == 0 ? fraction : fraction + (1 << fraction_bits));
  return sign * ::ldexpf(steps, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
}

struct F8Tables {
  float e4m3[256];
  float e5m2[256];
  F8Tables() {
    for (int i = 0; i < 256; ++i) {
      e4m3[i] = DecodeF8(static_cast<uint8_t>(i), true);
      e5m2[i] = DecodeF8(static_cast<uint8_t>(i), false);
    }
  }
};
const F8Tables& Tables() {
  static const F8Tables tables;
  return tables;
}

// n elements, then zeros up to a whole vector: the padding never changes a dot product.
void ToFloats(const std::byte* from, DType dtype, int n, float* to) {
  switch (dtype) {
    case DType::kF32:
      __builtin_memcpy(to, from, static_cast<size_t>(n) * 4);
      break;
    case DType::kBF16: {
      const auto* source = reinterpret_cast<const uint16_t*>(from);
      auto* bits = reinterpret_cast<uint32_t*>(to);
      for (int i = 0; i < n; ++i) bits[i] = static_cast<uint32_t>(source[i]) << 16;
      break;
    }
    case DType::kF16: {
      // Moving the fields up and multiplying by 2^112 rebases the exponent, subnormals included.
      const auto* source = reinterpret_cast<const uint16_t*>(from);
      for (int i = 0; i < n; ++i) {
        const uint32_t half = source[i];
        const uint32_t fields = (half & 0x7fffu) << 13;
        float magnitude;
        __builtin_memcpy(&magnitude, &fields, 4);
        magnitude *= 0x1p112f;
        uint32_t bits;
        __builtin_memcpy(&bits, &magnitude, 4);
        if ((half & 0x7c00u) == 0x7c00u) bits = fields | 0x7f800000u;
        bits |= (half & 0x8000u) << 16;
        __builtin_memcpy(to + i, &bits, 4);
      }
      break;
    }
    case DType::kF8E4M3:
    case DType::kF8E5M2: {
      const float* table = dtype == DType::kF8E4M3 ? Tables().e4m3 : Tables().e5m2;
      const auto* source = reinterpret_cast<const uint8_t*>(from);
      for (int i = 0; i < n; ++i) to[i] = table[source[i]];
      break;
    }
    case DType::kI8: {
      const auto* source = reinterpret_cast<const int8_t*>(from);
      for (int i = 0; i < n; ++i) to[i] = static_cast<float>(source[i]);
      break;
    }
    default:
      ATTEST_KERNEL_CHECK(static_cast<int>(dtype), <, 0);  // a plain element type
  }
  for (int i = n; i < PadToVec(n); ++i) to[i] = 0.0f;
}

void FromFloats(const float* from, DType dtype, int n, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      __builtin_memcpy(to, from, static_cast<size_t>(n) * 4);
      return;
    case DType::kBF16:
      for (int i = 0; i < n; ++i) {
        const uint16_t bits = ToBf16(from[i]).bits;
        __builtin_memcpy(to + 2 * i, &bits, 2);
      }
      return;
    case DType::kF16:
      for (int i = 0; i < n; ++i) {
        const uint16_t bits = ToF16(from[i]).bits;
        __builtin_memcpy(to + 2 * i, &bits, 2);
      }
      return;
    default:
      ATTEST_KERNEL_CHECK(static_cast<int>(dtype), <, 0);  // f32, bf16 or f16 output
  }
}

// The address of one key's K (or V) row. All products are 64-bit.
struct KeyRows {
  const std::byte* base = nullptr;
  const int32_t* block_ids = nullptr;  // nullptr: contiguous
  int64_t block_stride = 0, slot_stride = 0;
  int block_size = 1;
  int element_bytes = 1;
  [[nodiscard]] const std::byte* At(int32_t key) const {
    if (block_ids == nullptr) return base + key * slot_stride * element_bytes;
    return base +
           (block_ids[key / block_size] * block_stride + (key % block_size) * slot_stride) * element_bytes;
  }
};

KeyRows RowsOf(const AttentionParams& params, const AttentionWorkItem& item, bool value) {
  KeyRows rows;
  if (params.paged != nullptr) {
    const PagedKv& kv = *params.paged;
    const KvPages& pages = value ? kv.v : kv.k;
    rows.element_bytes = BlockBytes(kv.dtype);
    rows.base = AttentionParams::KvHead(pages.data, item.kv_head * pages.head_stride * rows.element_bytes);
    rows.block_ids = params.block_tables.row(item.seq);
    rows.block_stride = pages.block_stride;
    rows.slot_stride = pages.slot_stride;
    rows.block_size = kv.block_size;
    return rows;
  }
  const ContiguousKv& kv = *params.contiguous;
  const int64_t token_stride = value ? kv.v_token_stride : kv.k_token_stride;
  const int64_t head_stride = value ? kv.v_head_stride : kv.k_head_stride;
  rows.element_bytes = BlockBytes(kv.dtype);
  rows.base = AttentionParams::KvHead(
      value ? kv.v : kv.k,
      (kv.k_begin[static_cast<size_t>(item.seq)] * token_stride + item.kv_head * head_stride) *
          rows.element_bytes);
  rows.slot_stride = token_stride;
  return rows;
}

// ---- inner loops ----

// scores[r * kKeyTile + k] = <q_r, k_k> for kRows query rows and keys [begin, end).
template <int kRows>
void Dots(const float* q, const float* keys, int dim_padded, int begin, int end, float* scores) {
  for (int k = begin; k < end; ++k) {
    VecF sum[kRows] = {};
    const float* key = keys + k * dim_padded;
    for (int d = 0; d < dim_padded; d += kVec) {
      const VecF kd = Load(key + d);
      for (int r = 0; r < kRows; ++r) sum[r] += Load(q + r * dim_padded + d) * kd;
    }
    for (int r = 0; r < kRows; ++r) scores[r * kKeyTile + k] = Sum(sum[r]);
  }
}

// acc_r += sum over keys [begin, end) of weight[r][k] * v_k. The vectors of a row are taken four at a time,
// then one at a time, so every count up to dim_padded / kVec is covered exactly.
template <int kRows, int kVecs>
void AccumulateColumns(const float* weights, const float* values, int dim_padded, int begin, int end, int d,
                       float* acc) {
  VecF sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Load(acc + r * dim_padded + d + v * kVec);
  }
  for (int k = begin; k < end; ++k) {
    const float* value = values + k * dim_padded + d;
    for (int r = 0; r < kRows; ++r) {
      const VecF weight = Splat(weights[r * kKeyTile + k]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] += weight * Load(value + v * kVec);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) Store(acc + r * dim_padded + d + v * kVec, sum[r][v]);
  }
}

template <int kRows>
void Accumulate(const float* weights, const float* values, int dim_padded, int begin, int end, float* acc) {
  constexpr int kVecs = kRows == 1 ? 4 : 2;
  int d = 0;
  for (; d + kVecs * kVec <= dim_padded; d += kVecs * kVec) {
    AccumulateColumns<kRows, kVecs>(weights, values, dim_padded, begin, end, d, acc);
  }
  for (; d < dim_padded; d += kVec) {
    AccumulateColumns<kRows, 1>(weights, values, dim_padded, begin, end, d, acc);
  }
  ATTEST_KERNEL_CHECK(d, ==, dim_padded);  // exact: dim_padded is a multiple of kVec, so no dim is left out
}

// ---- one item ----

// The running softmax of one query row.
struct RowState {
  float max = -kInf;
  float sum = 0.0f;
};

struct Tile {  // one block of query rows against one tile of keys
  const AttentionParams* params = nullptr;
  int key = 0;  // the first key of the tile
};

// Turns the dot products of keys [begin, end) of one row into weights, and rescales the row's accumulator
// when its maximum grows. Weights outside [begin, end) are not touched.
void SoftmaxTile(const Tile& tile, int head, int32_t p, float scale, int begin, int end, int dim_padded,
                 float* scores, RowState& state, float* acc) {
  const AttentionParams& params = *tile.params;
  for (int k = begin; k < end; ++k) scores[k] *= scale;
  if (params.softcap >
      0.0f) {  // before the bias and before the mask; tanhf saturates where exp forms overflow
    for (int k = begin; k < end; ++k) scores[k] = params.softcap * ::tanhf(scores[k] / params.softcap);
  }
  if (params.alibi_slopes != nullptr) {
    const float slope = params.alibi_slopes[head];
    for (int k = begin; k < end; ++k) {
      const int distance = tile.key + k - p;
      scores[k] -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
  float max = state.max;
  for (int k = begin; k < end; ++k) {
    if (!(scores[k] <= max)) max = scores[k];  // a NaN score becomes the maximum and stays visible
  }
  if (max == -kInf) {  // nothing but -inf so far: no weight, and -inf - -inf is never formed
    for (int k = begin; k < end; ++k) scores[k] = 0.0f;
    return;
  }
  float block[kKeyTile];
  for (int k = 0; k < kKeyTile; ++k) block[k] = k >= begin && k < end ? scores[k] - max : -kInf;
  VecF sums = {};
  for (int k = 0; k < kKeyTile; k += kVec) {
    const VecF weight = Exp(Load(block + k));
    sums += weight;
    Store(block + k, weight);
  }
  for (int k = begin; k < end; ++k) scores[k] = block[k];
  if (max != state.max) {
    const float rescale = state.max == -kInf ? 0.0f : ::expf(state.max - max);
    for (int d = 0; d < dim_padded; d += kVec) Store(acc + d, Load(acc + d) * rescale);
    state.sum *= rescale;
    state.max = max;
  }
  state.sum += Sum(sums);
}

struct Layout {
  int head_padded, value_padded, rows;
  int64_t q = 0, keys = 0, values = 0, scores = 0, acc = 0, states = 0, end = 0;
};

int32_t RowTile(const AttentionShape& shape) {
  constexpr int kQueryRows = 64;  // tokens x heads: amortises the conversion of a key tile
  const int32_t tile = kQueryRows / shape.group();
  return tile < 1 ? 1 : tile;
}

Layout LayoutOf(int head_dim, int v_head_dim, int rows) {
  Layout l{.head_padded = PadToVec(head_dim), .value_padded = PadToVec(v_head_dim), .rows = rows};
  const auto take = [&l](int64_t floats) {
    const int64_t at = l.end;
    l.end += (floats + 15) / 16 * 16;  // whole cache lines
    return at;
  };
  l.q = take(int64_t{rows} * l.head_padded);
  l.keys = take(int64_t{kKeyTile} * l.head_padded);
  l.values = take(int64_t{kKeyTile} * l.value_padded);
  l.scores = take(int64_t{rows} * kKeyTile);
  l.acc = take(int64_t{rows} * l.value_padded);
  l.states = take(int64_t{rows} * 2);
  return l;
}

int64_t ThreadScratchBytes(const AttentionShape& shape) {
  return LayoutOf(shape.head_dim, shape.v_head_dim, RowTile(shape) * shape.group()).end * 4;
}

void Finish(const AttentionParams& params, const AttentionWorkItem& item, const AttentionScratch& scratch,
            const Layout& l, const RowState* states, float* acc, int group) {
  const float descale = params.v_descale.at(item.seq, item.kv_head);
  for (int row = 0; row < l.rows; ++row) {
    const int32_t token = row / group;  // rows are token-major: row = token * group + head of the group
    const int head = item.kv_head * group + row % group;
    float max = states[row].max, sum = states[row].sum;
    float* out = acc + int64_t{row} * l.value_padded;
    const bool counts_sink = params.sinks != nullptr && item.num_splits == 1;
    float factor = max == -kInf ? 0.0f : descale / sum;
    float lse = max == -kInf ? -kInf : max + ::logf(sum);
    if (counts_sink) {
      const float sink = params.sinks[head];
      if (max == -kInf) {
        lse = sink;
      } else if (sink != -kInf) {
        const float top = sink > max ? sink : max;
        const float total = sum * ::expf(max - top) + ::expf(sink - top);
        factor = ::expf(max - top) / total * descale;
        lse = top + ::logf(total);
      }
    }
    if (max == -kInf) {
      for (int d = 0; d < l.value_padded; ++d) out[d] = 0.0f;
    } else {
      for (int d = 0; d < l.value_padded; d += kVec) Store(out + d, Load(out + d) * factor);
    }
    if (item.num_splits > 1) {
      const int64_t partial = item.partial_row + row;
      __builtin_memcpy(scratch.partial_out + partial * params.v_head_dim, out,
                       static_cast<size_t>(params.v_head_dim) * 4);
      scratch.partial_lse[partial] = lse;
      continue;
    }
    const int64_t at = params.q_begin->begin(item.seq) + item.row_begin + token;
    FromFloats(out, params.out_dtype, params.v_head_dim, params.OutRow(at, head));
    if (params.lse.data != nullptr) *params.lse.At(head, at) = lse;
  }
}

void Run(const AttentionParams& params, const AttentionWorkItem& item, const AttentionScratch& scratch) {
  const int group = params.q_heads / params.kv_heads;
  ATTEST_KERNEL_CHECK(group * params.kv_heads, ==,
                      params.q_heads);  // exact: every query head has its KV head
  const Layout l = LayoutOf(params.head_dim, params.v_head_dim, (item.row_end - item.row_begin) * group);
  ATTEST_KERNEL_CHECK(l.end * 4, <=, scratch.thread.size());
  auto* base = reinterpret_cast<float*>(scratch.thread.data());
  float *q = base + l.q, *keys = base + l.keys, *values = base + l.values, *scores = base + l.scores,
        *acc = base + l.acc;
  auto* states = reinterpret_cast<RowState*>(base + l.states);

  const int32_t first_token = params.q_begin->begin(item.seq) + item.row_begin;
  for (int row = 0; row < l.rows; ++row) {
    ToFloats(params.QRow(first_token + row / group, item.kv_head * group + row % group), params.q_dtype,
             params.head_dim, q + int64_t{row} * l.head_padded);
    states[row] = RowState{};
  }
  __builtin_memset(acc, 0, static_cast<size_t>(l.rows) * static_cast<size_t>(l.value_padded) * 4);

  const int32_t kv_len = params.kv_len[static_cast<size_t>(item.seq)];
  const int32_t first_p = item.row_begin + kv_len - params.q_begin->length(item.seq);
  const KeyRows k_rows = RowsOf(params, item, false), v_rows = RowsOf(params, item, true);
  const DType kv_dtype = params.paged != nullptr ? params.paged->dtype : params.contiguous->dtype;
  const float scale = params.scale * params.k_descale.at(item.seq, item.kv_head);

  // Tiles lie at absolute multiples of their size, so that a row's sums do not depend on where the first key
  // of the rows beside it is.
  for (int32_t key = item.kv_begin / kKeyTile * kKeyTile; key < item.kv_end; key += kKeyTile) {
    const int32_t tile_begin = key < item.kv_begin ? item.kv_begin : key;
    const int32_t tile_end = item.kv_end - key < kKeyTile ? item.kv_end : key + kKeyTile;
    // The keys of this tile that some row sees; nothing else is read.
    uint32_t wanted = 0;
    const auto bits = [key, tile_begin, tile_end](int32_t begin, int32_t end) -> uint32_t {
      if (begin < tile_begin) begin = tile_begin;
      if (end > tile_end) end = tile_end;
      if (begin >= end) return 0;
      const uint64_t ones = (uint64_t{1} << (end - begin)) - 1;
      return static_cast<uint32_t>(ones << (begin - key));
    };
    static_assert(kKeyTile <= 32, "one bit per key");
    const int32_t tokens = item.row_end - item.row_begin;
    for (int32_t token = 0; token < tokens; ++token) {
      const VisibleKeys seen = VisibleKeysOf(params.mask, first_p + token, kv_len);
      wanted |= bits(seen.sink_begin, seen.sink_end) | bits(seen.begin, seen.end);
    }
    if (wanted == 0) continue;
    for (int32_t k = key; k < tile_end; ++k) {
      if ((wanted >> (k - key) & 1u) == 0) continue;
      ToFloats(k_rows.At(k), kv_dtype, params.head_dim, keys + int64_t{k - key} * l.head_padded);
      ToFloats(v_rows.At(k), kv_dtype, params.v_head_dim, values + int64_t{k - key} * l.value_padded);
    }

    const Tile tile{.params = &params, .key = key};
    const auto range = [key, tile_begin, tile_end](int32_t begin, int32_t end, int& from, int& to) {
      from = (begin < tile_begin ? tile_begin : begin) - key;
      to = (end > tile_end ? tile_end : end) - key;
      return from < to;
    };
    constexpr int kRowBlock = 4;
    for (int row = 0; row < l.rows;) {
      // Four rows at once where all of them see the whole tile; single rows at its masked edges, each over
      // its own keys only.
      const int32_t last_token = (row + kRowBlock - 1) / group;
      bool whole = row + kRowBlock <= l.rows && tile_end - tile_begin == kKeyTile;
      for (int32_t token = row / group; whole && token <= last_token; ++token) {
        const VisibleKeys seen = VisibleKeysOf(params.mask, first_p + token, kv_len);
        whole = seen.begin <= key && seen.end >= tile_end;
      }
      float* row_scores = scores + int64_t{row} * kKeyTile;
      float* row_acc = acc + int64_t{row} * l.value_padded;
      if (whole) {
        Dots<kRowBlock>(q + int64_t{row} * l.head_padded, keys, l.head_padded, 0, kKeyTile, row_scores);
        for (int r = 0; r < kRowBlock; ++r) {
          SoftmaxTile(tile, item.kv_head * group + (row + r) % group, first_p + (row + r) / group, scale, 0,
                      kKeyTile, l.value_padded, row_scores + r * kKeyTile, states[row + r],
                      row_acc + int64_t{r} * l.value_padded);
        }
        Accumulate<kRowBlock>(row_scores, values, l.value_padded, 0, kKeyTile, row_acc);
        row += kRowBlock;
        continue;
      }
      const int32_t p = first_p + row / group;
      const VisibleKeys seen = VisibleKeysOf(params.mask, p, kv_len);
      const int32_t ranges[2][2] = {{seen.sink_begin, seen.sink_end}, {seen.begin, seen.end}};
      for (const auto& keys_seen : ranges) {
        int from = 0, to = 0;
        if (!range(keys_seen[0], keys_seen[1], from, to)) continue;
        Dots<1>(q + int64_t{row} * l.head_padded, keys, l.head_padded, from, to, row_scores);
        SoftmaxTile(tile, item.kv_head * group + row % group, p, scale, from, to, l.value_padded, row_scores,
                    states[row], row_acc);
        Accumulate<1>(row_scores, values, l.value_padded, from, to, row_acc);
      }
      ++row;
    }
  }
  Finish(params, item, scratch, l, states, acc, group);
}

constexpr AttentionKernel kKernel{
    .run = Run, .row_tile = RowTile, .thread_scratch_bytes = ThreadScratchBytes, .can_split_kv = true};

}  // namespace
}  // namespace attest
