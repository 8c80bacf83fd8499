// AVX2 with 16-bit activations: vpmaddwd multiplies pairs of weights (their stored integers, at most 8 bits)
// with pairs of activations (int16, one scale per 32) and adds them in 32 bits: 16 products per instruction
// against 8 of an f32 FMA, with sums that are exact inside a block. The rounding of an activation is 1.5e-5
// of its block's largest value, 250 times finer than int8.
//
// Up to kFusedRows rows the weights are unpacked in registers and used at once (decode: the bytes of W bound
// the time). More rows: a tile is unpacked once to an int16 panel [pair][16][2], then 4 x 16 register blocks
// run over it. Plain types go to the f32 path.
#include "kernels/cpu/matmul_unpack_avx2.h"

namespace attest {
namespace {

constexpr int kFusedRows = 4;
constexpr int kBlockRows = 4;  // 8 integer sums, 2 weights, 1 activation, 1 product of 16 registers
constexpr int kPrefetchBytes = 1536;

struct Activations {
  const int16_t* q;
  const ActivationBlock* blocks;
  int64_t cols;
  [[nodiscard]] ATTEST_INLINE const int16_t* Row(int64_t row) const { return q + row * cols; }
  [[nodiscard]] ATTEST_INLINE const ActivationBlock* Blocks(int64_t row) const {
    return blocks + row * (cols / 32);
  }
};

ATTEST_INLINE int64_t RoundUp64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t PreparedBytes(int64_t num_rows, int64_t cols) {
  return RoundUp64(num_rows * cols * 2) + num_rows * (cols / 32) * int64_t{sizeof(ActivationBlock)};
}

ATTEST_INLINE Activations PreparedActivations(const TileJob& job) {
  return {reinterpret_cast<const int16_t*>(job.prepared),
          reinterpret_cast<const ActivationBlock*>(job.prepared + RoundUp64(job.num_rows * job.cols * 2)),
          job.cols};
}

ATTEST_INLINE int32_t SumOf8(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}

// 32 values to int16 and their block. Values below 2^-100 in a block of such values become 0.
ATTEST_INLINE void Quantise32(const float* x, int16_t* q, ActivationBlock* block) {
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
    for (int i = 0; i < 2; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 16 * i), _mm256_setzero_si256());
    }
    const float scale = bits >= kInfinity ? __builtin_nanf("") : 0.0f;
    *block = {scale, scale, 0, 0};
    return;
  }
  const float max = _mm_cvtss_f32(_mm_castsi128_ps(top));
  const __m256 inverse = _mm256_set1_ps(32767.0f / max);
  __m256i n[4];
  for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[0], n[1]), 0xd8);
  const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[2], n[3]), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 16), high);
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i sums_low = _mm256_madd_epi16(low, ones);
  const __m256i sums_high = _mm256_madd_epi16(high, ones);
  block->sum_low =
      SumOf8(_mm_add_epi32(_mm256_castsi256_si128(sums_low), _mm256_extracti128_si256(sums_low, 1)));
  block->sum = block->sum_low + SumOf8(_mm_add_epi32(_mm256_castsi256_si128(sums_high),
                                                     _mm256_extracti128_si256(sums_high, 1)));
  block->scale = max / 32767.0f;
  block->scaled_sum = block->scale * static_cast<float>(block->sum);
}

void Prepare(const PrepareJob& job) {
  auto* q = reinterpret_cast<int16_t*>(job.out);
  auto* blocks = reinterpret_cast<ActivationBlock*>(job.out + RoundUp64(job.num_rows * job.cols * 2));
  const int64_t per_row = job.cols / 32;
  int64_t row = job.unit_begin / per_row;
  int64_t in_row = job.unit_begin % per_row;
  for (int64_t unit = job.unit_begin; unit < job.unit_end; ++unit) {
    Quantise32(job.x + row * job.x_stride + 32 * in_row, q + 32 * unit, blocks + unit);
    if (++in_row == per_row) {
      in_row = 0;
      ++row;
    }
  }
}

ATTEST_INLINE __m256i BroadcastPair(const int16_t* q) {
  int32_t pair;
  __builtin_memcpy(&pair, q, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

// One tile times rows [row, row + kRows), weights unpacked in registers.
template <class W, int kRows>
void FusedTile(const TileJob& job, const Activations& a, const std::byte* tile, int64_t row, int64_t column) {
  using B = typename W::Block;
  constexpr int kPairs = 16 / W::kGroups;
  constexpr int kLines = static_cast<int>(sizeof(B)) / W::kChunks / 64 + 1;
  const int16_t* q[kRows];
  const ActivationBlock* blocks[kRows];
  __m256 sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    q[r] = a.Row(row + r);
    blocks[r] = a.Blocks(row + r);
    sums[r][0] = sums[r][1] = _mm256_setzero_ps();
  }
  const auto* block = reinterpret_cast<const B*>(tile);
  const auto* const end = reinterpret_cast<const B*>(tile + job.tile_bytes);
  int64_t c = 0;  // chunk of 32 k
  for (; block != end; ++block) {
    for (int chunk = 0; chunk < W::kChunks; ++chunk, ++c) {
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
            const ActivationBlock& ab = blocks[r][c];
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
            const __m256i pair = BroadcastPair(q[r] + 32 * c + 2 * p);
            n[r][0] = _mm256_add_epi32(n[r][0], _mm256_madd_epi16(low, pair));
            n[r][1] = _mm256_add_epi32(n[r][1], _mm256_madd_epi16(high, pair));
          }
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const __m256 scale = W::Scale(*block, chunk, group, h);
          const __m256 minimum = W::Minimum(*block, chunk, h);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(n[r][h]), scale);
            sums[r][h] = _mm256_fmadd_ps(product, _mm256_set1_ps(blocks[r][c].scale), sums[r][h]);
            if constexpr (W::kHasMinimum) {
              sums[r][h] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(blocks[r][c].scaled_sum), sums[r][h]);
            }
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) StoreSums(job, row + r, column, sums[r][0], sums[r][1]);
}

