// The pool of KV blocks: who owns which page. It knows ids and counts, never bytes (cache/kv_storage.h does).
//
// Owned and called by the engine thread. Always true: block 0 is reserved (the null block, a placeholder in
// tables that is never handed out), a block is on the free list exactly when its reference count is 0, and
// free + used + 1 == num_blocks.
//
// Free blocks form a doubly linked list in order of reuse. A list of blocks is released back to front. A
// block whose content nobody wants goes to the head: the blocks of a finished sequence are handed out again
// first (their pages are warm) and in their old order (their pages stay neighbours). A block that the prefix
// cache keeps goes to the tail: the one unused for longest is evicted first, and of one sequence the last
// block before those it builds on. The links allow taking a block out of the middle in O(1), which is what a
// prefix hit on a free block needs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace attest {

inline constexpr int32_t kNullBlock = 0;

class BlockPool {
 public:
  // kInvalidArgument: num_blocks is not in [2, 2^31 - 1].
  static Expected<BlockPool> Create(int64_t num_blocks);

  // Appends `count` blocks to `blocks`, each with one reference. kResourceExhausted, and nothing taken, when
  // fewer are free. The new blocks follow blocks.back() in memory where those happen to be free and not kept,
  // and what is taken together ascends from there: decode reads runs of neighbouring pages up to 2.9 times
  // faster than scattered ones. A kept block that is handed out loses its mark first.
  Status Take(int64_t count, std::vector<int32_t>& blocks);
  // One reference more. REQUIRES: the block is in use or kept; a free one leaves the free list.
  void Share(int32_t block);
  // Marks a block whose content is worth more than another's: it is reused last. REQUIRES: in use, not kept.
  void Keep(int32_t block);
  // Takes the mark away; a free block becomes the first to be reused. REQUIRES: kept.
  void Unkeep(int32_t block);
  // Called for each kept block that Take hands out, after its mark is gone. One listener per owner; null:
  // none.
  void OnEvict(const void* owner, std::function<void(int32_t)> listener);
  // One reference less on each, last entry first; null blocks are passed over.
  // REQUIRES: every other entry is in use.
  void Release(std::span<const int32_t> blocks);

  [[nodiscard]] int64_t num_blocks() const { return static_cast<int64_t>(nodes_.size()); }
  [[nodiscard]] int64_t num_usable() const { return num_blocks() - 1; }
  [[nodiscard]] int64_t num_free() const { return num_free_; }
  [[nodiscard]] int64_t num_used() const { return num_usable() - num_free_; }
  [[nodiscard]] int32_t refs(int32_t block) const { return nodes_[static_cast<size_t>(block)].refs; }
  [[nodiscard]] bool is_kept(int32_t block) const { return nodes_[static_cast<size_t>(block)].is_kept; }
  // Head first; for tests and reports, O(num_free).
  [[nodiscard]] std::vector<int32_t> FreeList() const;

 private:
  struct Node {
    int32_t refs = 0;
    int32_t prev = 0;  // on the free list; block 0 is the list's anchor
    int32_t next = 0;
    bool is_kept = false;
  };
  explicit BlockPool(int64_t num_blocks);
  Node& node(int32_t block) { return nodes_[static_cast<size_t>(block)]; }
  void Unlink(int32_t block);
  void LinkAfter(int32_t anchor, int32_t block);
  [[nodiscard]] int32_t NextToTake(const std::vector<int32_t>& blocks) const;

  std::vector<Node> nodes_;
  int64_t num_free_ = 0;
  std::vector<std::pair<const void*, std::function<void(int32_t)>>> on_evict_;
};

}  // namespace attest
