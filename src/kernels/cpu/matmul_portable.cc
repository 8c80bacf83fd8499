// The plain path: one tile is expanded to f32, then every row is multiplied with it. Any CPU.
#include "kernels/cpu/matmul_path.h"
#include "kernels/matmul_layout.h"

namespace attest {
namespace {

bool NeedsPrepare(DType, int64_t, int64_t) { return false; }
int64_t PreparedBytes(int64_t, int64_t) { return 0; }
void Prepare(const PrepareJob&) {}
int64_t ScratchBytes(int64_t, int64_t cols) { return cols * kTileRows * static_cast<int64_t>(sizeof(float)); }

void Run(const TileJob& job) {
  auto* panel = reinterpret_cast<float*>(job.scratch);
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    DequantizeTile(job.dtype, job.tiles + tile * job.tile_bytes, job.cols, panel);
    const int64_t column = tile * kTileRows;
    const int64_t valid = job.num_outputs - column < kTileRows ? job.num_outputs - column : kTileRows;
    for (int64_t row = job.row_begin; row < job.row_end; ++row) {
      const float* x = job.x + row * job.x_stride;
      float sums[kTileRows] = {};
      for (int64_t k = 0; k < job.cols; ++k) {
        for (int n = 0; n < kTileRows; ++n) sums[n] += x[k] * panel[k * kTileRows + n];
      }
      float* y = job.y + row * job.y_stride + column;
      for (int64_t n = 0; n < valid; ++n) {
        const float value = sums[n] + (job.bias == nullptr ? 0.0f : job.bias[column + n]);
        y[n] = job.add ? y[n] + value : value;
      }
    }
  }
}

}  // namespace

const MatMulPath kMatMulPortable = {
    .name = "portable",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
