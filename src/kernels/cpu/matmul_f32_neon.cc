// NEON, every product in f32: the precise mode of all types, both modes of f32, f16 and bf16 weights, and
// everything on a CPU without dot products of bytes.
//
// Up to 6 rows of plain weights are multiplied straight from the tile. Otherwise a tile is expanded to an f32
// panel [k][16], and 6 x 16 register blocks run over it.
#include "kernels/cpu/matmul_unpack_neon.h"

namespace attest {
namespace {

constexpr int kMaxRows = 6;  // 24 sums, 4 weights, activations of 32 registers

template <DType kType>
ATTEST_INLINE float32x4_t LoadPlain(const std::byte* tile, int64_t k, int h) {
  const int64_t at = k * kTileRows + 4 * h;
  if constexpr (kType == DType::kF32) {
    return vld1q_f32(reinterpret_cast<const float*>(tile) + at);
  } else if constexpr (kType == DType::kF16) {
    return LoadHalf4(reinterpret_cast<const uint16_t*>(tile) + at);
  } else {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(tile) + at), 16));
  }
}

// Rows [row, row + kRows) times one tile. Few rows take two partial sums each, to cover the latency of an
// FMA; rowwise the order of sums is the same for every number of rows.
template <DType kType, int kRows, bool kRowwise>
void Block(const TileJob& job, const std::byte* tile, int64_t row, int64_t column) {
  constexpr int kParts = !kRowwise && kRows <= 3 ? 2 : 1;
  float32x4_t sums[kParts][kRows][kTileVecs];
  for (auto& part : sums) {
    for (auto& row_sums : part) {
      for (auto& sum : row_sums) sum = vdupq_n_f32(0.0f);
    }
  }
  const float* x = job.x + row * job.x_stride;
  const int64_t cols = job.cols;
  int64_t k = 0;
  for (; k + kParts <= cols; k += kParts) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      float32x4_t weights[kTileVecs];
#pragma GCC unroll 4
      for (int h = 0; h < kTileVecs; ++h) weights[h] = LoadPlain<kType>(tile, k + part, h);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const float a = x[r * job.x_stride + k + part];
#pragma GCC unroll 4
        for (int h = 0; h < kTileVecs; ++h) sums[part][r][h] = vfmaq_n_f32(sums[part][r][h], weights[h], a);
      }
    }
  }
  for (; k < cols; ++k) {  // at most one, where there are two partial sums
    for (int r = 0; r < kRows; ++r) {
      const float a = x[r * job.x_stride + k];
      for (int h = 0; h < kTileVecs; ++h) {
        sums[0][r][h] = vfmaq_n_f32(sums[0][r][h], LoadPlain<kType>(tile, k, h), a);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < kTileVecs; ++h) {
      float32x4_t sum = sums[0][r][h];
      if constexpr (kParts == 2) sum = vaddq_f32(sum, sums[1][r][h]);
      StoreSums4(job, row + r, column + 4 * h, sum);
    }
  }
}

template <DType kType, bool kRowwise>
void RowsOf(const TileJob& job, const std::byte* tile, int64_t row, int64_t rows, int64_t column) {
  switch (rows) {
    case 1:
      return Block<kType, 1, kRowwise>(job, tile, row, column);
    case 2:
      return Block<kType, 2, kRowwise>(job, tile, row, column);
    case 3:
      return Block<kType, 3, kRowwise>(job, tile, row, column);
    case 4:
      return Block<kType, 4, kRowwise>(job, tile, row, column);
    case 5:
      return Block<kType, 5, kRowwise>(job, tile, row, column);
    default:
      return Block<kType, kMaxRows, kRowwise>(job, tile, row, column);
  }
}

template <DType kType>
void Rows(const TileJob& job, const std::byte* tile, int64_t row, int64_t rows, int64_t column) {
  job.rowwise ? RowsOf<kType, true>(job, tile, row, rows, column)
              : RowsOf<kType, false>(job, tile, row, rows, column);
}

