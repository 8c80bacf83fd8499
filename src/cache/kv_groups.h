// KV groups: layers whose keys and values live equally long. A row of a layer with a sliding window sees the
// last tokens only, so the blocks behind it can go back to the pool while those of a full layer stay; a
// sequence has one block table per group. All groups take their blocks from one pool, so a block holds the
// same number of layers in every group, and the layers of different groups share the buffers of the storage,
// in different blocks. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace attest {

// Tokens that a row of the layer sees, its own included; unset: all up to its own.
using KvWindow = std::optional<int32_t>;

struct KvGroup {
  KvWindow window;
  std::vector<int> layers;  // of the model, ascending; at most as many as a block holds
};

// Layers of equal windows, cut into groups of as many layers as the rarest kind has (an equal number in each
// block wastes least then). Full layers first; at least one group. REQUIRES: at least one layer.
[[nodiscard]] std::vector<KvGroup> MakeKvGroups(std::span<const KvWindow> layer_windows);
// The group of each layer, and which of a block's layers it is.
struct KvPlace {
  int group = 0;
  int buffer = 0;
};
[[nodiscard]] std::vector<KvPlace> PlacesOf(std::span<const KvGroup> groups, size_t num_layers);
// KvShape::buffers for them: empty where each layer has a buffer of its own, as those of one group have.
[[nodiscard]] std::vector<int> BuffersOf(std::span<const KvGroup> groups, size_t num_layers);
// One per group.
[[nodiscard]] std::vector<KvWindow> WindowsOf(std::span<const KvGroup> groups);

// The first token that the row at `position`, and so every later one, sees.
[[nodiscard]] inline int32_t FirstSeen(const KvWindow& window, int32_t position) {
  return window && position >= *window ? position - *window + 1 : 0;
}

struct KvNeed {
  std::span<const KvWindow> windows;  // of the groups
  int block_size = 16;                // tokens
  int32_t max_step_tokens = 0;        // of one sequence in one step
};
// The most blocks that a sequence of `tokens` tokens holds at once on its way there.
[[nodiscard]] int64_t PeakBlocks(const KvNeed& need, int64_t tokens);
// The longest sequence that never holds more than `blocks`, at most `limit` tokens.
[[nodiscard]] int64_t MostTokens(const KvNeed& need, int64_t blocks, int64_t limit);

}  // namespace attest
