// The AMX tile registers as the kernels use them: eight tiles of 16 rows x 64 bytes, all configured at full
// size. AmxTile<0> ... AmxTile<7> are the registers themselves, so an object of the type would mean nothing
// and there is none. Tests compile the kernels with the emulation of tests/emulated instead, which has the
// same members.
//
// Private to kernels/cpu; include only from files compiled for AMX.
#pragma once

#include <cstdint>

#include "kernels/cpu/x86_intrinsics.h"

namespace attest {
namespace {

// The 64 bytes that configure the tiles.
struct alignas(64) AmxTileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(AmxTileConfig) == 64);

#if !defined(ATTEST_X86_EMULATION)

inline void LoadTileConfig(const AmxTileConfig* config) {
  // GCC 12 models the instruction as reading 8 of the 64 bytes and drops the stores of the others: the tiles
  // stay unconfigured and the first tile instruction is SIGILL. The empty asm reads all of memory.
  asm volatile("" ::"r"(config) : "memory");
  _tile_loadconfig(config);
}
inline void ReleaseTiles() { _tile_release(); }

// GCC's own _tile_* are macros that paste a literal register number, so its asm is written out here. As
// there, a load does not tell the compiler that it reads memory.
template <int kTile>
struct AmxTile {
  static_assert(kTile >= 0 && kTile < 8);
  [[gnu::always_inline]] static void Zero() {
#if defined(__clang__)
    _tile_zero(kTile);
#else
    asm volatile("tilezero\t%%tmm%c0" ::"n"(kTile));
#endif
  }
  // Row r is the 64 bytes at from + r * row_bytes.
  [[gnu::always_inline]] static void Load(const void* from, int64_t row_bytes) {
#if defined(__clang__)
    _tile_loadd(kTile, from, row_bytes);
#else
    asm volatile("tileloadd\t(%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "n"(kTile));
#endif
  }
  [[gnu::always_inline]] static void Store(void* to, int64_t row_bytes) {
#if defined(__clang__)
    _tile_stored(kTile, to, row_bytes);
#else
    asm volatile("tilestored\t%%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "n"(kTile) : "memory");
#endif
  }
  // This tile, 16 x 16 f32, += A (16 rows of 16 bf16 pairs) * B (16 pair rows of 16 columns).
  template <int kA, int kB>
  [[gnu::always_inline]] static void AddDotBf16() {
    static_assert(kTile != kA && kTile != kB && kA != kB && kA < 8 && kB < 8);
#if defined(__clang__)
    _tile_dpbf16ps(kTile, kA, kB);
#else
    asm volatile("tdpbf16ps\t%%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(kTile), "n"(kA), "n"(kB));
#endif
  }
};

#endif  // !ATTEST_X86_EMULATION

// Configures the tiles of the calling thread and releases them after, so that a sleeping thread holds no tile
// state (8 KiB that the kernel would save on each switch).
class ConfiguredTiles {
 public:
  ConfiguredTiles() {
    static const AmxTileConfig config;
    LoadTileConfig(&config);
  }
  ~ConfiguredTiles() { ReleaseTiles(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
};

}  // namespace
}  // namespace attest
