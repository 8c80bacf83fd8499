// The prefix cache: which block holds the K and V of which tokens, so that a sequence that begins as an
// earlier one did starts behind what they share.
//
// A full block is known by its chain: the tokens in it, those in all blocks before it, and the keys of the
// chain (model, salt). The key of the index is an XXH3-128 hash over (hash of the parent block, token ids);
// a hit is decided by comparing what the hash stands for, the parent and the token ids, so that a collision
// costs a comparison and never serves the K and V of another prompt.
//
// Where layers have a sliding window, the blocks behind it go back to the pool and are handed out again long
// before those that build on them. What such a block stood for is then remembered without it, so that a later
// sequence may start behind a beginning of which only the window is left.
//
// Owned and called by the engine thread. Always true: a block here is marked in the pool (BlockPool::Keep),
// was full and committed when it was published, and is not written again before the pool takes its mark away.
// Two blocks may hold the same chain, when two sequences computed it side by side: they then are one node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/block_pool.h"

namespace attest {

struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};

[[nodiscard]] BlockHash HashBytes(std::span<const std::byte> bytes, uint64_t seed);  // XXH3-128

// Something besides the tokens that K and V depend on, or that may not be shared. The label says what it is:
// an adapter "x" and a salt "x" are two keys.
struct CacheKey {
  std::string_view label, value;
};
// One string from which each label and value can be told: ("ab", "c") and ("a", "bc") differ.
[[nodiscard]] std::string JoinCacheKeys(std::span<const CacheKey> keys);

// How far the cache knows a sequence. Owned by the sequence, written by the cache. Tokens are only appended
// to a sequence, so hashes stay true; who takes some back calls Truncate.
struct PrefixChain {
  std::string keys;               // JoinCacheKeys
  std::vector<BlockHash> hashes;  // of its full blocks, as far as they were needed
  int32_t published = 0;          // its first blocks that are in the cache: hits, then its own
  uint64_t tip = 0;               // node of the last of those; 0: none
  uint64_t epoch = 0;             // of the cache when its blocks were begun
};

struct PrefixCacheOptions {
  int block_size = 16;             // tokens
  bool remembers_evicted = false;  // of layers with a window: at most as many as the pool has blocks
  uint64_t seed = 0;               // random per process, unless hashes must be the same elsewhere
  BlockHash (*hash)(std::span<const std::byte>, uint64_t) = &HashBytes;  // tests force collisions with it
};

class PrefixCache {
 public:
  // `pool` outlives the cache, which is told of every block that the pool hands out again.
  PrefixCache(const PrefixCacheOptions& options, BlockPool& pool);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The blocks of the longest known beginning of `tokens`, of at most `max_tokens` tokens: nothing is taken,
  // so a caller may find that they do not help. A null block is remembered, but gone. Begins the chain:
  // REQUIRES that its sequence has no blocks.
  [[nodiscard]] std::vector<int32_t> Find(PrefixChain& chain, std::span<const int32_t> tokens,
                                          int32_t max_tokens);
  // One reference more on each block of the last Find of this chain, or of its first few; those that are not
  // needed may be null by now, the last not.
  void Use(PrefixChain& chain, std::span<const int32_t> blocks);
  // Makes the full blocks among those of `computed` shareable. REQUIRES: the K and V of all `computed` tokens
  // are in `blocks`, and their step was committed.
  void Publish(PrefixChain& chain, std::span<const int32_t> computed, std::span<const int32_t> blocks);
  // Forgets the blocks of a sequence whose K and V turned out wrong, those it shares with others too.
  // REQUIRES: it has not given them back. It publishes nothing more.
  void Withdraw(PrefixChain& chain, std::span<const int32_t> blocks);
  // The sequence gave its blocks back and begins again.
  static void Detach(PrefixChain& chain);
  // Of the tokens of the sequence only those of its first `num_blocks` blocks stay. REQUIRES: it is detached.
  static void Truncate(PrefixChain& chain, size_t num_blocks);

  // Forgets everything: no later sequence finds what was computed before. Blocks in use go on being used, and
  // their sequences publish nothing more.
  void Clear();

  [[nodiscard]] int64_t num_blocks() const { return static_cast<int64_t>(index_.size()); }
  [[nodiscard]] bool Knows(int32_t block) const { return record(block).node != 0; }

 private:
  struct Record {
    BlockHash hash;
    uint64_t node = 0;    // 0: not in the cache
    uint64_t parent = 0;  // node of the block before; 0: the first of a chain
    std::string keys;     // of the chain; in its first block only
  };
  struct IndexHash {
    size_t operator()(const BlockHash& hash) const { return hash.low; }
  };

  // What an evicted block stood for.
  struct Memory {
    Record record;
    std::vector<int32_t> tokens;
  };
  struct Found {
    uint64_t node = 0;  // 0: nobody knows it
    int32_t block = kNullBlock;
  };

  [[nodiscard]] const Record& record(int32_t block) const { return records_[static_cast<size_t>(block)]; }
  void Hash(PrefixChain& chain, std::span<const int32_t> tokens, size_t num_blocks) const;
  [[nodiscard]] std::span<int32_t> TokensOf(int32_t block);
  // The i-th block of the chain, behind the node `parent`: some block that holds it, or that it was known.
  [[nodiscard]] Found Lookup(const PrefixChain& chain, size_t i, uint64_t parent,
                             std::span<const int32_t> tokens);
  void Drop(int32_t block);
  void Remember(int32_t block);

  const PrefixCacheOptions options_;
  const size_t block_size_;
  BlockPool& pool_;
  std::vector<Record> records_;  // by block
  std::vector<int32_t> tokens_;  // [block, block_size]
  std::unordered_multimap<BlockHash, int32_t, IndexHash> index_;
  std::unordered_multimap<BlockHash, Memory, IndexHash> remembered_;
  std::deque<std::pair<BlockHash, uint64_t>> oldest_remembered_;  // hash and node, oldest first
  uint64_t last_node_ = 0;
  uint64_t epoch_ = 1;
};

}  // namespace attest
