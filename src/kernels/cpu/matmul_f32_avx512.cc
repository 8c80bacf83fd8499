// AVX-512, every product in f32: both modes of all types.
//
// Up to 8 rows of plain weights are multiplied straight from the tile. Otherwise pairs of tiles are expanded
// to f32 panels [k][32] that stay in L2, and 12 x 32 register blocks run over them.
#include "kernels/cpu/matmul_unpack_avx512.h"

namespace attest {
namespace {

constexpr int64_t kMaxRows = 12;  // 24 sums, 2 weights, 1 activation of 32 registers
constexpr int64_t kFewRows = 8;
constexpr int64_t kPanelCols = 1024;  // 128 KiB of a pair of tiles

// kRows rows times kTiles tiles over columns [k_begin, k_end). `panel` holds them from k_begin on. Sums of a
// product cut along k wait in y: the first part stores, the others add.
template <DType kType, int kRows, int kTiles, bool kRowwise>
void Block(const TileJob& job, const std::byte* panel, int64_t k_begin, int64_t k_end, int64_t row,
           int64_t column) {
  // Few rows take several partial sums each, so that the FMA latency (4 cycles, two per cycle) is covered.
  // Their number does not depend on kTiles: how tiles are paired depends on the team, and results shall not.
  // Rowwise it does not depend on kRows either.
  constexpr int kParts = kRowwise || kRows >= 8 ? 1 : kRows >= 4 ? 2 : 4;
  __m512 sums[kParts][kRows][kTiles];
  for (auto& part : sums) {
    for (auto& row_sums : part) {
      for (auto& sum : row_sums) sum = _mm512_setzero_ps();
    }
  }
  const float* x = job.x + row * job.x_stride + k_begin;
  const int64_t count = k_end - k_begin;
  int64_t k = 0;
  for (; k + kParts <= count; k += kParts) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      __m512 w[kTiles];
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) w[t] = LoadPlain<kType>(panel, (k + part) * kTiles + t);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512 a = _mm512_set1_ps(x[r * job.x_stride + k + part]);
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) sums[part][r][t] = _mm512_fmadd_ps(a, w[t], sums[part][r][t]);
      }
    }
  }
  for (; k < count; ++k) {
    for (int r = 0; r < kRows; ++r) {
      const __m512 a = _mm512_set1_ps(x[r * job.x_stride + k]);
      for (int t = 0; t < kTiles; ++t) {
        sums[0][r][t] = _mm512_fmadd_ps(a, LoadPlain<kType>(panel, k * kTiles + t), sums[0][r][t]);
      }
    }
  }
  TileJob store = job;
  if (k_begin > 0) {
    store.add = true;
    store.bias = nullptr;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTiles; ++t) {
      for (int part = 1; part < kParts; ++part) {
        sums[0][r][t] = _mm512_add_ps(sums[0][r][t], sums[part][r][t]);
      }
      StoreSums(store, row + r, column + t * kTileRows, sums[0][r][t]);
    }
  }
}

template <DType kType, int kTiles, bool kRowwise>
void RowsOf(const TileJob& job, const std::byte* panel, int64_t k_begin, int64_t k_end, int64_t row,
            int64_t row_end, int64_t column) {
  while (row < row_end) {
    const int64_t left = row_end - row;
    if (left >= kMaxRows) {
      Block<kType, kMaxRows, kTiles, kRowwise>(job, panel, k_begin, k_end, row, column);
      row += kMaxRows;
    } else if (left >= 8) {
      Block<kType, 8, kTiles, kRowwise>(job, panel, k_begin, k_end, row, column);
      row += 8;
    } else if (left >= 4) {
      Block<kType, 4, kTiles, kRowwise>(job, panel, k_begin, k_end, row, column);
      row += 4;
    } else if (left >= 2) {
      Block<kType, 2, kTiles, kRowwise>(job, panel, k_begin, k_end, row, column);
      row += 2;
    } else {
      Block<kType, 1, kTiles, kRowwise>(job, panel, k_begin, k_end, row, column);
      row += 1;
    }
  }
}

