// What every CPU attention kernel is: a function that computes one work item on the calling thread, and two
// pure numbers about itself. Planning, threads, merging and checks live above (attention/plan.cc); a kernel
// sees arithmetic inputs only and never declines: what it cannot do its contract has refused before.
//
// To add one: a file kernels/cpu/attention_<role>_<isa>.cc with everything in an unnamed namespace except one
// `const AttentionKernel kXxx` declared in the kernel's own header; its contract in
// attention/contracts_cpu_<role>.cc; its place in the ordered list of attention/dispatch.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention_params.h"

namespace attest {

// Query rows [row_begin, row_end) of one sequence (0 is its first new token), all query heads of one KV head
// (heads kv_head * group ... + group - 1), against keys [kv_begin, kv_end).
//
// The kernel applies the mask inside the key range; keys outside it belong to other items or are visible to
// no row of this one. It reads K and V only of keys that at least one row of the item sees (blocks outside a
// window may be recycled and their table entries stale). kv_begin == kv_end is valid: no row sees a key. A
// NaN or an infinity in K or V reaches the rows that see its key and no other row, although a tile multiplies
// hidden keys by a weight of 0 (attention_simd_hidden.h).
//
// num_splits == 1: the item owns its rows. It writes out, and lse when params.lse.data is set, and counts the
// sink logit. A row without a visible key and without a sink is 0 with lse -inf; with a sink 0 and lse =
// sink.
//
// num_splits > 1: the item writes the partial state of each of its rows instead, WITHOUT the sink (the merge
// adds it once): normalised output and natural-log lse, or (0, -inf) where the row sees no key of the range.
// Row r, head g of the group is partial row  partial_row + (r - row_begin) * group + g  of the scratch.
struct AttentionWorkItem {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t row_begin = 0, row_end = 0;  // within the sequence
  int32_t kv_begin = 0, kv_end = 0;    // keys of the sequence
  int32_t num_splits = 1;
  int64_t partial_row = 0;  // with num_splits > 1
};

struct AttentionScratch {
  std::span<std::byte> thread;   // this thread's own, 64-byte aligned, >= thread_scratch_bytes(shape), dirty
  float* partial_out = nullptr;  // [partial rows, v_head_dim], 64-byte aligned
  float* partial_lse = nullptr;  // [partial rows]
};

// What sizes may depend on: fixed for a spec, never on the lengths of a step.
struct AttentionShape {
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  int block_size = 0;  // 0 for contiguous K and V
  DType kv_dtype = DType::kBF16;
  [[nodiscard]] int group() const { return q_heads / kv_heads; }  // exact: the spec's check refuses others
};

struct AttentionKernel {
  // Computes one item. Several threads run items of one call at the same time; items share no outputs.
  void (*run)(const AttentionParams& params, const AttentionWorkItem& item,
              const AttentionScratch& scratch) = nullptr;
  // The most query rows (tokens) of one item, >= 1. A kernel that packs the GQA group into its tile divides
  // by the group. Items of the last tile are shorter.
  int32_t (*row_tile)(const AttentionShape& shape) = nullptr;
  // Bytes of AttentionScratch::thread, enough for any item of row_tile rows and any key range.
  int64_t (*thread_scratch_bytes)(const AttentionShape& shape) = nullptr;
  // Whether the planner may cut the key range of a row into several items.
  bool can_split_kv = true;
};

// The keys one query row may see, as two half-open ranges that do not overlap (either may be empty): the
// streaming sink tokens that lie left of the window, and the window. `p` is the row's absolute position,
// i + kv_len - q_len, and may be negative when q_len > kv_len.
struct VisibleKeys {
  int32_t sink_begin = 0, sink_end = 0;
  int32_t begin = 0, end = 0;
};
// Internal linkage on purpose: this header is included by files built for other instruction sets.
[[maybe_unused]] static inline VisibleKeys VisibleKeysOf(const AttentionMask& mask, int32_t p,
                                                         int32_t kv_len) {
  const int64_t position = p;
  int64_t end = kv_len;
  if (mask.causal && position + 1 < end) end = position + 1;
  if (mask.window_right && position + *mask.window_right + 1 < end) end = position + *mask.window_right + 1;
  if (end < 0) end = 0;
  int64_t first = 0;  // the lowest key that the chunk leaves visible
  if (mask.chunk) {
    const int64_t chunk = *mask.chunk;
    if (position < 0) {
      first = end;  // floor(p / chunk) < 0: no key has that chunk
    } else {
      const int64_t index = position / chunk;  // rounded down: the chunk p lies in
      first = index * chunk;
      if (first + chunk < end) end = first + chunk;
    }
    if (first > end) first = end;
  }
  int64_t begin = first;
  if (mask.window_left && position - *mask.window_left > begin) begin = position - *mask.window_left;
  if (begin > end) begin = end;
  int64_t sink_end = mask.sink_tokens < begin ? mask.sink_tokens : begin;
  if (sink_end < first) sink_end = first;
  return {.sink_begin = static_cast<int32_t>(first),
          .sink_end = static_cast<int32_t>(sink_end),
          .begin = static_cast<int32_t>(begin),
          .end = static_cast<int32_t>(end)};
}

}  // namespace attest
