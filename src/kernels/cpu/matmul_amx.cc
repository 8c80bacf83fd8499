// AMX: from 33 rows on, pairs of tiles of W are expanded once per call to bf16 tiles in L2 and multiplied, 32
// rows at a time, into 2 x 2 accumulators. Below, as avx512_vnni: a tile product costs the same for 1 row as
// for 16.
//
// A tile register holds 16 rows of 64 bytes. Activations: [16 rows][32 k]; weights: [16 pairs of k][16 n][2].
// K is cut into runs of at most 9 chunks of 32, so that 32 rows of activations and of the panel share L1 (18
// KiB each); partial sums wait in L2 as tiles.
#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/matmul_bf16_avx512.h"

namespace attest {
namespace {

constexpr int64_t kMinRows = 33;
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kRowPair = 32;  // rows of two tiles

ATTEST_INLINE bool UsesTiles(int64_t num_rows, int64_t cols) {
  return num_rows >= kMinRows && cols % 32 == 0;
}
ATTEST_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

int64_t PreparedBytes(int64_t num_rows, int64_t cols) {
  if (!UsesTiles(num_rows, cols)) return kMatMulAvx512Vnni.prepared_bytes(num_rows, cols);
  return RoundUp(num_rows, kRowPair) * cols * 2;
}

// Tiles [row / 16][k / 32]. Rows past the last are left as they are: what they give is never stored.
void Prepare(const PrepareJob& job) {
  if (!UsesTiles(job.num_rows, job.cols)) {
    kMatMulAvx512Vnni.prepare(job);
    return;
  }
  const int64_t chunks = job.cols / 32;
  for (int64_t unit = job.unit_begin; unit < job.unit_end; ++unit) {
    const int64_t chunk = unit % chunks;
    for (int64_t row = unit / chunks * kStripRows, end = row + kStripRows; row < end && row < job.num_rows;
         ++row) {
      std::byte* to = job.out + (row / 16 * chunks + chunk) * kTileBytes + row % 16 * 64;
      _mm512_storeu_si512(to, LoadBf16(job.x + row * job.x_stride + chunk * 32));
    }
  }
}

int64_t ScratchBytes(int64_t num_rows, int64_t cols) {
  const int64_t panel = RoundUp(cols, 32) * 64;
  const int64_t sums = RoundUp(num_rows, kRowPair) / kRowPair * 4 * kTileBytes;
  const int64_t other = kMatMulAvx512Vnni.scratch_bytes(num_rows, cols);
  return panel + sums > other ? panel + sums : other;
}

// Writes the sums of 32 rows: four tiles of 16 x 16 f32, [rows 0-15 | 16-31][tile 0 | 1].
void StoreRowPair(const TileJob& job, const float* sums, int64_t row, int64_t column, bool both) {
  for (int64_t r = 0; r < kRowPair && row + r < job.row_end; ++r) {
    const float* from = sums + r / 16 * 512 + r % 16 * 16;
    StoreSums(job, row + r, column, _mm512_loadu_ps(from));
    if (both) StoreSums(job, row + r, column + kTileRows, _mm512_loadu_ps(from + 256));
  }
}

void MultiplyPanel(const TileJob& job, const std::byte* panel, float* sums, int64_t column, bool both) {
  const int64_t chunks = job.cols / 32;
  const int64_t runs = (chunks + 8) / 9;
  const int64_t run_chunks = (chunks + runs - 1) / runs;
  for (int64_t begin = 0; begin < chunks; begin += run_chunks) {
    const int64_t end = chunks - begin < run_chunks ? chunks : begin + run_chunks;
    const bool last = end == chunks;
    int64_t previous = -1;
    for (int64_t row = job.row_begin; row < job.row_end; row += kRowPair) {
      const std::byte* a0 = job.prepared + row / 16 * chunks * kTileBytes;
      const std::byte* a1 = a0 + chunks * kTileBytes;
      float* c = sums + (row - job.row_begin) * 32;  // 4 tiles of 256 per 32 rows
      if (begin == 0) {
        AmxTile<0>::Zero();
        AmxTile<1>::Zero();
        AmxTile<2>::Zero();
        AmxTile<3>::Zero();
      } else {
        AmxTile<0>::Load(c, 64);
        AmxTile<1>::Load(c + 256, 64);
        AmxTile<2>::Load(c + 512, 64);
        AmxTile<3>::Load(c + 768, 64);
      }
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const std::byte* b = panel + chunk * 2 * kTileBytes;
        AmxTile<4>::Load(a0 + chunk * kTileBytes, 64);
        AmxTile<6>::Load(b, 64);
        AmxTile<0>::AddDotBf16<4, 6>();
        AmxTile<7>::Load(b + kTileBytes, 64);
        AmxTile<1>::AddDotBf16<4, 7>();
        AmxTile<5>::Load(a1 + chunk * kTileBytes, 64);
        AmxTile<2>::AddDotBf16<5, 6>();
        AmxTile<3>::AddDotBf16<5, 7>();
      }
      AmxTile<0>::Store(c, 64);
      AmxTile<1>::Store(c + 256, 64);
      AmxTile<2>::Store(c + 512, 64);
      AmxTile<3>::Store(c + 768, 64);
      // The rows before, not the ones just stored: their lines have reached L1 by now.
      if (last && previous >= 0)
        StoreRowPair(job, sums + (previous - job.row_begin) * 32, previous, column, both);
      previous = row;
    }
    if (last && previous >= 0)
      StoreRowPair(job, sums + (previous - job.row_begin) * 32, previous, column, both);
  }
}

void Run(const TileJob& job) {
  if (!UsesTiles(job.num_rows, job.cols)) {
    kMatMulAvx512Vnni.run(job);
    return;
  }
  std::byte* panel = job.scratch;
  auto* sums = reinterpret_cast<float*>(panel + job.cols * 64);
  const ConfiguredTiles configured;
  for (int64_t tile = 0; tile < job.num_tiles; tile += 2) {
    const bool both = tile + 1 < job.num_tiles;
    for (int64_t t = 0; t < 2; ++t) {
      const int64_t source = both ? tile + t : tile;  // a last, odd tile is its own partner, not stored
      ExpandBf16(job.dtype, job.tiles + source * job.tile_bytes, 0, job.cols, panel + t * kTileBytes, 64,
                 2 * kTileBytes);
    }
    // Loading a tile does not tell the compiler that it reads memory: the panel must have been written.
    asm volatile("" ::: "memory");
    MultiplyPanel(job, panel, sums, tile * kTileRows, both);
  }
}

bool NeedsPrepare(DType dtype, int64_t num_rows, int64_t cols) {
  return UsesTiles(num_rows, cols) || kMatMulAvx512Vnni.needs_prepare(dtype, num_rows, cols);
}

}  // namespace

const MatMulPath kMatMulAmx = {
    .name = "amx",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
