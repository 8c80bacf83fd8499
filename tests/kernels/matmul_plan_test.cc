#include "kernels/matmul_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace attest {
namespace {

TEST(MatMulPlan, TilesOfAllPartsCoverEachRunOnceAndEvenly) {
  const std::vector<TileRun> runs = {{36, 5760}, {1, 100}, {7, 9792}, {192, 5760}};
  int64_t total = 0;
  for (const TileRun& run : runs) total += run.num_tiles * run.tile_cost;
  for (int parts : {1, 2, 3, 7, 16, 300}) {
    std::vector<int64_t> cost(static_cast<size_t>(parts));
    for (size_t run = 0; run < runs.size(); ++run) {
      int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const IndexRange tiles = TilesOfPart(runs, run, part, parts);
        EXPECT_EQ(tiles.begin, next);
        EXPECT_GE(tiles.end, tiles.begin);
        next = tiles.end;
        cost[static_cast<size_t>(part)] += tiles.size() * runs[run].tile_cost;
      }
      EXPECT_EQ(next, runs[run].num_tiles);
    }
    for (int64_t c : cost) EXPECT_LE(c, total / parts + 2 * 9792);
  }
}

TEST(MatMulPlan, GridCutsRowsOnlyWhereTilesAreTooFew) {
  const auto parts = [](int64_t rows, int64_t tiles, int ranks) {
    const MatMulGrid grid = PlanMatMulGrid(rows, tiles, ranks);
    EXPECT_EQ(grid.row_parts * grid.tile_parts, ranks);
    return grid.row_parts;
  };
  EXPECT_EQ(parts(1, 36, 16), 1);
  EXPECT_EQ(parts(512, 36, 2), 1);
  EXPECT_EQ(parts(64, 36, 16), 1);   // too few rows to cut
  EXPECT_GT(parts(512, 36, 16), 1);  // 36 tiles on 16 ranks leave a quarter idle
  EXPECT_EQ(parts(512, 192, 16), 1);
  EXPECT_EQ(parts(512, 1, 2), 2);
}

}  // namespace
}  // namespace attest
