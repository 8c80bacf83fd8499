// AVX-512 VNNI with 16-bit activations: vpdpwssd multiplies pairs of weights (their stored integers) with
// pairs of activations (int16, one scale per 32) and adds them in 32 bits: 32 products per instruction, sums
// exact inside a block. Activations are prepared as for AVX2 (matmul_avx2.cc). Weights are unpacked in
// registers and used for up to 12 rows. Plain types go to the f32 path.
#include "kernels/cpu/matmul_unpack_avx512.h"

namespace attest {
namespace {

constexpr int kMaxRows = 12;  // 12 integer and 12 f32 sums, 1 weight of 32 registers
constexpr int kPrefetchBytes = 1536;

ATTEST_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// One tile times rows [row, row + kRows); their strips are kWidth wide.
template <class W, int kRows, int kWidth>
void FusedTile(const TileJob& job, const std::byte* tile, int64_t row, int64_t column) {
  using B = typename W::Block;
  constexpr int kPairs = 16 / W::kGroups;
  constexpr int kLines = static_cast<int>(sizeof(B)) / W::kChunks / 64 + 1;
  constexpr int kParts = kRows <= 2 ? 2 : 1;  // independent integer sums, to cover the latency of 5 cycles
  const int64_t quants_bytes = RoundUp(RoundUp(job.num_rows, kWidth) * job.cols * 2, 64);
  const auto* q = reinterpret_cast<const int16_t*>(job.prepared) + row * job.cols;
  const auto* activation_blocks =
      reinterpret_cast<const ActivationBlock*>(job.prepared + quants_bytes) + row * (job.cols / 32);
  const int64_t q_strip = kWidth * job.cols;
  const int64_t blocks_strip = kWidth * (job.cols / 32);
  __m512 sums[kRows];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
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
        __m512i n[kRows][kParts];
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          for (auto& sum : n[r]) sum = _mm512_setzero_si512();
          if constexpr (W::kOffsetBits != 0) {
            const ActivationBlock& a = activation_blocks[r / kWidth * blocks_strip + r % kWidth];
            const int32_t sum = W::kGroups == 1 ? a.sum : group == 0 ? a.sum_low : a.sum - a.sum_low;
            n[r][0] = _mm512_set1_epi32(-sum * (1 << W::kOffsetBits));
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < kPairs; ++i) {
          const int p = group * kPairs + i;
          const __m512i weights = W::Pair(*block, chunk, p);
#pragma GCC unroll 12
          for (int r = 0; r < kRows; ++r) {
            int32_t pair;
            __builtin_memcpy(&pair, q + r / kWidth * q_strip + 2 * (kWidth * p + r % kWidth), sizeof(pair));
            n[r][i % kParts] = _mm512_dpwssd_epi32(n[r][i % kParts], weights, _mm512_set1_epi32(pair));
          }
        }
        const __m512 scale = W::Scale(*block, chunk, group);
        const __m512 minimum = W::Minimum(*block, chunk);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const ActivationBlock& a = activation_blocks[r / kWidth * blocks_strip + r % kWidth];
          const __m512i total = kParts == 2 ? _mm512_add_epi32(n[r][0], n[r][kParts - 1]) : n[r][0];
          const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(total), scale);
          sums[r] = _mm512_fmadd_ps(product, _mm512_set1_ps(a.scale), sums[r]);
          if constexpr (W::kHasMinimum) {
            sums[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(a.scaled_sum), sums[r]);
          }
        }
      }
      q += kWidth * 32;
      activation_blocks += kWidth;
    }
  }
  for (int r = 0; r < kRows; ++r) StoreSums(job, row + r, column, sums[r]);
}

template <class W>
void RunTiles(const TileJob& job) {
  // Tiles innermost keeps up to 12 rows of activations in L1; a share of W that fits L2 is then read from
  // there.
  for (int64_t row = job.row_begin; row < job.row_end;) {
    const int64_t left = job.row_end - row;
    const int64_t rows = left >= kMaxRows ? kMaxRows : left >= 8 ? 8 : left >= 4 ? 4 : left;
    for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
      const std::byte* weights = job.tiles + tile * job.tile_bytes;
      const int64_t column = tile * kTileRows;
      if (job.num_rows == 1) {
        FusedTile<W, 1, 1>(job, weights, 0, column);
        continue;
      }
      switch (rows) {
        case 1:
          FusedTile<W, 1, kStripRows>(job, weights, row, column);
          break;
        case 2:
          FusedTile<W, 2, kStripRows>(job, weights, row, column);
          break;
        case 3:
          FusedTile<W, 3, kStripRows>(job, weights, row, column);
          break;
        case 4:
          FusedTile<W, 4, kStripRows>(job, weights, row, column);
          break;
        case 8:
          FusedTile<W, 8, kStripRows>(job, weights, row, column);
          break;
        default:
          FusedTile<W, kMaxRows, kStripRows>(job, weights, row, column);
      }
    }
    row += rows;
  }
}

void Run(const TileJob& job) {
  if (IsPlain(job.dtype)) {
    kMatMulAvx512.run(job);
    return;
  }
  WithWeights(job.dtype, [&]<class W>() { RunTiles<W>(job); });
}

bool NeedsPrepare(DType dtype, int64_t, int64_t) { return !IsPlain(dtype); }
int64_t PreparedBytes(int64_t num_rows, int64_t cols) { return kMatMulAvx2.prepared_bytes(num_rows, cols); }
void Prepare(const PrepareJob& job) { kMatMulAvx2.prepare(job); }
int64_t ScratchBytes(int64_t num_rows, int64_t cols) { return kMatMulAvx512.scratch_bytes(num_rows, cols); }

}  // namespace

const MatMulPath kMatMulAvx512Vnni = {
    .name = "avx512_vnni",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
