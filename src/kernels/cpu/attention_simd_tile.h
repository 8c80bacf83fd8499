// The item of work that the vector attention kernels share: rows of one KV head with everything a row needs
// resolved to a pointer or a number, and the pages its keys lie in. Built by baseline code so that the files
// compiled for wider instruction sets see plain data only.
//
// Private to kernels/cpu. A tile lives on the stack of the thread that computes it and is valid for one call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"

namespace attest {

inline constexpr int kMaxTileRows = 192;
inline constexpr int kMaxTileHeadDim = 256;

// Scores are kept in log2 units: softmax is 2^(s - m) with s = score_scale * <q_sign * q, k>.
//
// No default values: a tile of 192 rows would be cleared for every item, 0.2 us of a 1 us decode item.
struct AttentionTileRow {
  const float* q;  // [head_dim]
  float* out;      // [v_head_dim]
  float* lse;      // nullptr: not wanted
  int32_t begin;   // keys [begin, end) are visible, clipped to the item's range
  int32_t end;
  int32_t position;  // p of the mask and of ALiBi
  float slope;       // ALiBi slope * log2(e)
  float sink;        // sink logit * log2(e), with AttentionTile::has_sinks
};

struct AttentionTile {
  AttentionTileRow rows[kMaxTileRows];
  int num_rows = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  int32_t begin = 0;  // keys that some row sees; begin == end: none
  int32_t end = 0;
  // Keys that every row sees (empty when a row sees none): any other key of the tile is hidden from some row.
  int32_t common_begin = 0;
  int32_t common_end = 0;

  // |scale * k_descale| * log2(e), or |scale * k_descale| / softcap when there is a softcap (then s =
  // softcap_log2 * tanh(scaled q k)). Applied to the finished dot product: a factor folded into q would round
  // q once more. The sign of the scale is applied to q, exactly, so that the maximum of scaled scores is the
  // scaled maximum.
  float score_scale = 0.0f;
  float q_sign = 1.0f;
  float softcap_log2 = 0.0f;  // softcap * log2(e); 0: off
  // Softcap, ALiBi, or a scale of 0 (a masked -inf times 0 is NaN): scores are finished before the mask.
  bool transforms_scores = false;
  bool has_alibi = false;
  bool has_sinks = false;

  // Pages of this KV head: key t lies at  data + table[t / block_size] * block_stride + (t % block_size) *
  // slot_stride  elements. Contiguous K and V are one page of 2^30 slots.
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_block_stride = 0, k_slot_stride = 0;
  int64_t v_block_stride = 0, v_slot_stride = 0;
  const int32_t* table = nullptr;
  int32_t block_size = 0;
  DType kv_dtype = DType::kF32;
  float v_descale = 1.0f;
};

// Rows of an item in tile order: (token, head of the group), heads innermost.
[[nodiscard]] int64_t AttentionItemRows(const AttentionParams& params, const AttentionWorkItem& item);

// Tokens of one prefill item: as many as fill a tile. A group above kMaxTileRows heads takes several tiles
// for one token.
[[nodiscard]] int32_t AttentionRowTile(const AttentionShape& shape);

// Fills `tile` with rows [first_row, first_row + num_rows) of the item. REQUIRES: num_rows in [1,
// kMaxTileRows]; v_head_dim <= kMaxTileHeadDim; q and out are f32 with innermost stride 1; no streaming
// sink tokens (the contracts refuse them).
void BuildAttentionTile(const AttentionParams& params, const AttentionWorkItem& item,
                        const AttentionScratch& scratch, int64_t first_row, int num_rows,
                        AttentionTile* tile);

// The thread's scratch bytes (std::span's members are left to baseline code).
[[nodiscard]] std::byte* AttentionThreadScratch(const AttentionScratch& scratch);

// From a row's running maximum `max` (log2 units) and sum of weights: stores the row's lse when it is wanted,
// counts the sink, and returns the factor that turns the accumulated output into the row's output.
[[nodiscard]] float FinishAttentionRow(const AttentionTile& tile, const AttentionTileRow& row, float max,
                                       float sum);

}  // namespace attest
