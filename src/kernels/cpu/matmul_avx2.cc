// AVX2 with 16-bit activations: vpmaddwd multiplies pairs of weights (their stored integers, at most 8 bits)
// with pairs of activations (int16, one scale per 32) and adds them in 32 bits: 16 products per instruction
// against 8 of an f32 FMA, with sums that are exact inside a block. The rounding of an activation is 1.5e-5
// of its block's largest value, 250 times finer than int8.
//
// Up to kFusedLimit rows the weights are unpacked in registers and used at once (decode: the bytes of W bound
// the time). More rows: a tile is unpacked once to an int16 panel [pair][16][2], then 4 x 16 register blocks
// run over it. Plain types go to the f32 path.
#include "kernels/cpu/matmul_unpack_avx2.h"

namespace attest {
namespace {

constexpr int64_t kFusedLimit = 8;  // rows; from 9 on panels are faster
constexpr int kPrefetchBytes = 1536;
// Rows whose activations stay in L2 while tiles pass over them, and columns of a panel that stays in L1
// beside them (9 KiB and its scales).
constexpr int64_t kMaxRowBlock = 96;
constexpr int64_t kRowBlockBytes = 128 * 1024;
constexpr int64_t kPanelCols = 288;

ATTEST_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Rows per strip in memory: a single row lies alone.
ATTEST_INLINE int64_t StripWidth(int64_t num_rows) { return num_rows == 1 ? 1 : kStripRows; }

ATTEST_INLINE int64_t QuantsBytes(int64_t num_rows, int64_t cols) {
  return RoundUp(RoundUp(num_rows, StripWidth(num_rows)) * cols * 2, 64);
}

int64_t PreparedBytes(int64_t num_rows, int64_t cols) {
  return QuantsBytes(num_rows, cols) +
         RoundUp(num_rows, StripWidth(num_rows)) * (cols / 32) * int64_t{sizeof(ActivationBlock)};
}

// One strip, from its chunk (32 k) `chunk` on.
struct Strip {
  const int16_t* q;
  const ActivationBlock* blocks;
};
ATTEST_INLINE Strip StripAt(const TileJob& job, int64_t row, int64_t chunk) {
  const int64_t width = StripWidth(job.num_rows);
  const auto* q = reinterpret_cast<const int16_t*>(job.prepared);
  const auto* blocks =
      reinterpret_cast<const ActivationBlock*>(job.prepared + QuantsBytes(job.num_rows, job.cols));
  // row is a multiple of the width: whole strips lie in front.
  return {q + row * job.cols + chunk * 32 * width, blocks + row * (job.cols / 32) + chunk * width};
}

ATTEST_INLINE int32_t SumOf8(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}

struct Quants32 {
  __m256i low, high;
};

// 32 values to int16 and their block. Values below 2^-100 in a block of such values become 0.
ATTEST_INLINE Quants32 Quantise32(const float* x, ActivationBlock* block) {
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
  __m256 v[4];
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    // Magnitudes compare as integers, and NaN and infinity come out on top.
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude_mask));
  }
  __m128i top = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
  const int32_t bits = _mm_cvtsi128_si32(top);
  constexpr int32_t kInfinity = 0x7f800000;
  constexpr int32_t kTiny = (127 - 100) << 23;
  if (bits >= kInfinity || bits < kTiny) {
    const float scale = bits >= kInfinity ? __builtin_nanf("") : 0.0f;
    *block = {scale, scale, 0, 0};
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }
  const float max = _mm_cvtss_f32(_mm_castsi128_ps(top));
  const __m256 inverse = _mm256_set1_ps(32767.0f / max);
  __m256i n[4];
  for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[0], n[1]), 0xd8);
  const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[2], n[3]), 0xd8);
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i sums_low = _mm256_madd_epi16(low, ones);
  const __m256i sums_high = _mm256_madd_epi16(high, ones);
  block->sum_low =
      SumOf8(_mm_add_epi32(_mm256_castsi256_si128(sums_low), _mm256_extracti128_si256(sums_low, 1)));
  block->sum = block->sum_low + SumOf8(_mm_add_epi32(_mm256_castsi256_si128(sums_high),
                                                     _mm256_extracti128_si256(sums_high, 1)));
  block->scale = max / 32767.0f;
  block->scaled_sum = block->scale * static_cast<float>(block->sum);
  return {low, high};
}

