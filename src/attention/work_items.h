// Cuts the attention of one sequence into work items. Pure, and a function of that sequence's own lengths,
// the spec and the kernel alone: neither its batch companions nor the number of threads move a boundary, so a
// row's result is the same bit for bit at any load and on any number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/problem.h"
#include "kernels/cpu/attention_kernels.h"

namespace attest {

// The fewest keys of one split. A split of 128 keys (32 KiB of bf16 K and V at head size 64) takes over a
// microsecond to read; writing and merging its partial state a few hundredths of that.
inline constexpr int32_t kMinSplitTokens = 128;
// The same for rows of a long extend, whose partial states are larger.
inline constexpr int32_t kMinSplitTokensExtend = 1024;
// Splits start at multiples of this, a multiple of the key tiles of the kernels.
inline constexpr int32_t kSplitGranule = 64;
// A sequence is split until it has about this many items, so that one long sequence feeds many threads.
inline constexpr int32_t kItemsPerSequence = 64;

// The most items of one plan: about 1 GiB of them. Half a million tokens of 128 KV heads have as many.
inline constexpr int64_t kMaxPlanItems = int64_t{1} << 23;

struct CutItem {
  AttentionWorkItem work;
  int64_t cost = 0;   // in query-key pairs, reading included
  int32_t merge = 0;  // with work.num_splits > 1: index into the merges of the same cut
};

// Rows whose partial states are merged when their last split is done.
struct CutMerge {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t row_begin = 0, row_end = 0;
  int32_t num_splits = 0;
  int64_t partial_row = 0;  // split i starts at partial_row + i * (row_end - row_begin) * group
};

struct Cut {
  std::vector<CutItem> items;
  std::vector<CutMerge> merges;
  int64_t partial_rows = 0;
};

[[nodiscard]] AttentionShape ShapeOf(const AttentionSpec& spec);
[[nodiscard]] AttentionMask MaskOf(const AttentionSpec& spec);

// The keys that any of a sequence's q_len rows sees, in two ranges as of one row: sinks, and the windows,
// which move right with the row. REQUIRES: q_len >= 1, kv_len >= 0.
[[nodiscard]] VisibleKeys KeysOfRows(const AttentionMask& mask, int32_t q_len, int32_t kv_len);

struct KeyRange {
  int32_t begin = 0;
  int32_t end = 0;
};

// Appends the items of one sequence. Together they cover each (row, KV head) once and, over its splits, every
// key of `keys` (absent: all) that the row sees once. REQUIRES: q_len >= 1, kv_len >= 0,
// 0 <= keys.begin <= keys.end <= kv_len.
void CutSequence(const AttentionSpec& spec, const AttentionKernel& kernel, int32_t seq, int32_t q_len,
                 int32_t kv_len, Cut& cut, std::optional<KeyRange> keys = {});

}  // namespace attest
