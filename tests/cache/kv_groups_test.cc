#include "cache/kv_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace attest {
namespace {

using ::testing::ElementsAre;

TEST(KvGroups, LayersWithoutWindowsAreOneGroup) {
  const std::vector<KvWindow> layers(5);
  const auto groups = MakeKvGroups(layers);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].window, std::nullopt);
  EXPECT_THAT(groups[0].layers, ElementsAre(0, 1, 2, 3, 4));
}

// Three sliding layers and two full ones: blocks of two layers, and the last group fills half of its own.
TEST(KvGroups, EveryLayerHasOnePlaceInAGroupOfItsOwnKind) {
  const std::vector<KvWindow> layers{18, std::nullopt, 18, std::nullopt, 18};
  const auto groups = MakeKvGroups(layers);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_THAT(groups[0].layers, ElementsAre(1, 3));
  EXPECT_THAT(groups[1].layers, ElementsAre(0, 2));
  EXPECT_THAT(groups[2].layers, ElementsAre(4));
  const auto places = PlacesOf(groups, layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const KvGroup& group = groups[static_cast<size_t>(places[layer].group)];
    EXPECT_EQ(group.window, layers[layer]);
    EXPECT_EQ(group.layers[static_cast<size_t>(places[layer].buffer)], static_cast<int>(layer));
  }
}

// Walks a sequence forward in every mix of steps and counts the blocks that hold a key which somebody still
// sees.
TEST(KvGroups, PeakBlocksIsNeverPassed) {
  for (const int window : {1, 2, 7, 16, 33}) {
    for (const int block_size : {1, 4, 16}) {
      for (const int step : {1, 3, 8, 40}) {
        const std::vector<KvWindow> windows{std::nullopt, window};
        const KvNeed need{.windows = windows, .block_size = block_size, .max_step_tokens = step};
        for (int computed = 0; computed < 100;) {
          const int count = std::min(step, 100 - computed);
          const int end = computed + count;
          int64_t held = 0;
          for (const KvWindow& w : windows) {
            held += (end + block_size - 1) / block_size - FirstSeen(w, computed) / block_size;
          }
          ASSERT_LE(held, PeakBlocks(need, end)) << window << " " << block_size << " " << step << " " << end;
          computed = end;
        }
      }
    }
  }
}

TEST(KvGroups, MostTokensIsTheLongestThatFits) {
  const std::vector<KvWindow> full{std::nullopt}, mixed{std::nullopt, 20}, sliding{20};
  for (const auto& windows : {full, mixed, sliding}) {
    const KvNeed need{.windows = windows, .block_size = 16, .max_step_tokens = 8};
    for (const int64_t blocks : {1, 2, 3, 5, 8, 40}) {
      const int64_t most = MostTokens(need, blocks, 5000);
      EXPECT_LE(PeakBlocks(need, most), most == 0 ? 0 : blocks);
      if (most == 5000) continue;
      EXPECT_GT(PeakBlocks(need, most + 1), blocks);
    }
  }
  EXPECT_EQ(MostTokens({.windows = full, .block_size = 16, .max_step_tokens = 8}, 12, 5000), 192);
  // Without full layers the pool does not bound the length.
  EXPECT_EQ(MostTokens({.windows = sliding, .block_size = 16, .max_step_tokens = 8}, 3, 5000), 5000);
}

}  // namespace
}  // namespace attest
