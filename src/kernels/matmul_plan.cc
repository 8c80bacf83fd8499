#include "kernels/matmul_plan.h"

#include <algorithm>

#include "base/check.h"

namespace attest {
namespace {

constexpr int64_t kMinRowsPerPart = 64;
constexpr int64_t kExpandCostRows =
    12;  // expanding a tile costs about as much as multiplying 12 rows with it

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

MatMulGrid PlanMatMulGrid(int64_t num_rows, int64_t num_tiles, int num_ranks) {
  ATTEST_CHECK_GE(num_ranks, 1);
  MatMulGrid best{.row_parts = 1, .tile_parts = num_ranks};
  int64_t best_cost = -1;
  for (int row_parts = 1; row_parts <= num_ranks; ++row_parts) {
    if (num_ranks % row_parts != 0) continue;
    if (row_parts > 1 && num_rows < kMinRowsPerPart * row_parts) break;
    const int tile_parts = num_ranks / row_parts;
    const int64_t cost = CeilDiv(num_tiles, tile_parts) * (CeilDiv(num_rows, row_parts) + kExpandCostRows);
    if (best_cost < 0 || cost < best_cost) {
      best_cost = cost;
      best = {.row_parts = row_parts, .tile_parts = tile_parts};
    }
  }
  return best;
}

IndexRange TilesOfPart(std::span<const TileRun> runs, size_t run, int part, int parts) {
  int64_t total = 0;
  int64_t before = 0;  // cost of the runs in front
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i < run) before += runs[i].num_tiles * runs[i].tile_cost;
    total += runs[i].num_tiles * runs[i].tile_cost;
  }
  const auto first_tile_at = [&](int64_t cost) {
    const int64_t tile = CeilDiv(std::max<int64_t>(cost - before, 0), runs[run].tile_cost);
    return std::min(tile, runs[run].num_tiles);
  };
  return {first_tile_at(total * part / parts), first_tile_at(total * (part + 1) / parts)};
}

}  // namespace attest
