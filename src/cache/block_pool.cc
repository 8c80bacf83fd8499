#include "cache/block_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/check.h"

namespace attest {

Expected<BlockPool> BlockPool::Create(int64_t num_blocks) {
  if (num_blocks < 2 || num_blocks > std::numeric_limits<int32_t>::max()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("num_blocks {} is out of range: at least 2 (block 0 is reserved), at most {}",
                            num_blocks, std::numeric_limits<int32_t>::max()),
                "num_blocks");
  }
  return BlockPool(num_blocks);
}

BlockPool::BlockPool(int64_t num_blocks) : nodes_(static_cast<size_t>(num_blocks)) {
  node(kNullBlock).refs = 1;  // never free
  for (int32_t block = 1; block < num_blocks; ++block) LinkAfter(block - 1, block);
}

void BlockPool::Unlink(int32_t block) {
  Node& n = node(block);
  node(n.prev).next = n.next;
  node(n.next).prev = n.prev;
  --num_free_;
}

void BlockPool::LinkAfter(int32_t anchor, int32_t block) {
  Node& n = node(block);
  n.prev = anchor;
  n.next = node(anchor).next;
  node(n.next).prev = block;
  node(anchor).next = block;
  ++num_free_;
}

// The neighbour of the last block where it may be had, else the head of the list. A kept neighbour is left
// alone: it may be the block that the next prompt asks for.
int32_t BlockPool::NextToTake(const std::vector<int32_t>& blocks) const {
  if (!blocks.empty()) {
    const int64_t neighbour = int64_t{blocks.back()} + 1;
    if (neighbour < num_blocks() && refs(static_cast<int32_t>(neighbour)) == 0 &&
        !is_kept(static_cast<int32_t>(neighbour))) {
      return static_cast<int32_t>(neighbour);
    }
  }
  return nodes_[kNullBlock].next;
}

Status BlockPool::Take(int64_t count, std::vector<int32_t>& blocks) {
  if (count > num_free_) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("{} KV blocks wanted, {} of {} free", count, num_free_, num_usable()));
  }
  const auto old_size = static_cast<std::ptrdiff_t>(blocks.size());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t block = NextToTake(blocks);
    ATTEST_CHECK_EQ(refs(block), 0);
    Unlink(block);
    node(block).refs = 1;
    if (std::exchange(node(block).is_kept, false)) {
      for (const auto& [owner, listener] : on_evict_) listener(block);
    }
    blocks.push_back(block);
  }
  // Evicted blocks come last block of a sequence first, which is descending.
  const auto taken = blocks.begin() + old_size;
  std::sort(taken, blocks.end());
  if (old_size > 0) std::rotate(taken, std::upper_bound(taken, blocks.end(), *(taken - 1)), blocks.end());
  return {};
}

void BlockPool::Share(int32_t block) {
  ATTEST_CHECK(refs(block) > 0 || is_kept(block));  // the content of any other free block is gone
  if (refs(block) == 0) Unlink(block);
  ++node(block).refs;
}

void BlockPool::Keep(int32_t block) {
  ATTEST_CHECK_GT(refs(block), 0);
  ATTEST_CHECK(!is_kept(block));
  node(block).is_kept = true;
}

void BlockPool::Unkeep(int32_t block) {
  ATTEST_CHECK(is_kept(block));
  node(block).is_kept = false;
  if (refs(block) > 0) return;
  Unlink(block);
  LinkAfter(kNullBlock, block);
}

void BlockPool::Release(std::span<const int32_t> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    if (*it == kNullBlock) continue;
    ATTEST_CHECK_GT(refs(*it), 0);  // a block freed twice would be handed to two sequences
    if (--node(*it).refs > 0) continue;
    LinkAfter(is_kept(*it) ? node(kNullBlock).prev : kNullBlock, *it);
  }
}

void BlockPool::OnEvict(const void* owner, std::function<void(int32_t)> listener) {
  std::erase_if(on_evict_, [owner](const auto& entry) { return entry.first == owner; });
  if (listener) on_evict_.emplace_back(owner, std::move(listener));
}

std::vector<int32_t> BlockPool::FreeList() const {
  std::vector<int32_t> list;
  list.reserve(static_cast<size_t>(num_free_));
  for (int32_t block = nodes_[kNullBlock].next; block != kNullBlock;
       block = nodes_[static_cast<size_t>(block)].next) {
    list.push_back(block);
  }
  return list;
}

}  // namespace attest
