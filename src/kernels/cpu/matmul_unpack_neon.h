// Packed weight blocks (kernels/matmul_layout.h) as NEON registers. Included only by files compiled for
// 64-bit Arm; the unnamed namespace gives each its own copy, so that none is linked into an object compiled
// for an older processor.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/cpu/matmul_path.h"
#include "kernels/matmul_layout.h"

namespace attest {
namespace {

#define ATTEST_INLINE inline __attribute__((always_inline))

constexpr int kTileVecs = kTileRows / 4;  // vectors of four rows of W

ATTEST_INLINE float32x4_t LoadHalf4(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
ATTEST_INLINE uint16x8_t LoadHighWords(const uint32_t* p) { return vreinterpretq_u16_u32(vld1q_u32(p)); }

// Eight consecutive k (run w of a chunk of 32) of rows 4 h to 4 h + 3 as bytes, four to a row: in the order
// in which a nibbles word keeps them.
struct RunBytes {
  int8x16_t first;   // k 0 4 1 5
  int8x16_t second;  // k 2 6 3 7
};
constexpr int kFirstOrder[4] = {0, 4, 1, 5};
constexpr int kSecondOrder[4] = {2, 6, 3, 7};

struct UnsignedBytes {
  uint8x16_t first, second;
};
ATTEST_INLINE UnsignedBytes NibbleBytes(const uint32_t (*nibbles)[16], int w, int h) {
  const uint8x16_t words = vreinterpretq_u8_u32(vld1q_u32(nibbles[w] + 4 * h));
  return {vandq_u8(words, vdupq_n_u8(15)), vshrq_n_u8(words, 4)};
}
ATTEST_INLINE uint8x16_t OrLanes(uint8x16_t bytes, uint16x8_t lanes) {
  return vorrq_u8(bytes, vreinterpretq_u8_u16(lanes));
}
// Bit i of a lane's four belongs to the pair (2 i, 2 i + 1).
ATTEST_INLINE UnsignedBytes WithHighBit(UnsignedBytes bytes, const uint32_t* high, int w, int h) {
  const uint16x8_t bits = (LoadHighWords(high + 4 * h) >> (4 * w)) & vdupq_n_u16(15);
  const uint16x8_t spread = (bits << 4) | (bits << 10);
  const uint16x8_t mask = vdupq_n_u16(0x1010);
  return {OrLanes(bytes.first, spread & mask), OrLanes(bytes.second, (spread >> 1) & mask)};
}
// Two bits of each pair.
ATTEST_INLINE UnsignedBytes WithHighBits2(UnsignedBytes bytes, const uint32_t (*high2)[16], int w, int h) {
  const uint16x8_t bits = LoadHighWords(high2[w / 2] + 4 * h) >> (8 * (w % 2));
  const uint16x8_t low = vdupq_n_u16(0x0030);
  const uint16x8_t high = vdupq_n_u16(0x3000);
  return {OrLanes(bytes.first, ((bits << 4) & low) | ((bits << 8) & high)),
          OrLanes(bytes.second, ((bits << 2) & low) | ((bits << 6) & high))};
}
ATTEST_INLINE RunBytes Signed(UnsignedBytes bytes) {  // all below 128
  return {vreinterpretq_s8_u8(bytes.first), vreinterpretq_s8_u8(bytes.second)};
}

// Weights<B>: how blocks of type B are read in chunks of 32 k. `chunk` counts within the block.
//   kChunks       chunks per block
//   kGroups       scale groups per chunk
//   kOffsetBits   log2 of what is subtracted from each integer; 0: nothing
//   kHasMinimum   value = scale q + minimum
template <class B>
struct Weights32 {
  using Block = B;
  static constexpr int kChunks = 1;
  static constexpr int kGroups = 1;
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE float32x4_t Scale(const B& b, int, int, int h) { return LoadHalf4(b.scale + 4 * h); }
  static ATTEST_INLINE float32x4_t Minimum(const B&, int, int) { return vdupq_n_f32(0.0f); }
};
template <class B>
struct Weights;

template <>
struct Weights<PackedQ4_0> : Weights32<PackedQ4_0> {
  static constexpr int kOffsetBits = 3;
  static ATTEST_INLINE RunBytes Run(const Block& b, int, int w, int h) {
    return Signed(NibbleBytes(b.nibbles, w, h));
  }
};
template <>
struct Weights<PackedQ4_1> : Weights32<PackedQ4_1> {
  static constexpr bool kHasMinimum = true;
  static ATTEST_INLINE RunBytes Run(const Block& b, int, int w, int h) {
    return Signed(NibbleBytes(b.nibbles, w, h));
  }
  static ATTEST_INLINE float32x4_t Minimum(const Block& b, int, int h) {
    return LoadHalf4(b.minimum + 4 * h);
  }
};
template <>
struct Weights<PackedQ5_0> : Weights32<PackedQ5_0> {
  static constexpr int kOffsetBits = 4;
  static ATTEST_INLINE RunBytes Run(const Block& b, int, int w, int h) {
    return Signed(WithHighBit(NibbleBytes(b.nibbles, w, h), b.high, w, h));
  }
};
template <>
struct Weights<PackedQ5_1> : Weights32<PackedQ5_1> {
  static constexpr bool kHasMinimum = true;
  static ATTEST_INLINE RunBytes Run(const Block& b, int, int w, int h) {
    return Signed(WithHighBit(NibbleBytes(b.nibbles, w, h), b.high, w, h));
  }
  static ATTEST_INLINE float32x4_t Minimum(const Block& b, int, int h) {
    return LoadHalf4(b.minimum + 4 * h);
  }
};
template <>
struct Weights<PackedQ8_0> : Weights32<PackedQ8_0> {
  // The same bytes of two pairs, row by row; a load holds eight rows.
  static ATTEST_INLINE int8x16_t Mixed(const Block& b, int pair, int h) {
    const int8x16_t x = vld1q_s8(b.pairs[pair][h / 2 * 8]);
    const int8x16_t y = vld1q_s8(b.pairs[pair + 2][h / 2 * 8]);
    return h % 2 == 0 ? vzip1q_s8(x, y) : vzip2q_s8(x, y);
  }
  static ATTEST_INLINE RunBytes Run(const Block& b, int, int w, int h) {
    return {Mixed(b, 4 * w, h), Mixed(b, 4 * w + 1, h)};
  }
};

template <class B>
struct WeightsSixBit {
  using Block = B;
  static constexpr int kChunks = 8;
  static constexpr int kGroups = 1;
  static constexpr int kOffsetBits = 0;
  static constexpr bool kHasMinimum = true;
  // The 6-bit factor of sub-block `chunk`: scales start at word 0 and minima at word 1; the upper four of
  // each have their low nibble in word 2 and their two high bits above a lower scale or minimum.
  static ATTEST_INLINE float32x4_t Factor(const B& b, int chunk, int first, int h) {
    const int shift = 8 * (chunk % 4);
    const uint32x4_t own = vld1q_u32(b.sixbit[first] + 4 * h) >> shift;
    if (chunk < 4) return vcvtq_f32_u32(own & vdupq_n_u32(63));
    const uint32x4_t low = vld1q_u32(b.sixbit[2] + 4 * h) >> (first == 1 ? shift + 4 : shift);
    return vcvtq_f32_u32((low & vdupq_n_u32(15)) | ((own >> 2) & vdupq_n_u32(48)));
  }
  static ATTEST_INLINE float32x4_t Scale(const B& b, int chunk, int, int h) {
    return vmulq_f32(LoadHalf4(b.scale + 4 * h), Factor(b, chunk, 0, h));
  }
  static ATTEST_INLINE float32x4_t Minimum(const B& b, int chunk, int h) {
    return vnegq_f32(vmulq_f32(LoadHalf4(b.minimum + 4 * h), Factor(b, chunk, 1, h)));
  }
};
template <>
struct Weights<PackedQ4_K> : WeightsSixBit<PackedQ4_K> {
  static ATTEST_INLINE RunBytes Run(const Block& b, int chunk, int w, int h) {
    return Signed(NibbleBytes(b.nibbles[chunk], w, h));
  }
};
template <>
struct Weights<PackedQ5_K> : WeightsSixBit<PackedQ5_K> {
  static ATTEST_INLINE RunBytes Run(const Block& b, int chunk, int w, int h) {
    return Signed(WithHighBit(NibbleBytes(b.nibbles[chunk], w, h), b.high[chunk], w, h));
  }
};
template <>
struct Weights<PackedQ6_K> {
  using Block = PackedQ6_K;
  static constexpr int kChunks = 8;
  static constexpr int kGroups = 2;
  static constexpr int kOffsetBits = 5;
  static constexpr bool kHasMinimum = false;
  static ATTEST_INLINE RunBytes Run(const Block& b, int chunk, int w, int h) {
    return Signed(WithHighBits2(NibbleBytes(b.nibbles[chunk], w, h), b.high2[chunk], w, h));
  }
  static ATTEST_INLINE float32x4_t Scale(const Block& b, int chunk, int group, int h) {
    int32_t bytes;
    __builtin_memcpy(&bytes, b.subscale[2 * chunk + group] + 4 * h, sizeof(bytes));
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)));
    return vmulq_f32(LoadHalf4(b.scale + 4 * h), vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
  }
  static ATTEST_INLINE float32x4_t Minimum(const Block&, int, int) { return vdupq_n_f32(0.0f); }
};

// Calls fn.template operator()<Weights<B>>() for a quantised type.
template <class Fn>
ATTEST_INLINE void WithWeights(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kQ4_0:
      return fn.template operator()<Weights<PackedQ4_0>>();
    case DType::kQ4_1:
      return fn.template operator()<Weights<PackedQ4_1>>();
    case DType::kQ5_0:
      return fn.template operator()<Weights<PackedQ5_0>>();
    case DType::kQ5_1:
      return fn.template operator()<Weights<PackedQ5_1>>();
    case DType::kQ8_0:
      return fn.template operator()<Weights<PackedQ8_0>>();
    case DType::kQ4_K:
      return fn.template operator()<Weights<PackedQ4_K>>();
    case DType::kQ5_K:
      return fn.template operator()<Weights<PackedQ5_K>>();
    case DType::kQ6_K:
      return fn.template operator()<Weights<PackedQ6_K>>();
    default:
      __builtin_trap();  // plain types never come here: the caller asked first
  }
}

ATTEST_INLINE bool IsPlain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Writes four sums of one row, of columns column to column + 3: y (+)= sums (+ bias), only those that exist.
ATTEST_INLINE void StoreSums4(const TileJob& job, int64_t row, int64_t column, float32x4_t sums) {
  float* y = job.y + row * job.y_stride + column;
  const int64_t valid = job.num_outputs - column;
  if (valid >= 4) {
    if (job.bias != nullptr) sums = vaddq_f32(sums, vld1q_f32(job.bias + column));
    if (job.add) sums = vaddq_f32(sums, vld1q_f32(y));
    vst1q_f32(y, sums);
    return;
  }
  float values[4];
  vst1q_f32(values, sums);
  for (int64_t n = 0; n < valid; ++n) {
    const float value = values[n] + (job.bias == nullptr ? 0.0f : job.bias[column + n]);
    y[n] = job.add ? y[n] + value : value;
  }
}

}  // namespace
}  // namespace attest
