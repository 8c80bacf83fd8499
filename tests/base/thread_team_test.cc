#include "base/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace attest {
namespace {

TEST(ThreadTeam, EveryRankRunsOncePerRegion) {
  for (int size : {1, 2, 3, 5}) {
    ThreadTeam team(ThreadTeamOptions{.num_threads = size, .pin = false, .spin_us = 5});
    std::vector<int> counts(static_cast<size_t>(size), 0);
    for (int round = 0; round < 500; ++round)
      team.Run([&](int rank) { ++counts[static_cast<size_t>(rank)]; });
    for (int count : counts) EXPECT_EQ(count, 500);
  }
}

TEST(ThreadTeam, WorkersThatSleptWakeUp) {
  ThreadTeam team(ThreadTeamOptions{.num_threads = 3, .pin = false, .spin_us = 0});
  std::atomic<int> sum{0};
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.Run([&](int rank) { sum += rank + 1; });
  }
  EXPECT_EQ(sum.load(), 20 * 6);
}

TEST(ThreadTeam, BarrierSeparatesPhases) {
  ThreadTeam team(ThreadTeamOptions{.num_threads = 4, .pin = false, .spin_us = 5});
  std::vector<int> first(4, 0), second(4, 0);
  for (int round = 1; round <= 200; ++round) {
    team.Run([&](int rank) {
      first[static_cast<size_t>(rank)] = round;
      team.Barrier();
      int sum = 0;
      for (int value : first) sum += value;
      second[static_cast<size_t>(rank)] = sum;
      team.Barrier();
    });
    for (int value : second) ASSERT_EQ(value, 4 * round);
  }
}

TEST(PartitionRange, CoversEveryItemOnceOnGranuleBorders) {
  for (int64_t total : {0, 1, 7, 16, 1000}) {
    for (int size : {1, 2, 3, 7}) {
      for (int64_t granule : {1, 4, 16}) {
        int64_t expected_begin = 0;
        for (int rank = 0; rank < size; ++rank) {
          const IndexRange range = PartitionRange(total, rank, size, granule);
          EXPECT_EQ(range.begin, expected_begin);
          EXPECT_TRUE(range.begin % granule == 0 || range.begin == total);
          expected_begin = range.end;
        }
        EXPECT_EQ(expected_begin, total);
      }
    }
  }
}

}  // namespace
}  // namespace attest
