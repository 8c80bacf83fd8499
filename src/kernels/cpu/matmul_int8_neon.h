// The integer products of 64-bit Arm: an activation is 16 bits with one scale per 32 k, kept as two bytes,
// 256 high + low, each from -128 to 127, and the weights are their stored integers, at most 8 bits. Two
// products of bytes make one of 16 bits, and sums are exact inside a block. The rounding of an activation
// is 1.6e-5 of its block's largest value.
//
// Weights are unpacked in registers and used for up to four rows. Plain types go to the f32 path. Written
// once over how bytes are multiplied (E); included only by files compiled for the instructions.
//
//   E::Weights               a run of eight k of four rows of W
//   E::Make(RunBytes)
//   E::Sums                  of the high and of the low bytes
//   E::Zero(), E::Add(sums, weights, activations), E::Total(sums)
#pragma once

#include "kernels/cpu/matmul_unpack_neon.h"

namespace attest {
namespace {

constexpr int64_t kRowBlock = 32;  // rows that pass over a tile while it is in L1
constexpr int kRunBytes = 16;      // eight k of a row: high 0 4 1 5 2 6 3 7, then low
constexpr int kChunkBytes = 4 * kRunBytes;

ATTEST_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Rows one after the other, then their blocks.
ATTEST_INLINE int64_t QuantsBytes(int64_t num_rows, int64_t cols) { return RoundUp(num_rows * cols * 2, 64); }
inline int64_t PreparedBytes(int64_t num_rows, int64_t cols) {
  return QuantsBytes(num_rows, cols) + num_rows * (cols / 32) * int64_t{sizeof(ActivationBlock)};
}

// Eight integers as their high and low bytes, in the order of the weights.
ATTEST_INLINE void StoreRun(int32x4_t a, int32x4_t b, int8_t* out) {
  const int32x4_t high[2] = {vrshrq_n_s32(a, 8), vrshrq_n_s32(b, 8)};
  const int32x4_t low[2] = {vsubq_s32(a, vshlq_n_s32(high[0], 8)), vsubq_s32(b, vshlq_n_s32(high[1], 8))};
  const auto mixed = [](const int32x4_t* x) __attribute__((always_inline)) {
    const int16x4_t first = vmovn_s32(x[0]);
    const int16x4_t second = vmovn_s32(x[1]);
    return vmovn_s16(vcombine_s16(vzip1_s16(first, second), vzip2_s16(first, second)));
  };
  vst1q_s8(out, vcombine_s8(mixed(high), mixed(low)));
}

// 32 values. Values below 2^-100 in a block of such values become 0.
inline void Quantise32(const float* x, int8_t* out, ActivationBlock* block) {
  // 127 * 256: its high byte is 127, also when the division rounded up by one.
  constexpr float kLargest = 32512.0f;
  float32x4_t v[8];
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    // Magnitudes compare as integers, and NaN and infinity come out on top.
    largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(v[i]), vdupq_n_u32(0x7fffffffu)));
  }
  const uint32_t bits = vmaxvq_u32(largest);
  constexpr uint32_t kInfinity = 0x7f800000u;
  constexpr uint32_t kTiny = (127u - 100u) << 23;
  if (bits >= kInfinity || bits < kTiny) {
    const float scale = bits >= kInfinity ? __builtin_nanf("") : 0.0f;
    *block = {scale, scale, 0, 0};
    for (int i = 0; i < 4; ++i) vst1q_s8(out + i * kRunBytes, vdupq_n_s8(0));
    return;
  }
  float max;
  __builtin_memcpy(&max, &bits, sizeof(max));
  const float inverse = kLargest / max;
  int32x4_t n[8];
  for (int i = 0; i < 8; ++i) n[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
  for (int i = 0; i < 4; ++i) StoreRun(n[2 * i], n[2 * i + 1], out + i * kRunBytes);
  const int32x4_t sums_low = vaddq_s32(vaddq_s32(n[0], n[1]), vaddq_s32(n[2], n[3]));
  const int32x4_t sums_high = vaddq_s32(vaddq_s32(n[4], n[5]), vaddq_s32(n[6], n[7]));
  block->sum_low = vaddvq_s32(sums_low);
  block->sum = block->sum_low + vaddvq_s32(sums_high);
  block->scale = max / kLargest;
  block->scaled_sum = block->scale * static_cast<float>(block->sum);
}

inline void Prepare(const PrepareJob& job) {
  auto* q = reinterpret_cast<int8_t*>(job.out);
  auto* blocks = reinterpret_cast<ActivationBlock*>(job.out + QuantsBytes(job.num_rows, job.cols));
  const int64_t chunks = job.cols / 32;
  for (int64_t unit = job.unit_begin; unit < job.unit_end; ++unit) {
    const int64_t first = unit / chunks * kStripRows;
    const int64_t chunk = unit % chunks;
    for (int64_t row = first; row < first + kStripRows && row < job.num_rows; ++row) {
      Quantise32(job.x + row * job.x_stride + chunk * 32, q + (row * chunks + chunk) * kChunkBytes,
                 blocks + row * chunks + chunk);
    }
  }
}