// Eight pairs of four rows, [row][pair] to [pair][row].
ATTEST_INLINE void StoreTransposed(const __m256i* rows, int16_t* out) {
  const __m256i ab_low = _mm256_unpacklo_epi32(rows[0], rows[1]);
  const __m256i ab_high = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i cd_low = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const __m256i cd_high = _mm256_unpackhi_epi32(rows[2], rows[3]);
  // Each holds a pair of the first four in its lower half and of the last four in its upper half.
  const __m256i pairs04 = _mm256_unpacklo_epi64(ab_low, cd_low);
  const __m256i pairs15 = _mm256_unpackhi_epi64(ab_low, cd_low);
  const __m256i pairs26 = _mm256_unpacklo_epi64(ab_high, cd_high);
  const __m256i pairs37 = _mm256_unpackhi_epi64(ab_high, cd_high);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(pairs04, pairs15, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(pairs26, pairs37, 0x20));
  _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(pairs04, pairs15, 0x31));
  _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(pairs26, pairs37, 0x31));
}

void Prepare(const PrepareJob& job) {
  auto* q = reinterpret_cast<int16_t*>(job.out);
  auto* blocks = reinterpret_cast<ActivationBlock*>(job.out + QuantsBytes(job.num_rows, job.cols));
  const int64_t chunks = job.cols / 32;
  for (int64_t unit = job.unit_begin; unit < job.unit_end; ++unit) {
    const int64_t row = unit / chunks * kStripRows;
    const int64_t k = unit % chunks * 32;
    if (job.num_rows == 1) {
      const Quants32 quants = Quantise32(job.x + k, blocks + unit);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + k), quants.low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + k + 16), quants.high);
      continue;
    }
    __m256i low[kStripRows], high[kStripRows];
    for (int r = 0; r < kStripRows; ++r) {
      low[r] = high[r] = _mm256_setzero_si256();
      if (row + r >= job.num_rows) continue;  // never read: kernels stop at the last row
      const Quants32 quants =
          Quantise32(job.x + (row + r) * job.x_stride + k, blocks + unit * kStripRows + r);
      low[r] = quants.low;
      high[r] = quants.high;
    }
    StoreTransposed(low, q + unit * kStripRows * 32);
    StoreTransposed(high, q + unit * kStripRows * 32 + kStripRows * 16);
  }
}

ATTEST_INLINE __m256i BroadcastPair(const int16_t* q) {
  int32_t pair;
  __builtin_memcpy(&pair, q, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

// sum += products. The empty asm keeps GCC from re-associating the integer sums into a tree, which spills
// dozens of registers (three times slower with GCC 12).
ATTEST_INLINE void Accumulate(__m256i& sum, __m256i weights, __m256i activations) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, activations));
  asm("" : "+x"(sum));
}

// One tile times rows [row, row + kRows) of a strip kWidth wide, weights unpacked in registers.
template <class W, int kRows, int kWidth>
void FusedTile(const TileJob& job, const std::byte* tile, int64_t row, int64_t column) {
  using B = typename W::Block;
  constexpr int kPairs = 16 / W::kGroups;
  constexpr int kLines = static_cast<int>(sizeof(B)) / W::kChunks / 64 + 1;
  Strip strip = StripAt(job, row, 0);
  __m256 sums[kRows][2];
  for (auto& sum : sums) sum[0] = sum[1] = _mm256_setzero_ps();
  const auto* block = reinterpret_cast<const B*>(tile);
  const auto* const end = reinterpret_cast<const B*>(tile + job.tile_bytes);
  for (; block != end; ++block) {
    for (int chunk = 0; chunk < W::kChunks; ++chunk) {
      const char* ahead = reinterpret_cast<const char*>(block) +
                          static_cast<int64_t>(sizeof(B)) / W::kChunks * chunk + kPrefetchBytes;
#pragma GCC unroll 16
      for (int line = 0; line < kLines; ++line) _mm_prefetch(ahead + 64 * line, _MM_HINT_T0);
#pragma GCC unroll 2
      for (int group = 0; group < W::kGroups; ++group) {
        __m256i n[kRows][2];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          if constexpr (W::kOffsetBits == 0) {
            n[r][0] = _mm256_setzero_si256();
          } else {
            const ActivationBlock& ab = strip.blocks[r];
            const int32_t sum = W::kGroups == 1 ? ab.sum : group == 0 ? ab.sum_low : ab.sum - ab.sum_low;
            n[r][0] = _mm256_set1_epi32(-sum * (1 << W::kOffsetBits));
          }
          n[r][1] = n[r][0];
        }
#pragma GCC unroll 16
        for (int i = 0; i < kPairs; ++i) {
          const int p = group * kPairs + i;
          const __m256i low = W::Pair(*block, chunk, p, 0);
          const __m256i high = W::Pair(*block, chunk, p, 1);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m256i pair = BroadcastPair(strip.q + 2 * (kWidth * p + r));
            Accumulate(n[r][0], low, pair);
            Accumulate(n[r][1], high, pair);
          }
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const __m256 scale = W::Scale(*block, chunk, group, h);
          const __m256 minimum = W::Minimum(*block, chunk, h);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(n[r][h]), scale);
            sums[r][h] = _mm256_fmadd_ps(product, _mm256_set1_ps(strip.blocks[r].scale), sums[r][h]);
            if constexpr (W::kHasMinimum) {
              sums[r][h] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(strip.blocks[r].scaled_sum), sums[r][h]);
            }
          }
        }
      }
      strip.q += kWidth * 32;
      strip.blocks += kWidth;
    }
  }
  for (int r = 0; r < kRows; ++r) StoreSums(job, row + r, column, sums[r][0], sums[r][1]);
}

