// How weights lie in a PackedMatrix. Private to kernels/: the packer writes it, every path reads it.
//
// Rows of W (output features) are taken 16 at a time: a tile. A tile is a run of blocks along the columns of
// W (k), each block as large as 16 stored blocks, so the bytes are those of the file up to the last tile's
// padding rows (all zero). In a block, index [n] is the row inside the tile:
//
//   32 k     q4_0  nibbles[4][16], scale[16]              q4_1  nibbles[4][16], scale[16], minimum[16]
//            q5_0  nibbles[4][16], high[16], scale[16]
//            q5_1  nibbles[4][16], high[16], scale[16], minimum[16]
//            q8_0  int8 [16 pairs][16 n][2], scale[16]
//   256 k    q4_k  scale[16], minimum[16], sixbit[3][16], nibbles[8][4][16]
//            q5_k  the same, then high[8][16]
//            q6_k  scale[16], int8 subscale[16 groups][16], nibbles[8][4][16], high2[8][2][16]
//   1 k      f32, f16, bf16  value[16]
//
// A nibbles word (u32) of row n holds 8 consecutive k: element 2 i + o (i < 4, o < 2) is at bit 4 i + 16 o.
// So (word >> 4 i) & 0x000f000f is the pair (2 i, 2 i + 1) as two 16-bit lanes: what vpmaddwd, vpdpwssd and a
// 16-bit dot product multiply with a pair of activations. A high word (u32) holds the fifth bits of 32 k:
// element 2 p + o is at bit p + 16 o. A high2 word holds two bits each of 16 k: element 2 p + o at bit
// 2 p + 16 o. Scales are f16; a minimum is added for q4_1, q5_1 and subtracted for q4_k, q5_k. sixbit holds
// bytes 0-3, 4-7 and 8-11 of the stored 12 bytes.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace attest {

constexpr int kTileRows = 16;

struct PackedQ4_0 {
  uint32_t nibbles[4][16];
  uint16_t scale[16];
};
struct PackedQ4_1 {
  uint32_t nibbles[4][16];
  uint16_t scale[16];
  uint16_t minimum[16];
};
struct PackedQ5_0 {
  uint32_t nibbles[4][16];
  uint32_t high[16];
  uint16_t scale[16];
};
struct PackedQ5_1 {
  uint32_t nibbles[4][16];
  uint32_t high[16];
  uint16_t scale[16];
  uint16_t minimum[16];
};
struct PackedQ8_0 {
  int8_t pairs[16][16][2];
  uint16_t scale[16];
};
struct PackedQ4_K {
  uint16_t scale[16];
  uint16_t minimum[16];
  uint32_t sixbit[3][16];
  uint32_t nibbles[8][4][16];
};
struct PackedQ5_K {
  uint16_t scale[16];
  uint16_t minimum[16];
  uint32_t sixbit[3][16];
  uint32_t nibbles[8][4][16];
  uint32_t high[8][16];
};
struct PackedQ6_K {
  uint16_t scale[16];
  int8_t subscale[16][16];
  uint32_t nibbles[8][4][16];
  uint32_t high2[8][2][16];
};
static_assert(sizeof(PackedQ4_0) == 16 * 18);
static_assert(sizeof(PackedQ4_1) == 16 * 20);
static_assert(sizeof(PackedQ5_0) == 16 * 22);
static_assert(sizeof(PackedQ5_1) == 16 * 24);
static_assert(sizeof(PackedQ8_0) == 16 * 34);
static_assert(sizeof(PackedQ4_K) == 16 * 144);
static_assert(sizeof(PackedQ5_K) == 16 * 176);
static_assert(sizeof(PackedQ6_K) == 16 * 210);

// Writes one tile from `rows` (1 to 16) stored rows of `cols` elements, `row_bytes` apart; rows past `rows`
// are zero.
void PackTile(DType dtype, const std::byte* stored, int64_t row_bytes, int rows, int64_t cols,
              std::byte* tile);

// out[n], n in [0, cols): row `row` of a tile, by the formulas (and roundings) of kernels/dequantize.h.
void DequantizeTileRow(DType dtype, const std::byte* tile, int row, int64_t cols, float* out);

// The whole tile as f32, out[k][16]. The portable path's panel.
void DequantizeTile(DType dtype, const std::byte* tile, int64_t cols, float* out);

}  // namespace attest
