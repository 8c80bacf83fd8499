#include "attention/work_items.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace attest {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct TileKeys {
  int32_t begin = 0, end = 0;  // hull of the keys that the rows of the tile see
  int64_t pairs = 0;           // (row, key) pairs that are visible
};

TileKeys KeysOfTile(const AttentionMask& mask, int32_t first_p, int32_t rows, int32_t kv_len, KeyRange keys) {
  TileKeys tile;
  bool any = false;
  for (int32_t row = 0; row < rows; ++row) {
    const VisibleKeys seen = VisibleKeysOf(mask, first_p + row, kv_len);
    for (const auto& [first, last] : {std::pair{seen.sink_begin, seen.sink_end}, {seen.begin, seen.end}}) {
      const int32_t begin = std::max(first, keys.begin), end = std::min(last, keys.end);
      if (begin >= end) continue;
      tile.begin = any ? std::min(tile.begin, begin) : begin;
      tile.end = any ? std::max(tile.end, end) : end;
      tile.pairs += end - begin;
      any = true;
    }
  }
  return tile;
}

}  // namespace

AttentionShape ShapeOf(const AttentionSpec& spec) {
  return {.q_heads = spec.q_heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .v_head_dim = spec.v_head_dim,
          .block_size = spec.layout == KvLayout::kContiguous ? 0 : spec.block_size,
          .kv_dtype = spec.kv_dtype};
}

AttentionMask MaskOf(const AttentionSpec& spec) {
  return {.causal = spec.causal,
          .window_left = spec.window_left,
          .window_right = spec.window_right,
          .sink_tokens = spec.sink_tokens,
          .chunk = spec.chunk};
}

VisibleKeys KeysOfRows(const AttentionMask& mask, int32_t q_len, int32_t kv_len) {
  // Rows before the first key (q_len > kv_len) see nothing, or from key 0 on, as the row at 0 does. Sinks
  // that only later rows have left of their window lie in the window of the first.
  VisibleKeys keys = VisibleKeysOf(mask, std::max(kv_len - q_len, 0), kv_len);
  keys.end = VisibleKeysOf(mask, kv_len - 1, kv_len).end;
  return keys;
}

void CutSequence(const AttentionSpec& spec, const AttentionKernel& kernel, int32_t seq, int32_t q_len,
                 int32_t kv_len, Cut& cut, std::optional<KeyRange> keys) {
  ATTEST_CHECK_GE(q_len, 1);
  ATTEST_CHECK_GE(kv_len, 0);
  if (keys) {
    ATTEST_CHECK_GE(keys->begin, 0);
    ATTEST_CHECK_LE(keys->begin, keys->end);
    ATTEST_CHECK_LE(keys->end, kv_len);
  }
  // Without a range nothing is clipped here: what a row sees is the mask's answer alone.
  const KeyRange range = keys.value_or(KeyRange{.begin = 0, .end = std::numeric_limits<int32_t>::max()});
  const AttentionShape shape = ShapeOf(spec);
  const AttentionMask mask = MaskOf(spec);
  const int32_t tile_rows = kernel.row_tile(shape);
  ATTEST_CHECK_GE(tile_rows, 1);
  const int64_t tiles = CeilDiv(q_len, tile_rows);
  const int64_t wanted_splits = CeilDiv(kItemsPerSequence, tiles * spec.kv_heads);
  const int32_t min_split = q_len <= kMaxUniformDecodeTokens ? kMinSplitTokens : kMinSplitTokensExtend;

  for (int32_t row_begin = 0; row_begin < q_len; row_begin += tile_rows) {
    const int32_t row_end = std::min(q_len, row_begin + tile_rows);
    const int32_t rows = row_end - row_begin;
    const TileKeys tile = KeysOfTile(mask, row_begin + kv_len - q_len, rows, kv_len, range);
    const int64_t tile_keys = tile.end - tile.begin;

    int32_t split_keys = std::max<int32_t>(tile.end - tile.begin, 1);
    // Splits depend on how far the last row of a tile sees; rowwise, every row takes its keys in one go.
    if (kernel.can_split_kv && !spec.rowwise) {
      const int64_t splits = std::max<int64_t>(1, std::min<int64_t>(wanted_splits, tile_keys / min_split));
      if (splits > 1)
        split_keys = static_cast<int32_t>(CeilDiv(CeilDiv(tile_keys, splits), kSplitGranule)) * kSplitGranule;
    }
    // Boundaries lie at absolute multiples of the granule, so that a split starts on a page of 16, 32 or 64.
    std::vector<std::pair<int32_t, int32_t>> ranges;
    for (int32_t begin = tile.begin; begin < tile.end || ranges.empty();) {
      int64_t cut_at = int64_t{begin} + split_keys;  // past 2^31 for keys near it
      if (tile_keys > split_keys) cut_at = cut_at / kSplitGranule * kSplitGranule;
      const auto end = static_cast<int32_t>(std::min<int64_t>(cut_at, tile.end));
      ranges.emplace_back(begin, end);
      if (end == tile.end) break;
      begin = end;
    }

    const auto num_splits = static_cast<int32_t>(ranges.size());
    for (int32_t kv_head = 0; kv_head < spec.kv_heads; ++kv_head) {
      const int64_t partial_row = cut.partial_rows;
      const int64_t state_rows = int64_t{rows} * shape.group();
      if (num_splits > 1) {
        cut.merges.push_back({.seq = seq,
                              .kv_head = kv_head,
                              .row_begin = row_begin,
                              .row_end = row_end,
                              .num_splits = num_splits,
                              .partial_row = partial_row});
        cut.partial_rows += num_splits * state_rows;
      }
      for (int32_t split = 0; split < num_splits; ++split) {
        const auto [begin, end] = ranges[static_cast<size_t>(split)];
        // In floating point: 2^37 pairs times 2^30 keys pass 63 bits.
        const double part =
            tile_keys == 0 ? 0.0 : static_cast<double>(end - begin) / static_cast<double>(tile_keys);
        const auto share = static_cast<int64_t>(static_cast<double>(tile.pairs) * part);
        // Reading a key costs about as much as four rows' arithmetic on it; starting an item about 64 pairs.
        const int64_t cost = share * shape.group() + 4 * int64_t{end - begin} + 64;
        cut.items.push_back({.work = {.seq = seq,
                                      .kv_head = kv_head,
                                      .row_begin = row_begin,
                                      .row_end = row_end,
                                      .kv_begin = begin,
                                      .kv_end = end,
                                      .num_splits = num_splits,
                                      .partial_row = partial_row + split * state_rows},
                             .cost = cost,
                             .merge = std::max(0, static_cast<int32_t>(cut.merges.size()) - 1)});
      }
    }
  }
}

}  // namespace attest