template <class W>
void RunFused(const TileJob& job) {
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    const std::byte* weights = job.tiles + tile * job.tile_bytes;
    const int64_t column = tile * kTileRows;
    if (job.num_rows == 1) {
      FusedTile<W, 1, 1>(job, weights, 0, column);
      continue;
    }
    // The second pass over a tile (5.7 KiB at 576 columns of q4_1) reads it from L1.
    for (int64_t row = job.row_begin; row < job.row_end; row += kStripRows) {
      switch (job.row_end - row) {
        case 1:
          FusedTile<W, 1, kStripRows>(job, weights, row, column);
          break;
        case 2:
          FusedTile<W, 2, kStripRows>(job, weights, row, column);
          break;
        case 3:
          FusedTile<W, 3, kStripRows>(job, weights, row, column);
          break;
        default:
          FusedTile<W, kStripRows, kStripRows>(job, weights, row, column);
      }
    }
  }
}

// Unpacks `cols` columns from block `block` on: panel [pair][2 h][16 lanes] with offsets subtracted, scales
// and minima [group][16].
template <class W>
void ExpandTile(const typename W::Block* block, int64_t cols, int16_t* panel, float* scales, float* minima) {
  constexpr int kPairs = 16 / W::kGroups;
  for (int64_t k = 0; k < cols; k += 32 * W::kChunks, ++block) {
    for (int chunk = 0; chunk < W::kChunks; ++chunk) {
#pragma GCC unroll 2
      for (int group = 0; group < W::kGroups; ++group) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          _mm256_store_ps(scales + 8 * h, W::Scale(*block, chunk, group, h));
          if constexpr (W::kHasMinimum) _mm256_store_ps(minima + 8 * h, W::Minimum(*block, chunk, h));
        }
        scales += kTileRows;
        minima += kTileRows;
#pragma GCC unroll 16
        for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 2
          for (int h = 0; h < 2; ++h) {
            __m256i pair = W::Pair(*block, chunk, group * kPairs + i, h);
            if constexpr (W::kOffsetBits != 0) {
              pair = _mm256_sub_epi16(pair, _mm256_set1_epi16(1 << W::kOffsetBits));
            }
            _mm256_store_si256(reinterpret_cast<__m256i*>(panel) + 2 * i + h, pair);
          }
        }
        panel += kPairs * 32;
      }
    }
  }
}

struct Panel {
  const int16_t* weights;
  const float* scales;
  const float* minima;
};

// kRows x 16 over a panel of `chunks` x 32 columns that starts at chunk `first`. Sums of a tile cut into
// several panels wait in `partial` [kRows][16].
template <int kRows, int kGroups, bool kHasMinimum>
void PanelBlock(const TileJob& job, const Panel& panel, int64_t first, int64_t chunks, float* partial,
                int64_t row, int64_t column) {
  constexpr int kPairs = 16 / kGroups;
  Strip strip = StripAt(job, row, first);
  __m256 sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < 2; ++h) {
      sums[r][h] = first == 0 ? _mm256_setzero_ps() : _mm256_load_ps(partial + r * kTileRows + 8 * h);
    }
  }
  const auto* weights = reinterpret_cast<const __m256i*>(panel.weights);
  const float* scales = panel.scales;
  const float* minima = panel.minima;
  for (int64_t c = 0; c < chunks; ++c) {
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group) {
      __m256i n[kRows][2];
      for (auto& sum : n) sum[0] = sum[1] = _mm256_setzero_si256();
#pragma GCC unroll 16
      for (int p = 0; p < kPairs; ++p) {
        const __m256i low = _mm256_load_si256(weights + 2 * p);
        const __m256i high = _mm256_load_si256(weights + 2 * p + 1);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i pair = BroadcastPair(strip.q + 2 * (kStripRows * p + r));
          Accumulate(n[r][0], low, pair);
          Accumulate(n[r][1], high, pair);
        }
      }
      weights += 2 * kPairs;
      strip.q += kStripRows * 2 * kPairs;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256 scale = _mm256_load_ps(scales + 8 * h);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(n[r][h]), scale);
          sums[r][h] = _mm256_fmadd_ps(product, _mm256_set1_ps(strip.blocks[r].scale), sums[r][h]);
          if constexpr (kHasMinimum) {
            const __m256 minimum = _mm256_load_ps(minima + 8 * h);
            sums[r][h] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(strip.blocks[r].scaled_sum), sums[r][h]);
          }
        }
      }
      scales += kTileRows;
      minima += kTileRows;
    }
    strip.blocks += kStripRows;
  }
  const bool last = (first + chunks) * 32 == job.cols;
  for (int r = 0; r < kRows; ++r) {
    if (last) {
      StoreSums(job, row + r, column, sums[r][0], sums[r][1]);
    } else {
      _mm256_store_ps(partial + r * kTileRows, sums[r][0]);
      _mm256_store_ps(partial + r * kTileRows + 8, sums[r][1]);
    }
  }
}