// Rows [row, row + kRows) times vectors [vec, vec + kVecs) of a tile.
template <class E, class W, int kRows, int kVecs>
void FusedTile(const TileJob& job, const std::byte* tile, int64_t row, int vec, int64_t column) {
  using B = typename W::Block;
  constexpr int kGroupRuns = 4 / W::kGroups;
  const int64_t chunks = job.cols / 32;
  const auto* q = reinterpret_cast<const int8_t*>(job.prepared) + row * chunks * kChunkBytes;
  const auto* activations =
      reinterpret_cast<const ActivationBlock*>(job.prepared + QuantsBytes(job.num_rows, job.cols)) +
      row * chunks;
  float32x4_t sums[kRows][kVecs];
  for (auto& row_sums : sums) {
    for (auto& sum : row_sums) sum = vdupq_n_f32(0.0f);
  }
  const auto* block = reinterpret_cast<const B*>(tile);
  const auto* const end = reinterpret_cast<const B*>(tile + job.tile_bytes);
  for (; block != end; ++block) {
    for (int chunk = 0; chunk < W::kChunks; ++chunk, q += kChunkBytes, ++activations) {
#pragma GCC unroll 2
      for (int group = 0; group < W::kGroups; ++group) {
        typename E::Sums n[kRows][kVecs];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) n[r][v] = E::Zero();
        }
#pragma GCC unroll 4
        for (int i = 0; i < kGroupRuns; ++i) {
          const int w = group * kGroupRuns + i;
          typename E::Weights weights[kVecs];
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) weights[v] = E::Make(W::Run(*block, chunk, w, vec + v));
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const int8x16_t a = vld1q_s8(q + r * chunks * kChunkBytes + w * kRunBytes);
#pragma GCC unroll 4
            for (int v = 0; v < kVecs; ++v) E::Add(n[r][v], weights[v], a);
          }
          // Keeps the loads of the next run behind these sums, which fill the registers (GCC 12 spills
          // dozens).
          asm("" ::: "memory");
        }
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const float32x4_t scale = W::Scale(*block, chunk, group, vec + v);
          const float32x4_t minimum = W::Minimum(*block, chunk, vec + v);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const ActivationBlock& a = activations[r * chunks];
            int32x4_t total = E::Total(n[r][v]);
            if constexpr (W::kOffsetBits != 0) {
              const int32_t sum = W::kGroups == 1 ? a.sum : group == 0 ? a.sum_low : a.sum - a.sum_low;
              total = vsubq_s32(total, vdupq_n_s32(sum * (1 << W::kOffsetBits)));
            }
            const float32x4_t product = vmulq_f32(vcvtq_f32_s32(total), scale);
            sums[r][v] = vfmaq_n_f32(sums[r][v], product, a.scale);
            if constexpr (W::kHasMinimum) sums[r][v] = vfmaq_n_f32(sums[r][v], minimum, a.scaled_sum);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) StoreSums4(job, row + r, column + 4 * (vec + v), sums[r][v]);
  }
}

// One or two rows take the whole tile, three or four half of it twice: their sums fill the registers.
template <class E, class W>
ATTEST_INLINE void Strip(const TileJob& job, const std::byte* tile, int64_t row, int64_t rows,
                         int64_t column) {
  switch (rows) {
    case 1:
      return FusedTile<E, W, 1, kTileVecs>(job, tile, row, 0, column);
    case 2:
      return FusedTile<E, W, 2, kTileVecs>(job, tile, row, 0, column);
    case 3:
      FusedTile<E, W, 3, 2>(job, tile, row, 0, column);
      return FusedTile<E, W, 3, 2>(job, tile, row, 2, column);
    default:
      FusedTile<E, W, kStripRows, 2>(job, tile, row, 0, column);
      return FusedTile<E, W, kStripRows, 2>(job, tile, row, 2, column);
  }
}

template <class E, class W>
void RunTiles(const TileJob& job) {
  for (int64_t rows = job.row_begin; rows < job.row_end; rows += kRowBlock) {
    const int64_t rows_end = job.row_end - rows < kRowBlock ? job.row_end : rows + kRowBlock;
    for (int64_t tile = 0; tile < job.num_tiles; ++tile) {
      for (int64_t row = rows; row < rows_end; row += kStripRows) {
        const int64_t count = rows_end - row < kStripRows ? rows_end - row : kStripRows;
        Strip<E, W>(job, job.tiles + tile * job.tile_bytes, row, count, tile * kTileRows);
      }
    }
  }
}

template <class E>
void Run(const TileJob& job) {
  if (IsPlain(job.dtype)) {
    kMatMulNeon.run(job);
    return;
  }
  WithWeights(job.dtype, [&]<class W>() { RunTiles<E, W>(job); });
}

inline bool NeedsPrepare(DType dtype, int64_t, int64_t) { return !IsPlain(dtype); }
inline int64_t ScratchBytes(int64_t num_rows, int64_t cols) {
  return kMatMulNeon.scratch_bytes(num_rows, cols);
}

}  // namespace
}  // namespace attest
