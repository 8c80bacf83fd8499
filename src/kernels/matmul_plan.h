// How a product is cut among the ranks of a team: pure functions, tested without a device. Private to
// kernels/.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"

namespace attest {

// Ranks form a grid: `row_parts` parts of the activations' rows times size / row_parts parts of W's tiles.
struct MatMulGrid {
  int row_parts = 1;
  int tile_parts = 1;
};

// The grid with the least work on its busiest rank. Rows are only cut where each part keeps at least 64:
// every part expands its tiles anew. REQUIRES: num_ranks >= 1. row_parts * tile_parts == num_ranks.
[[nodiscard]] MatMulGrid PlanMatMulGrid(int64_t num_rows, int64_t num_tiles, int num_ranks);

// A run of tiles of equal cost.
struct TileRun {
  int64_t num_tiles = 0;
  int64_t tile_cost = 0;
};

// The tiles of runs[run] that part `part` of `parts` takes when all runs, laid end to end, are cut into parts
// of equal cost. The ranges of all parts cover each run once.
[[nodiscard]] IndexRange TilesOfPart(std::span<const TileRun> runs, size_t run, int part, int parts);

}  // namespace attest