template <class W>
void RunPanels(const TileJob& job) {
  using B = typename W::Block;
  constexpr int64_t kBlockCols = 32 * W::kChunks;
  // Equal panels of whole blocks, each at most kPanelCols wide.
  const int64_t num_blocks = job.cols / kBlockCols;
  const int64_t num_panels = (job.cols + kPanelCols - 1) / kPanelCols;
  const int64_t panel_blocks = (num_blocks + num_panels - 1) / num_panels;
  const int64_t panel_cols = panel_blocks * kBlockCols;

  auto* weights = reinterpret_cast<int16_t*>(job.scratch);
  auto* scales = reinterpret_cast<float*>(weights + panel_cols * kTileRows);
  float* minima = scales + panel_cols / 32 * W::kGroups * kTileRows;
  float* partial = minima + panel_cols / 32 * W::kGroups * kTileRows;
  const Panel panel = {weights, scales, minima};
  int64_t row_block = kRowBlockBytes / (2 * job.cols) / 16 * 16;
  row_block = row_block < 16 ? 16 : row_block > kMaxRowBlock ? kMaxRowBlock : row_block;
  for (int64_t rows = job.row_begin; rows < job.row_end; rows += row_block) {
    const int64_t rows_end = job.row_end - rows < row_block ? job.row_end : rows + row_block;
    for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
      const auto* blocks = reinterpret_cast<const B*>(job.tiles + tile * job.tile_bytes);
      const int64_t column = tile * kTileRows;
      for (int64_t block = 0; block < num_blocks; block += panel_blocks) {
        const int64_t count = num_blocks - block < panel_blocks ? num_blocks - block : panel_blocks;
        ExpandTile<W>(blocks + block, count * kBlockCols, weights, scales, minima);
        for (int64_t row = rows; row < rows_end; row += kStripRows) {
          const auto run = [&]<int kRows>() {
            PanelBlock<kRows, W::kGroups, W::kHasMinimum>(job, panel, block * W::kChunks, count * W::kChunks,
                                                          partial + (row - rows) * kTileRows, row, column);
          };
          switch (rows_end - row) {
            case 1:
              run.template operator()<1>();
              break;
            case 2:
              run.template operator()<2>();
              break;
            case 3:
              run.template operator()<3>();
              break;
            default:
              run.template operator()<kStripRows>();
          }
        }
      }
    }
  }
}

void Run(const TileJob& job) {
  if (IsPlain(job.dtype)) {
    kMatMulAvx2Precise.run(job);
    return;
  }
  WithWeights(job.dtype, [&]<class W>() {
    if (job.row_end - job.row_begin <= kFusedLimit) {
      RunFused<W>(job);
    } else {
      RunPanels<W>(job);
    }
  });
}

bool NeedsPrepare(DType dtype, int64_t, int64_t) { return !IsPlain(dtype); }

int64_t ScratchBytes(int64_t num_rows, int64_t cols) {
  constexpr int64_t kWidest = kPanelCols + 256;  // rounding up to whole blocks
  const int64_t panel_cols = cols < kWidest ? cols + 32 : kWidest;
  const int64_t panel = panel_cols * kTileRows * 2 +
                        panel_cols / 16 * kTileRows * int64_t{sizeof(float)} * 2 +
                        kMaxRowBlock * kTileRows * int64_t{sizeof(float)};
  const int64_t plain = kMatMulAvx2Precise.scratch_bytes(num_rows, cols);
  return panel > plain ? panel : plain;
}

}  // namespace

const MatMulPath kMatMulAvx2 = {
    .name = "avx2",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
