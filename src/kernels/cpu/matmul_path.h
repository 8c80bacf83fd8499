// What a path (one instruction set, one way of multiplying) gives to kernels/matmul.cc. Private to kernels/.
//
// Files of an instruction set include this header and little else: every inline function they pull in could
// be linked into baseline objects with their instructions. So: plain data and function pointers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace attest {

// Rows of activations are prepared in strips of this many.
constexpr int kStripRows = 4;

// Activations of `num_rows` rows brought into the form the path multiplies. Units are (strip, 32 k), strips
// outermost; ranks take disjoint ranges of them.
struct PrepareJob {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t num_rows = 0;
  int64_t cols = 0;
  int64_t unit_begin = 0;
  int64_t unit_end = 0;
  std::byte* out = nullptr;  // prepared_bytes(num_rows, cols), 64-byte aligned
};

// row_begin of every job is a multiple of this: whole strips, and whole pairs of AMX tiles.
constexpr int kRowGranule = 32;

// A run of tiles of one type times rows [row_begin, row_end).
struct TileJob {
  DType dtype = DType::kF32;
  const std::byte* tiles = nullptr;
  int64_t tile_bytes = 0;
  int64_t num_tiles = 0;
  int64_t cols = 0;
  int64_t num_outputs = 0;  // columns of y from the first tile on; the last tile may be part padding
  const float* x = nullptr;
  int64_t x_stride = 0;
  const std::byte* prepared = nullptr;  // of all num_rows rows; null when not needed
  int64_t num_rows = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* y = nullptr;  // row 0, column of the first tile
  int64_t y_stride = 0;
  const float* bias = nullptr;   // of the first tile's column, or null
  bool add = false;              // y += instead of y =
  bool rowwise = false;          // PackOptions::rowwise
  std::byte* scratch = nullptr;  // scratch_bytes(num_rows, cols), of this rank, 64-byte aligned
};

struct MatMulPath {
  const char* name;
  bool (*needs_prepare)(DType dtype, int64_t num_rows, int64_t cols);  // true only where cols % 32 == 0
  int64_t (*prepared_bytes)(int64_t num_rows, int64_t cols);
  void (*prepare)(const PrepareJob& job);
  int64_t (*scratch_bytes)(int64_t num_rows, int64_t cols);
  void (*run)(const TileJob& job);
};

extern const MatMulPath kMatMulPortable;  // every product in f32; both compute modes
#if defined(__x86_64__)
extern const MatMulPath kMatMulAvx2;         // 16-bit activations, vpmaddwd
extern const MatMulPath kMatMulAvx2Precise;  // f32
extern const MatMulPath kMatMulAvx512;       // f32
extern const MatMulPath kMatMulAvx512Vnni;   // 16-bit activations, vpdpwssd
extern const MatMulPath kMatMulAvx512Bf16;   // bf16 dot products from 9 rows on
extern const MatMulPath kMatMulAmx;          // bf16 tiles from 33 rows on
#elif defined(__aarch64__)
extern const MatMulPath kMatMulNeon;      // f32
extern const MatMulPath kMatMulNeonDot;   // 16-bit activations as two bytes, SDOT
extern const MatMulPath kMatMulNeonI8mm;  // the same, SMMLA
#endif

// The prepared form of the integer paths of x86-64: 16-bit integers with one scale per 32 k. A strip's pair p
// of row r is the int16 pair at [strip][p][r], so that a kernel finds the four rows it works on side by side;
// blocks are at [strip][k / 32][r]. A single row lies alone (strips of one).
struct ActivationBlock {
  float scale;  // largest magnitude / 32767 (Arm: 32512); NaN when a value is not finite, so that the row's
                // result is too
  float scaled_sum;  // scale * sum, for weights with a minimum
  int32_t sum;       // of the 32 integers
  int32_t sum_low;   // of the first 16
};
static_assert(sizeof(ActivationBlock) == 16);

}  // namespace attest
