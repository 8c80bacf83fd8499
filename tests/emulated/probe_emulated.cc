#define ATTEST_PROBE kEmulatedProbe
#define ATTEST_TILE_PROBE EmulatedTileProduct
#include "tests/emulated/probe.inc"