template <DType kType, int kTiles>
void Rows(const TileJob& job, const std::byte* panel, int64_t k_begin, int64_t k_end, int64_t row,
          int64_t row_end, int64_t column) {
  job.rowwise ? RowsOf<kType, kTiles, true>(job, panel, k_begin, k_end, row, row_end, column)
              : RowsOf<kType, kTiles, false>(job, panel, k_begin, k_end, row, row_end, column);
}

// Columns [k_begin, k_end) of a tile to panel[k][tile of kTiles][16]; the last k of an odd range alone.
void Expand(DType dtype, const std::byte* tile, int64_t k_begin, int64_t k_end, int num_tiles, float* panel) {
  const int64_t stride = int64_t{num_tiles} * kTileRows;
  const auto emit = [=](int64_t pair, __m512 even, __m512 odd) __attribute__((always_inline)) {
    _mm512_storeu_ps(panel + 2 * pair * stride, even);
    _mm512_storeu_ps(panel + (2 * pair + 1) * stride, odd);
  };
  const auto plain = [&]<DType kType>() {
    const int64_t even_end = k_end - (k_end - k_begin) % 2;
    ForEachPairPlain<kType>(tile, k_begin, even_end, emit);
    if (even_end < k_end) {
      _mm512_storeu_ps(panel + (even_end - k_begin) * stride, LoadPlain<kType>(tile, even_end));
    }
  };
  switch (dtype) {
    case DType::kF32:
      return plain.template operator()<DType::kF32>();
    case DType::kF16:
      return plain.template operator()<DType::kF16>();
    case DType::kBF16:
      return plain.template operator()<DType::kBF16>();
    default:
      return WithWeights(dtype, [&]<class W>() { ForEachPairQuantised<W>(tile, k_begin, k_end, emit); });
  }
}

int64_t ScratchBytes(int64_t, int64_t cols) {
  return (cols < kPanelCols ? cols : kPanelCols) * 2 * kTileRows * static_cast<int64_t>(sizeof(float));
}

template <DType kType>
void RunFewRows(const TileJob& job) {
  // Rowwise, sums are cut along k where the panels of more rows are.
  const int64_t step = job.rowwise ? kPanelCols : job.cols;
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    for (int64_t k = 0; k < job.cols; k += step) {
      const int64_t k_end = job.cols - k < step ? job.cols : k + step;
      const std::byte* weights =
          job.tiles + tile * job.tile_bytes + k * kTileRows * (kType == DType::kF32 ? 4 : 2);
      Rows<kType, 1>(job, weights, k, k_end, job.row_begin, job.row_end, tile * kTileRows);
    }
  }
}

void Run(const TileJob& job) {
  if (job.row_end - job.row_begin <= kFewRows) {
    if (job.dtype == DType::kF32) return RunFewRows<DType::kF32>(job);
    if (job.dtype == DType::kF16) return RunFewRows<DType::kF16>(job);
    if (job.dtype == DType::kBF16) return RunFewRows<DType::kBF16>(job);
  }
  auto* panel = reinterpret_cast<float*>(job.scratch);
  const auto* panel_bytes = job.scratch;
  for (int64_t first = 0; first < job.num_tiles; first += 2) {
    const int count = job.num_tiles - first < 2 ? 1 : 2;
    for (int64_t k = 0; k < job.cols; k += kPanelCols) {
      const int64_t k_end = job.cols - k < kPanelCols ? job.cols : k + kPanelCols;
      for (int t = 0; t < count; ++t) {
        Expand(job.dtype, job.tiles + (first + t) * job.tile_bytes, k, k_end, count, panel + t * kTileRows);
      }
      if (count == 2) {
        Rows<DType::kF32, 2>(job, panel_bytes, k, k_end, job.row_begin, job.row_end, first * kTileRows);
      } else {
        Rows<DType::kF32, 1>(job, panel_bytes, k, k_end, job.row_begin, job.row_end, first * kTileRows);
      }
    }
  }
}

bool NeedsPrepare(DType, int64_t, int64_t) { return false; }
int64_t PreparedBytes(int64_t, int64_t) { return 0; }
void Prepare(const PrepareJob&) {}

}  // namespace

const MatMulPath kMatMulAvx512 = {
    .name = "avx512",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
