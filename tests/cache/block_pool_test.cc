#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace attest {
namespace {

BlockPool MakePool(int64_t num_blocks) { return std::move(*BlockPool::Create(num_blocks)); }

TEST(BlockPool, RefusesAPoolWithoutUsableBlocksAndNamesTheValue) {
  for (const int64_t n : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{1} << 31}) {
    const auto pool = BlockPool::Create(n);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(pool.error().field, "num_blocks");
    EXPECT_NE(pool.error().message.find(std::to_string(n)), std::string::npos) << pool.error().message;
  }
}

TEST(BlockPool, HandsOutAscendingIdsFromOneAndNeverTheNullBlock) {
  BlockPool pool = MakePool(5);
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Take(4, blocks));
  EXPECT_EQ(blocks, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_usable(), 4);
}

TEST(BlockPool, TakesAllOrNothing) {
  BlockPool pool = MakePool(4);
  std::vector<int32_t> blocks;
  const Status status = pool.Take(4, blocks);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(status.error().message, "4 KV blocks wanted, 3 of 3 free");
  EXPECT_TRUE(blocks.empty());
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_TRUE(pool.Take(0, blocks));
  EXPECT_TRUE(pool.Take(3, blocks));
}

TEST(BlockPool, ReleasedBlocksAreReusedFirstAndInTheirOldOrder) {
  BlockPool pool = MakePool(8);
  std::vector<int32_t> a, b;
  ASSERT_TRUE(pool.Take(3, a));
  ASSERT_TRUE(pool.Take(2, b));
  pool.Release(a);
  EXPECT_EQ(pool.FreeList(), (std::vector<int32_t>{1, 2, 3, 6, 7}));
  std::vector<int32_t> c;
  ASSERT_TRUE(pool.Take(4, c));
  EXPECT_EQ(c, (std::vector<int32_t>{1, 2, 3, 6}));
}

TEST(BlockPool, ContinuesWithTheNeighbouringBlockWhereItIsFree) {
  BlockPool pool = MakePool(10);
  std::vector<int32_t> a, b, c;
  ASSERT_TRUE(pool.Take(2, a));  // 1 2
  ASSERT_TRUE(pool.Take(2, b));  // 3 4
  ASSERT_TRUE(pool.Take(1, c));  // 5
  pool.Release(a);               // free: 1 2 6 7 8 9
  ASSERT_TRUE(pool.Take(2, c));
  EXPECT_EQ(c, (std::vector<int32_t>{5, 6, 7}));
  ASSERT_TRUE(pool.Take(1, b));  // 5 is taken: the head of the list
  EXPECT_EQ(b, (std::vector<int32_t>{3, 4, 1}));
}

TEST(BlockPool, ASharedBlockComesBackWithItsLastReference) {
  BlockPool pool = MakePool(3);
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Take(1, blocks));
  pool.Share(blocks[0]);
  pool.Release(blocks);
  EXPECT_EQ(pool.refs(blocks[0]), 1);
  EXPECT_EQ(pool.num_free(), 1);
  pool.Release(blocks);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, PassesOverNullBlocksInATable) {
  BlockPool pool = MakePool(4);
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Take(2, blocks));
  blocks.insert(blocks.begin(), 3, kNullBlock);
  pool.Release(blocks);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.FreeList(), (std::vector<int32_t>{1, 2, 3}));
}

TEST(BlockPoolDeathTest, StopsOnABlockReleasedTwice) {
  BlockPool pool = MakePool(3);
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Take(1, blocks));
  pool.Release(blocks);
  EXPECT_DEATH(pool.Release(blocks), "refs");
}

TEST(BlockPool, NeverHandsOutABlockTwiceAndLosesNone) {
  std::mt19937 random(20260801);
  for (int round = 0; round < 50; ++round) {
    const int64_t n = 2 + static_cast<int64_t>(random() % 40);
    BlockPool pool = MakePool(n);
    std::vector<std::vector<int32_t>> tables;
    std::set<int32_t> kept;
    pool.OnEvict(&kept, [&kept](int32_t block) { ASSERT_EQ(kept.erase(block), 1u) << block; });
    for (int step = 0; step < 400; ++step) {
      const uint32_t action = random() % 6;
      if (action == 0 || tables.empty()) {
        tables.emplace_back();
        (void)pool.Take(random() % 5, tables.back());
      } else if (action == 1) {
        (void)pool.Take(random() % 5, tables[random() % tables.size()]);
      } else if (action == 2) {  // a second sequence on the same blocks
        tables.push_back(tables[random() % tables.size()]);
        for (const int32_t block : tables.back()) pool.Share(block);
      } else if (action == 3) {
        for (const int32_t block : tables[random() % tables.size()]) {
          if (kept.insert(block).second) pool.Keep(block);
        }
      } else if (action == 4 && !kept.empty()) {  // a hit on a block that may be free, or its end
        const auto it = std::next(kept.begin(), static_cast<int64_t>(random() % kept.size()));
        if (random() % 3 == 0) {
          pool.Unkeep(*it);
          kept.erase(it);
        } else {
          pool.Share(*it);
          tables.push_back({*it});
        }
      } else {
        const size_t at = random() % tables.size();
        pool.Release(tables[at]);
        tables.erase(tables.begin() + static_cast<int64_t>(at));
      }
      std::map<int32_t, int32_t> refs;
      for (const auto& table : tables) {
        std::set<int32_t> own;
        for (const int32_t block : table) {
          ASSERT_GT(block, 0);
          ASSERT_LT(block, n);
          ASSERT_TRUE(own.insert(block).second) << "block " << block << " twice in one table";
          ++refs[block];
        }
      }
      ASSERT_EQ(pool.num_free() + static_cast<int64_t>(refs.size()) + 1, n);
      for (const auto& [block, count] : refs) ASSERT_EQ(pool.refs(block), count);
      for (int32_t block = 1; block < n; ++block) ASSERT_EQ(pool.is_kept(block), kept.contains(block));
      const std::vector<int32_t> free = pool.FreeList();
      ASSERT_EQ(static_cast<int64_t>(free.size()), pool.num_free());
      for (const int32_t block : free) ASSERT_FALSE(refs.contains(block));
    }
  }
}

}  // namespace
}  // namespace attest
