#define ATTEST_PROBE kRealProbe
#define ATTEST_TILE_PROBE RealTileProduct
#include "tests/emulated/probe.inc"