template <DType kType>
void ExpandPlain(const std::byte* tile, int64_t cols, float* panel) {
  for (int64_t k = 0; k < cols; ++k) {
    for (int h = 0; h < kTileVecs; ++h)
      vst1q_f32(panel + k * kTileRows + 4 * h, LoadPlain<kType>(tile, k, h));
  }
}

// Four k of four rows to the panel's rows out + 16 order[j].
template <class W>
ATTEST_INLINE void StoreBytes(int8x16_t bytes, const int* order, float32x4_t scale, float32x4_t minimum,
                              float* out) {
  if constexpr (W::kOffsetBits != 0) bytes = vsubq_s8(bytes, vdupq_n_s8(1 << W::kOffsetBits));
  const int32x4_t words = vreinterpretq_s32_s8(bytes);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const float32x4_t q = vcvtq_f32_s32((words << (24 - 8 * j)) >> 24);
    const float32x4_t value = W::kHasMinimum ? vfmaq_f32(minimum, q, scale) : vmulq_f32(q, scale);
    vst1q_f32(out + order[j] * kTileRows, value);
  }
}

template <class W>
void ExpandQuantised(const std::byte* tile, int64_t cols, float* panel) {
  using B = typename W::Block;
  const auto* block = reinterpret_cast<const B*>(tile);
  for (int64_t k = 0; k < cols; k += 32 * W::kChunks, ++block) {  // exact: cols is whole blocks
    for (int chunk = 0; chunk < W::kChunks; ++chunk, panel += 32 * kTileRows) {
      for (int h = 0; h < kTileVecs; ++h) {
        const float32x4_t minimum = W::Minimum(*block, chunk, h);
#pragma GCC unroll 4
        for (int w = 0; w < 4; ++w) {
          const float32x4_t scale = W::Scale(*block, chunk, w * W::kGroups / 4, h);
          const RunBytes run = W::Run(*block, chunk, w, h);
          float* out = panel + 8 * w * kTileRows + 4 * h;
          StoreBytes<W>(run.first, kFirstOrder, scale, minimum, out);
          StoreBytes<W>(run.second, kSecondOrder, scale, minimum, out);
        }
      }
    }
  }
}

void Expand(DType dtype, const std::byte* tile, int64_t cols, float* panel) {
  switch (dtype) {
    case DType::kF32:
      return ExpandPlain<DType::kF32>(tile, cols, panel);
    case DType::kF16:
      return ExpandPlain<DType::kF16>(tile, cols, panel);
    case DType::kBF16:
      return ExpandPlain<DType::kBF16>(tile, cols, panel);
    default:
      return WithWeights(dtype, [&]<class W>() { ExpandQuantised<W>(tile, cols, panel); });
  }
}

template <DType kType>
void RunFewRows(const TileJob& job) {
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    Rows<kType>(job, job.tiles + tile * job.tile_bytes, job.row_begin, job.row_end - job.row_begin,
                tile * kTileRows);
  }
}

void Run(const TileJob& job) {
  if (job.row_end == job.row_begin) return;
  if (job.row_end - job.row_begin <= kMaxRows) {
    if (job.dtype == DType::kF32) return RunFewRows<DType::kF32>(job);
    if (job.dtype == DType::kF16) return RunFewRows<DType::kF16>(job);
    if (job.dtype == DType::kBF16) return RunFewRows<DType::kBF16>(job);
  }
  auto* panel = reinterpret_cast<float*>(job.scratch);
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    Expand(job.dtype, job.tiles + tile * job.tile_bytes, job.cols, panel);
    for (int64_t row = job.row_begin; row < job.row_end; row += kMaxRows) {
      const int64_t rows = job.row_end - row < kMaxRows ? job.row_end - row : kMaxRows;
      Rows<DType::kF32>(job, job.scratch, row, rows, tile * kTileRows);
    }
  }
}

bool NeedsPrepare(DType, int64_t, int64_t) { return false; }
int64_t PreparedBytes(int64_t, int64_t) { return 0; }
void Prepare(const PrepareJob&) {}
int64_t ScratchBytes(int64_t, int64_t cols) { return cols * kTileRows * static_cast<int64_t>(sizeof(float)); }

}  // namespace

const MatMulPath kMatMulNeon = {
    .name = "neon",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
