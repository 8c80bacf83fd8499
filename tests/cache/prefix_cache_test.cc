#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace attest {
namespace {

using Ids = std::vector<int32_t>;
constexpr int kBlockSize = 4;

BlockHash SameForAll(std::span<const std::byte>, uint64_t) { return {.low = 7, .high = 7}; }
// Equal in one half: whoever compares 64 bits takes one for the other.
BlockHash SameLow(std::span<const std::byte> bytes, uint64_t seed) {
  return {.low = 7, .high = HashBytes(bytes, seed).high};
}

// What the scheduler does for a sequence, without one.
class PrefixCacheTest : public ::testing::Test {
 protected:
  struct Seq {
    PrefixChain chain;
    Ids tokens, blocks;
    int32_t hit = 0;
  };

  void Start(int64_t num_blocks, decltype(PrefixCacheOptions::hash) hash = &HashBytes) {
    cache_.reset();
    pool_.emplace(std::move(*BlockPool::Create(num_blocks)));
    cache_ = std::make_unique<PrefixCache>(
        PrefixCacheOptions{.block_size = kBlockSize, .seed = 5, .hash = hash}, *pool_);
  }
  Seq Begin(Ids tokens, const std::string& keys = "") {
    Seq seq{.chain = {}, .tokens = std::move(tokens), .blocks = {}};
    seq.chain.keys = keys;
    seq.blocks = cache_->Find(seq.chain, seq.tokens, static_cast<int32_t>(seq.tokens.size()) - 1);
    seq.hit = static_cast<int32_t>(seq.blocks.size()) * kBlockSize;
    cache_->Use(seq.chain, seq.blocks);
    const auto wanted = (seq.tokens.size() + kBlockSize - 1) / kBlockSize - seq.blocks.size();
    EXPECT_TRUE(pool_->Take(static_cast<int64_t>(wanted), seq.blocks));
    return seq;
  }
  void Commit(Seq& seq) { cache_->Publish(seq.chain, seq.tokens, seq.blocks); }
  // Computes all tokens, ends, and says how many were cached.
  int32_t Serve(const Ids& tokens, const std::string& keys = "") {
    Seq seq = Begin(tokens, keys);
    Commit(seq);
    pool_->Release(seq.blocks);
    return seq.hit;
  }
  static Ids Count(int32_t length, int32_t first = 1) {
    Ids ids(static_cast<size_t>(length));
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }
  static Ids Join(Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  std::optional<BlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, FindsTheLongestFullBlocksAndLeavesOneTokenToCompute) {
  Start(100);
  EXPECT_EQ(Serve(Count(10)), 0);
  EXPECT_EQ(Serve(Count(10)), 8);
  EXPECT_EQ(Serve(Count(9)), 8);
  EXPECT_EQ(Serve(Count(8)), 4);  // two blocks are cached, but the last token must be computed
  EXPECT_EQ(Serve(Count(5)), 4);
  EXPECT_EQ(Serve(Count(4)), 0);
  EXPECT_EQ(Serve(Join(Count(6), {90, 91, 92, 93})), 4);
  EXPECT_EQ(Serve(Join({90}, Count(9))), 0);
  EXPECT_EQ(Serve(Count(30)), 8);
  EXPECT_EQ(Serve(Count(30)), 28);
}

TEST_F(PrefixCacheTest, TheSameTokensBehindAnotherPrefixAreNoHit) {
  Start(100);
  Serve(Join(Count(4, 1), Count(5, 50)));
  EXPECT_EQ(Serve(Join(Count(4, 20), Count(5, 50))), 0);
  EXPECT_EQ(Serve(Count(5, 50)), 0);
}

TEST_F(PrefixCacheTest, NothingIsSharedBeforeItWasCommitted) {
  Start(100);
  Seq first = Begin(Count(10));
  Seq second = Begin(Count(10));
  EXPECT_EQ(second.hit, 0);
  for (const int32_t block : first.blocks) EXPECT_FALSE(pool_->is_kept(block));
  pool_->Release(first.blocks);  // its step failed
  EXPECT_EQ(Serve(Count(10)), 0);
  pool_->Release(second.blocks);
}

TEST_F(PrefixCacheTest, BlocksInUseAreSharedAndCounted) {
  Start(100);
  Seq first = Begin(Count(10));
  Commit(first);
  Seq second = Begin(Count(10)), third = Begin(Count(7));
  EXPECT_EQ(second.blocks[0], first.blocks[0]);
  EXPECT_EQ(second.blocks[1], first.blocks[1]);
  EXPECT_NE(second.blocks[2], first.blocks[2]);
  EXPECT_EQ(pool_->refs(first.blocks[0]), 3);
  EXPECT_EQ(pool_->refs(first.blocks[1]), 2);
  pool_->Release(first.blocks);
  EXPECT_EQ(pool_->refs(second.blocks[1]), 1);
  pool_->Release(second.blocks);
  pool_->Release(third.blocks);
  EXPECT_EQ(pool_->num_free(), 99);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedAndTailsBeforeWhatTheyBuildOn) {
  Start(7);
  Serve(Count(9, 10));                                    // blocks 1 2 kept, 3 not
  Serve(Count(9, 50));                                    // 3 and 4 kept, 5 not
  EXPECT_EQ(pool_->FreeList(), (Ids{5, 6, 2, 1, 4, 3}));  // not kept ones, then oldest first, tails first
  EXPECT_EQ(Serve(Count(5, 10)), 4);                      // uses 1: younger than 4 3 now
  EXPECT_EQ(pool_->FreeList(), (Ids{5, 6, 2, 4, 3, 1}));
  Ids other;
  ASSERT_TRUE(pool_->Take(3, other));
  EXPECT_EQ(other, (Ids{2, 5, 6}));  // together, ascending
  EXPECT_EQ(cache_->num_blocks(), 3);
  pool_->Release(other);
  EXPECT_EQ(Serve(Count(9, 10)), 4);  // its tail is gone
  EXPECT_EQ(Serve(Count(9, 50)), 8);
}

TEST_F(PrefixCacheTest, ANeighbourThatIsKeptIsNotEvictedBeforeItsTurn) {
  Start(10);
  Serve(Count(9, 10));  // 1 2 kept
  Serve(Count(9, 50));  // 3 4 kept
  Ids table;
  ASSERT_TRUE(pool_->Take(5, table));
  EXPECT_EQ(table, (Ids{5, 6, 7, 8, 9}));
  table.assign({table[0]});
  pool_->Release(Ids{6, 7, 8, 9});
  ASSERT_TRUE(pool_->Take(4, table));
  EXPECT_EQ(table, (Ids{5, 6, 7, 8, 9}));
  ASSERT_TRUE(pool_->Take(1, table));
  EXPECT_EQ(table.back(), 2);  // the oldest tail
}

TEST_F(PrefixCacheTest, TwoThatComputedTheSameSideBySideAreOneNode) {
  Start(100);
  Seq a = Begin(Count(5)), b = Begin(Count(5));
  Commit(a);
  Commit(b);
  EXPECT_EQ(cache_->num_blocks(), 2);
  // b goes on behind its own copy; a ends and its copy is evicted.
  b.tokens = Count(9);
  ASSERT_TRUE(pool_->Take(1, b.blocks));
  Commit(b);
  const int32_t copy = a.blocks[0];
  pool_->Release(a.blocks);
  Ids rest;
  ASSERT_TRUE(pool_->Take(pool_->num_free(), rest));
  EXPECT_FALSE(cache_->Knows(copy));
  pool_->Release(rest);
  EXPECT_EQ(Serve(Count(9)), 8);
  pool_->Release(b.blocks);
}

TEST_F(PrefixCacheTest, ClearForgetsAndWhatRanThenPublishesNothingMore) {
  Start(100);
  Serve(Count(9));
  Seq running = Begin(Count(9, 50));
  cache_->Clear();
  Commit(running);
  EXPECT_EQ(cache_->num_blocks(), 0);
  EXPECT_EQ(Serve(Count(9)), 0);
  EXPECT_EQ(Serve(Count(9, 50)), 0);
  pool_->Release(running.blocks);
  EXPECT_EQ(Serve(Count(9)), 8);
  EXPECT_EQ(pool_->num_free(), 99);
}

// Bug case C26: K and V made under an adapter served to the base model, because its name equalled a salt.
TEST_F(PrefixCacheTest, C26KeysAreLabelledAndOfKnownLength) {
  const auto join = [](std::vector<CacheKey> keys) { return JoinCacheKeys(keys); };
  const std::set<std::string> different = {
      join({}),
      join({{"adapter", "X"}}),
      join({{"salt", "X"}}),
      join({{"salt", "ab"}, {"salt", "c"}}),
      join({{"salt", "a"}, {"salt", "bc"}}),
      join({{"salt", ""}}),
      join({{"salt", "1:a"}, {"b", ""}}),
      join({{"salt", ""}, {"1:a1:b", ""}}),
  };
  EXPECT_EQ(different.size(), 8u);
  for (const auto hash : {&HashBytes, &SameForAll}) {
    Start(100, hash);
    Serve(Count(9), join({{"adapter", "X"}}));
    EXPECT_EQ(Serve(Count(9), join({{"salt", "X"}})), 0);
    EXPECT_EQ(Serve(Count(9)), 0);
    EXPECT_EQ(Serve(Count(9), join({{"adapter", "X"}})), 8);
  }
}

// Bug case C27: a hit decided by the hash alone returns another prompt's K and V.
TEST_F(PrefixCacheTest, C27ACollisionIsNoHit) {
  for (const auto hash : {&SameForAll, &SameLow}) {
    Start(200, hash);
    std::mt19937 random(20260802);
    std::vector<Ids> prompts;
    for (int i = 0; i < 40; ++i) {
      prompts.push_back(Count(4 * static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 3)));
      for (int t = 0; t < 9; ++t) prompts.back().push_back(static_cast<int32_t>(random() % 2));
    }
    std::set<Ids> seen;
    for (const Ids& prompt : prompts) {
      int32_t want = 0;
      for (int32_t n = 4; n < static_cast<int32_t>(prompt.size()); n += 4) {
        if (seen.contains(Ids(prompt.begin(), prompt.begin() + n))) want = n;
      }
      EXPECT_EQ(Serve(prompt), want);
      for (int32_t n = 4; n <= static_cast<int32_t>(prompt.size()); n += 4) {
        seen.emplace(prompt.begin(), prompt.begin() + n);
      }
    }
  }
}

TEST_F(PrefixCacheTest, HashesAreXxh3OfParentAndIdsAndDependOnTheSeed) {
  EXPECT_EQ(HashBytes({}, 0),
            (BlockHash{.low = 0x6001c324468d497f, .high = 0x99aa06d3014798d8}));  // published value
  EXPECT_NE(HashBytes({}, 0), HashBytes({}, 1));
}

}  // namespace
}  // namespace attest