template <class W>
void RunFused(const TileJob& job, const Activations& a) {
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    const std::byte* weights = job.tiles + tile * job.tile_bytes;
    const int64_t column = tile * kTileRows;
    // The second pass over a tile (5.7 KiB at 576 columns of q4_1) reads it from L1.
    for (int64_t row = job.row_begin; row < job.row_end; row += kFusedRows) {
      switch (job.row_end - row) {
        case 1:
          FusedTile<W, 1>(job, a, weights, row, column);
          break;
        case 2:
          FusedTile<W, 2>(job, a, weights, row, column);
          break;
        case 3:
          FusedTile<W, 3>(job, a, weights, row, column);
          break;
        default:
          FusedTile<W, kFusedRows>(job, a, weights, row, column);
      }
    }
  }
}

// Unpacks a tile: panel [pair][2 h][16 lanes] with offsets subtracted, scales and minima [group][16].
template <class W>
void ExpandTile(const std::byte* tile, int64_t cols, int16_t* panel, float* scales, float* minima) {
  using B = typename W::Block;
  const auto* block = reinterpret_cast<const B*>(tile);
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

// kRows x 16 over an expanded tile.
template <int kRows, int kGroups, bool kHasMinimum>
void PanelBlock(const TileJob& job, const Activations& a, const Panel& panel, int64_t row, int64_t column) {
  constexpr int kPairs = 16 / kGroups;
  const int16_t* q = a.Row(row);
  const ActivationBlock* blocks = a.Blocks(row);
  const int64_t q_stride = a.cols;
  const int64_t num_chunks = a.cols / 32;
  __m256 sums[kRows][2];
  for (auto& sum : sums) sum[0] = sum[1] = _mm256_setzero_ps();
  const auto* weights = reinterpret_cast<const __m256i*>(panel.weights);
  const float* scales = panel.scales;
  const float* minima = panel.minima;
  for (int64_t c = 0; c < num_chunks; ++c) {
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
          const __m256i pair = BroadcastPair(q + r * q_stride + 2 * p);
          n[r][0] = _mm256_add_epi32(n[r][0], _mm256_madd_epi16(low, pair));
          n[r][1] = _mm256_add_epi32(n[r][1], _mm256_madd_epi16(high, pair));
        }
      }
      weights += 2 * kPairs;
      q += 2 * kPairs;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256 scale = _mm256_load_ps(scales + 8 * h);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const ActivationBlock& block = blocks[r * num_chunks + c];
          const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(n[r][h]), scale);
          sums[r][h] = _mm256_fmadd_ps(product, _mm256_set1_ps(block.scale), sums[r][h]);
          if constexpr (kHasMinimum) {
            const __m256 minimum = _mm256_load_ps(minima + 8 * h);
            sums[r][h] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(block.scaled_sum), sums[r][h]);
          }
        }
      }
      scales += kTileRows;
      minima += kTileRows;
    }
  }
  for (int r = 0; r < kRows; ++r) StoreSums(job, row + r, column, sums[r][0], sums[r][1]);
}

template <class W>
void RunPanels(const TileJob& job, const Activations& a) {
  auto* weights = reinterpret_cast<int16_t*>(job.scratch);
  auto* scales = reinterpret_cast<float*>(weights + job.cols * kTileRows);
  float* minima = scales + job.cols / 32 * W::kGroups * kTileRows;
  const Panel panel = {weights, scales, minima};
  for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
    ExpandTile<W>(job.tiles + tile * job.tile_bytes, job.cols, weights, scales, minima);
    const int64_t column = tile * kTileRows;
    for (int64_t row = job.row_begin; row < job.row_end; row += kBlockRows) {
      switch (job.row_end - row) {
        case 1:
          PanelBlock<1, W::kGroups, W::kHasMinimum>(job, a, panel, row, column);
          break;
        case 2:
          PanelBlock<2, W::kGroups, W::kHasMinimum>(job, a, panel, row, column);
          break;
        case 3:
          PanelBlock<3, W::kGroups, W::kHasMinimum>(job, a, panel, row, column);
          break;
        default:
          PanelBlock<kBlockRows, W::kGroups, W::kHasMinimum>(job, a, panel, row, column);
      }
    }
  }
}

constexpr int64_t kFusedLimit = 2 * kFusedRows;

void Run(const TileJob& job) {
  if (IsPlain(job.dtype)) {
    kMatMulAvx2Precise.run(job);
    return;
  }
  const Activations a = PreparedActivations(job);
  WithWeights(job.dtype, [&]<class W>() {
    if (job.row_end - job.row_begin <= kFusedLimit) {
      RunFused<W>(job, a);
    } else {
      RunPanels<W>(job, a);
    }
  });
}

bool NeedsPrepare(DType dtype, int64_t) { return !IsPlain(dtype); }

int64_t ScratchBytes(int64_t num_rows, int64_t cols) {
  const int64_t panel = cols * kTileRows * 2 + cols / 16 * kTileRows * int64_t{sizeof(float)} * 2;
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
