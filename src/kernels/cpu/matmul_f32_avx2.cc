// AVX2, every product in f32: the precise mode of all types, and both modes of f32, f16 and bf16 weights.
//
// Up to 6 rows of plain weights are multiplied straight from the tile. Otherwise a group of tiles is expanded
// to f32 panels [k][16] that stay in L2, and 6 x 16 register blocks run over them.
#include "kernels/cpu/matmul_unpack_avx2.h"

namespace attest {
namespace {

constexpr int kMaxRows = 6;                  // 12 sums, 2 weights, 1 activation of 16 registers
constexpr int64_t kPanelBytes = 192 * 1024;  // of a 512 KiB L2

template <DType kType>
ATTEST_INLINE __m256 LoadPlain(const std::byte* tile, int64_t k, int h) {
  const int64_t at = k * kTileRows + 8 * h;
  if constexpr (kType == DType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(tile) + at);
  } else if constexpr (kType == DType::kF16) {
    return LoadHalf8(reinterpret_cast<const uint16_t*>(tile) + at);
  } else {
    const __m128i bits =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(tile) + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
}

// Rows [row, row + kRows) times one tile. Few rows take several partial sums each, so that the FMA latency (4
// cycles, two per cycle) is covered; rowwise the order of sums is the same for every number of rows.
template <DType kType, int kRows, bool kRowwise>
void Block(const TileJob& job, const std::byte* tile, int64_t row, int64_t column) {
  constexpr int kParts = kRowwise ? 1 : kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;
  __m256 sums[kParts][kRows][2];
  for (auto& part : sums) {
    for (auto& sum : part) sum[0] = sum[1] = _mm256_setzero_ps();
  }
  const float* x = job.x + row * job.x_stride;
  const int64_t cols = job.cols;
  int64_t k = 0;
  for (; k + kParts <= cols; k += kParts) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const __m256 low = LoadPlain<kType>(tile, k + part, 0);
      const __m256 high = LoadPlain<kType>(tile, k + part, 1);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256 a = _mm256_broadcast_ss(x + r * job.x_stride + k + part);
        sums[part][r][0] = _mm256_fmadd_ps(a, low, sums[part][r][0]);
        sums[part][r][1] = _mm256_fmadd_ps(a, high, sums[part][r][1]);
      }
    }
    if constexpr (kRows <= 3) {
      _mm_prefetch(reinterpret_cast<const char*>(tile) + (k + kParts) * kTileRows * 2 + 2048, _MM_HINT_T0);
    }
  }
  for (; k < cols; ++k) {
    for (int r = 0; r < kRows; ++r) {
      const __m256 a = _mm256_broadcast_ss(x + r * job.x_stride + k);
      sums[0][r][0] = _mm256_fmadd_ps(a, LoadPlain<kType>(tile, k, 0), sums[0][r][0]);
      sums[0][r][1] = _mm256_fmadd_ps(a, LoadPlain<kType>(tile, k, 1), sums[0][r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int part = 1; part < kParts; ++part) {
      sums[0][r][0] = _mm256_add_ps(sums[0][r][0], sums[part][r][0]);
      sums[0][r][1] = _mm256_add_ps(sums[0][r][1], sums[part][r][1]);
    }
    StoreSums(job, row + r, column, sums[0][r][0], sums[0][r][1]);
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
    _mm256_store_ps(panel + k * kTileRows, LoadPlain<kType>(tile, k, 0));
    _mm256_store_ps(panel + k * kTileRows + 8, LoadPlain<kType>(tile, k, 1));
  }
}

template <class W>
void ExpandQuantised(const std::byte* tile, int64_t cols, float* panel) {
  using B = typename W::Block;
  const auto* block = reinterpret_cast<const B*>(tile);
  for (int64_t k = 0; k < cols; k += 32 * W::kChunks, ++block) {
    for (int chunk = 0; chunk < W::kChunks; ++chunk, panel += 32 * kTileRows) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256 minimum = W::Minimum(*block, chunk, h);
#pragma GCC unroll 2
        for (int group = 0; group < W::kGroups; ++group) {
          constexpr int kPairs = 16 / W::kGroups;
          const __m256 scale = W::Scale(*block, chunk, group, h);
#pragma GCC unroll 16
          for (int i = 0; i < kPairs; ++i) {
            const int p = group * kPairs + i;
            __m256i pair = W::Pair(*block, chunk, p, h);
            if constexpr (W::kOffsetBits != 0) {
              pair = _mm256_sub_epi16(pair, _mm256_set1_epi16(1 << W::kOffsetBits));
            }
            const __m256 even = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pair, 16), 16));
            const __m256 odd = _mm256_cvtepi32_ps(_mm256_srai_epi32(pair, 16));
            float* out = panel + 2 * p * kTileRows + 8 * h;
            if constexpr (W::kHasMinimum) {
              _mm256_store_ps(out, _mm256_fmadd_ps(even, scale, minimum));
              _mm256_store_ps(out + kTileRows, _mm256_fmadd_ps(odd, scale, minimum));
            } else {
              _mm256_store_ps(out, _mm256_mul_ps(even, scale));
              _mm256_store_ps(out + kTileRows, _mm256_mul_ps(odd, scale));
            }
          }
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

int64_t TilesPerGroup(int64_t cols) {
  const int64_t fit = kPanelBytes / (cols * kTileRows * static_cast<int64_t>(sizeof(float)));
  return fit < 1 ? 1 : fit > 4 ? 4 : fit;
}

int64_t ScratchBytes(int64_t, int64_t cols) {
  return TilesPerGroup(cols) * cols * kTileRows * static_cast<int64_t>(sizeof(float));
}

template <DType kType>
void RunFewRows(const TileJob& job) {
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    Rows<kType>(job, job.tiles + tile * job.tile_bytes, job.row_begin, job.row_end - job.row_begin,
                tile * kTileRows);
  }
}

void Run(const TileJob& job) {
  if (job.row_end - job.row_begin <= kMaxRows) {
    if (job.row_end == job.row_begin) return;
    if (job.dtype == DType::kF32) return RunFewRows<DType::kF32>(job);
    if (job.dtype == DType::kF16) return RunFewRows<DType::kF16>(job);
    if (job.dtype == DType::kBF16) return RunFewRows<DType::kBF16>(job);
  }
  auto* panels = reinterpret_cast<float*>(job.scratch);
  const int64_t panel_size = job.cols * kTileRows;
  const int64_t group = TilesPerGroup(job.cols);
  for (int64_t first = 0; first < job.num_tiles; first += group) {
    const int64_t last = first + group < job.num_tiles ? first + group : job.num_tiles;
    for (int64_t tile = first; tile < last; ++tile) {
      Expand(job.dtype, job.tiles + tile * job.tile_bytes, job.cols, panels + (tile - first) * panel_size);
    }
    for (int64_t row = job.row_begin; row < job.row_end; row += kMaxRows) {
      const int64_t rows = job.row_end - row < kMaxRows ? job.row_end - row : kMaxRows;
      for (int64_t tile = first; tile < last; ++tile) {
        const auto* panel = reinterpret_cast<const std::byte*>(panels + (tile - first) * panel_size);
        Rows<DType::kF32>(job, panel, row, rows, tile * kTileRows);
      }
    }
  }
}

bool NeedsPrepare(DType, int64_t, int64_t) { return false; }
int64_t PreparedBytes(int64_t, int64_t) { return 0; }
void Prepare(const PrepareJob&) {}

}  // namespace

const MatMulPath kMatMulAvx2Precise = {
    .name = "avx2_f32",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
