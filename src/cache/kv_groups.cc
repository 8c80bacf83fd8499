#include "cache/kv_groups.h"

#include <algorithm>

#include "base/check.h"

namespace attest {
namespace {

int64_t BlocksOf(int64_t tokens, int64_t block_size) { return (tokens + block_size - 1) / block_size; }

}  // namespace

std::vector<KvGroup> MakeKvGroups(std::span<const KvWindow> layer_windows) {
  ATTEST_CHECK(!layer_windows.empty());
  std::vector<KvGroup> kinds;
  for (size_t layer = 0; layer < layer_windows.size(); ++layer) {
    auto kind = std::ranges::find(kinds, layer_windows[layer], &KvGroup::window);
    if (kind == kinds.end()) {
      kinds.push_back({.window = layer_windows[layer], .layers = {}});
      kind = kinds.end() - 1;
    }
    kind->layers.push_back(static_cast<int>(layer));
  }
  // Full layers have no value, which is less than any.
  std::ranges::stable_sort(kinds, {}, &KvGroup::window);
  size_t layers_per_block = layer_windows.size();
  for (const KvGroup& kind : kinds) layers_per_block = std::min(layers_per_block, kind.layers.size());
  std::vector<KvGroup> groups;
  for (const KvGroup& kind : kinds) {
    for (size_t first = 0; first < kind.layers.size(); first += layers_per_block) {
      const size_t end = std::min(first + layers_per_block, kind.layers.size());
      groups.push_back({.window = kind.window,
                        .layers = {kind.layers.begin() + static_cast<std::ptrdiff_t>(first),
                                   kind.layers.begin() + static_cast<std::ptrdiff_t>(end)}});
    }
  }
  return groups;
}

std::vector<KvPlace> PlacesOf(std::span<const KvGroup> groups, size_t num_layers) {
  std::vector<KvPlace> places(num_layers);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].layers.size(); ++i) {
      places[static_cast<size_t>(groups[g].layers[i])] = {.group = static_cast<int>(g),
                                                          .buffer = static_cast<int>(i)};
    }
  }
  return places;
}

std::vector<int> BuffersOf(std::span<const KvGroup> groups, size_t num_layers) {
  std::vector<int> buffers;
  if (groups.size() == 1) return buffers;
  for (const KvPlace& place : PlacesOf(groups, num_layers)) buffers.push_back(place.buffer);
  return buffers;
}

std::vector<KvWindow> WindowsOf(std::span<const KvGroup> groups) {
  std::vector<KvWindow> windows;
  for (const KvGroup& group : groups) windows.push_back(group.window);
  return windows;
}

int64_t PeakBlocks(const KvNeed& need, int64_t tokens) {
  int64_t blocks = 0;
  for (const KvWindow& window : need.windows) {
    int64_t own = BlocksOf(tokens, need.block_size);
    if (window) {
      // Of a step: the tokens before it that its first row sees, and its own, which may begin and end inside
      // a block.
      const int64_t live = int64_t{*window} - 1 + std::max<int64_t>(need.max_step_tokens, 1);
      own = std::min(own, BlocksOf(live, need.block_size) + 1);
    }
    blocks += own;
  }
  return blocks;
}

int64_t MostTokens(const KvNeed& need, int64_t blocks, int64_t limit) {
  int64_t low = 0, high = limit;  // the answer is in [low, high]
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (PeakBlocks(need, middle) <= blocks) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace attest
