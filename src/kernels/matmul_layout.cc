#include "kernels/matmul_layout.h"

#include <cstring>

#include "base/check.h"
#include "kernels/dequantize.h"

namespace attest {
namespace {

template <class T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Places the quants of 32 consecutive k of row n.
void PlaceNibbles(const uint8_t* quants, int n, uint32_t (*nibbles)[16]) {
  for (int w = 0; w < 4; ++w) {
    uint32_t word = 0;
    for (int e = 0; e < 8; ++e) word |= (quants[8 * w + e] & 15u) << (4 * (e / 2) + 16 * (e % 2));
    nibbles[w][n] = word;
  }
}
void PlaceHigh(const uint8_t* quants, int n, uint32_t* high) {
  uint32_t word = 0;
  for (int e = 0; e < 32; ++e) word |= ((quants[e] >> 4) & 1u) << (e / 2 + 16 * (e % 2));
  high[n] = word;
}
void PlaceHigh2(const uint8_t* quants, int n, uint32_t (*high2)[16]) {
  for (int h = 0; h < 2; ++h) {
    uint32_t word = 0;
    for (int e = 0; e < 16; ++e) {
      word |= ((quants[16 * h + e] >> 4) & 3u) << (2 * (e / 2) + 16 * (e % 2));
    }
    high2[h][n] = word;
  }
}

void TakeNibbles(const uint32_t (*nibbles)[16], int n, uint8_t* quants) {
  for (int e = 0; e < 32; ++e) {
    quants[e] = (nibbles[e / 8][n] >> (4 * (e % 8 / 2) + 16 * (e % 2))) & 15u;
  }
}
void TakeHigh(const uint32_t* high, int n, uint8_t* quants) {
  for (int e = 0; e < 32; ++e) {
    quants[e] |= static_cast<uint8_t>(((high[n] >> (e / 2 + 16 * (e % 2))) & 1u) << 4);
  }
}
void TakeHigh2(const uint32_t (*high2)[16], int n, uint8_t* quants) {
  for (int e = 0; e < 32; ++e) {
    quants[e] |= static_cast<uint8_t>(((high2[e / 16][n] >> (2 * (e % 16 / 2) + 16 * (e % 2))) & 3u) << 4);
  }
}

// Every packed type of 32 k has nibbles, then optional members told apart by these concepts.
template <class B>
constexpr bool kHasHigh = requires(B b) { b.high; };
template <class B>
constexpr bool kHasMinimum = requires(B b) { b.minimum; };

template <class B>
void PackBlock32(DType dtype, const std::byte* stored, int n, B& block) {
  uint8_t quants[32];
  StoredQuants(dtype, stored, quants);
  PlaceNibbles(quants, n, block.nibbles);
  if constexpr (kHasHigh<B>) PlaceHigh(quants, n, block.high);
  block.scale[n] = Load<uint16_t>(stored);
  if constexpr (kHasMinimum<B>) block.minimum[n] = Load<uint16_t>(stored + 2);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ4_0& block) {
  PackBlock32(dtype, stored, n, block);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ4_1& block) {
  PackBlock32(dtype, stored, n, block);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ5_0& block) {
  PackBlock32(dtype, stored, n, block);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ5_1& block) {
  PackBlock32(dtype, stored, n, block);
}
void PackBlock(DType, const std::byte* stored, int n, PackedQ8_0& block) {
  for (int e = 0; e < 32; ++e) block.pairs[e / 2][n][e % 2] = Load<int8_t>(stored + 2 + e);
  block.scale[n] = Load<uint16_t>(stored);
}
template <class B>
void PackSuperBlock(DType dtype, const std::byte* stored, int n, B& block) {
  uint8_t quants[256];
  StoredQuants(dtype, stored, quants);
  for (int s = 0; s < 8; ++s) PlaceNibbles(quants + 32 * s, n, block.nibbles[s]);
  if constexpr (kHasHigh<B>) {
    for (int s = 0; s < 8; ++s) PlaceHigh(quants + 32 * s, n, block.high[s]);
  }
  block.scale[n] = Load<uint16_t>(stored);
  block.minimum[n] = Load<uint16_t>(stored + 2);
  for (int i = 0; i < 3; ++i) block.sixbit[i][n] = Load<uint32_t>(stored + 4 + 4 * i);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ4_K& block) {
  PackSuperBlock(dtype, stored, n, block);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ5_K& block) {
  PackSuperBlock(dtype, stored, n, block);
}
void PackBlock(DType dtype, const std::byte* stored, int n, PackedQ6_K& block) {
  uint8_t quants[256];
  StoredQuants(dtype, stored, quants);
  for (int s = 0; s < 8; ++s) {
    PlaceNibbles(quants + 32 * s, n, block.nibbles[s]);
    PlaceHigh2(quants + 32 * s, n, block.high2[s]);
  }
  for (int g = 0; g < 16; ++g) block.subscale[g][n] = Load<int8_t>(stored + 192 + g);
  block.scale[n] = Load<uint16_t>(stored + 208);
}

float Half(uint16_t bits) { return ToFloat(f16{bits}); }

void Scale32(const float scale, const float minimum, int offset, const uint8_t* quants, int count,
             float* out) {
  for (int e = 0; e < count; ++e) {
    const float product = scale * static_cast<float>(quants[e] - offset);
    out[e] = product + minimum;
  }
}

template <class B>
void UnpackBlock32(const B& block, int n, int offset, float* out) {
  uint8_t quants[32];
  TakeNibbles(block.nibbles, n, quants);
  if constexpr (kHasHigh<B>) TakeHigh(block.high, n, quants);
  float minimum = 0.0f;
  if constexpr (kHasMinimum<B>) minimum = Half(block.minimum[n]);
  Scale32(Half(block.scale[n]), minimum, offset, quants, 32, out);
}
void UnpackBlock(const PackedQ4_0& block, int n, float* out) { UnpackBlock32(block, n, 8, out); }
void UnpackBlock(const PackedQ4_1& block, int n, float* out) { UnpackBlock32(block, n, 0, out); }
void UnpackBlock(const PackedQ5_0& block, int n, float* out) { UnpackBlock32(block, n, 16, out); }
void UnpackBlock(const PackedQ5_1& block, int n, float* out) { UnpackBlock32(block, n, 0, out); }
void UnpackBlock(const PackedQ8_0& block, int n, float* out) {
  const float scale = Half(block.scale[n]);
  for (int e = 0; e < 32; ++e) out[e] = scale * static_cast<float>(block.pairs[e / 2][n][e % 2]);
}
template <class B>
void UnpackSuperBlock(const B& block, int n, float* out) {
  const float d = Half(block.scale[n]);
  const float dmin = Half(block.minimum[n]);
  for (int s = 0; s < 8; ++s) {
    uint8_t quants[32];
    TakeNibbles(block.nibbles[s], n, quants);
    if constexpr (kHasHigh<B>) TakeHigh(block.high[s], n, quants);
    const int shift = 8 * (s % 4);
    const uint32_t low = block.sixbit[0][n] >> shift;
    const uint32_t mid = block.sixbit[1][n] >> shift;
    const uint32_t top = block.sixbit[2][n] >> shift;
    const uint32_t scale = s < 4 ? low & 63u : (top & 15u) | ((low >> 6) & 3u) << 4;
    const uint32_t minimum = s < 4 ? mid & 63u : ((top >> 4) & 15u) | ((mid >> 6) & 3u) << 4;
    Scale32(d * static_cast<float>(scale), -(dmin * static_cast<float>(minimum)), 0, quants, 32,
            out + 32 * s);
  }
}
void UnpackBlock(const PackedQ4_K& block, int n, float* out) { UnpackSuperBlock(block, n, out); }
void UnpackBlock(const PackedQ5_K& block, int n, float* out) { UnpackSuperBlock(block, n, out); }
void UnpackBlock(const PackedQ6_K& block, int n, float* out) {
  const float d = Half(block.scale[n]);
  for (int s = 0; s < 8; ++s) {
    uint8_t quants[32];
    TakeNibbles(block.nibbles[s], n, quants);
    TakeHigh2(block.high2[s], n, quants);
    for (int g = 0; g < 2; ++g) {
      const float scale = d * static_cast<float>(block.subscale[2 * s + g][n]);
      Scale32(scale, 0.0f, 32, quants + 16 * g, 16, out + 32 * s + 16 * g);
    }
  }
}

// Calls fn with a null pointer of the packed block type of `dtype`.
template <class Fn>
void WithBlockType(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kQ4_0:
      return fn(static_cast<PackedQ4_0*>(nullptr));
    case DType::kQ4_1:
      return fn(static_cast<PackedQ4_1*>(nullptr));
    case DType::kQ5_0:
      return fn(static_cast<PackedQ5_0*>(nullptr));
    case DType::kQ5_1:
      return fn(static_cast<PackedQ5_1*>(nullptr));
    case DType::kQ8_0:
      return fn(static_cast<PackedQ8_0*>(nullptr));
    case DType::kQ4_K:
      return fn(static_cast<PackedQ4_K*>(nullptr));
    case DType::kQ5_K:
      return fn(static_cast<PackedQ5_K*>(nullptr));
    case DType::kQ6_K:
      return fn(static_cast<PackedQ6_K*>(nullptr));
    default:
      ATTEST_CHECK(IsQuantised(dtype));
  }
}

float PlainValue(DType dtype, const std::byte* p) {
  if (dtype == DType::kF32) return Load<float>(p);
  return dtype == DType::kF16 ? ToFloat(Load<f16>(p)) : ToFloat(Load<bf16>(p));
}

}  // namespace

void PackTile(DType dtype, const std::byte* stored, int64_t row_bytes, int rows, int64_t cols,
              std::byte* tile) {
  if (!IsQuantised(dtype)) {
    const int64_t bytes = BlockBytes(dtype);
    std::memset(tile, 0, static_cast<size_t>(bytes * kTileRows * cols));
    for (int n = 0; n < rows; ++n) {
      for (int64_t k = 0; k < cols; ++k) {
        std::memcpy(tile + (k * kTileRows + n) * bytes, stored + n * row_bytes + k * bytes,
                    static_cast<size_t>(bytes));
      }
    }
    return;
  }
  ATTEST_CHECK_EQ(cols % BlockElements(dtype), 0);  // whole blocks: the quotient is the loop count
  const int64_t num_blocks = cols / BlockElements(dtype);
  WithBlockType(dtype, [&]<class B>(B*) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      B block;
      std::memset(&block, 0, sizeof(block));
      for (int n = 0; n < rows; ++n) {
        PackBlock(dtype, stored + n * row_bytes + b * BlockBytes(dtype), n, block);
      }
      std::memcpy(tile + b * static_cast<int64_t>(sizeof(B)), &block, sizeof(block));
    }
  });
}

void DequantizeTileRow(DType dtype, const std::byte* tile, int row, int64_t cols, float* out) {
  if (!IsQuantised(dtype)) {
    const int64_t bytes = BlockBytes(dtype);
    for (int64_t k = 0; k < cols; ++k) out[k] = PlainValue(dtype, tile + (k * kTileRows + row) * bytes);
    return;
  }
  const int64_t num_blocks = cols / BlockElements(dtype);
  WithBlockType(dtype, [&]<class B>(B*) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      UnpackBlock(*reinterpret_cast<const B*>(tile + b * static_cast<int64_t>(sizeof(B))), row,
                  out + b * BlockElements(dtype));
    }
  });
}

void DequantizeTile(DType dtype, const std::byte* tile, int64_t cols, float* out) {
  if (!IsQuantised(dtype)) {
    const int64_t bytes = BlockBytes(dtype);
    for (int64_t i = 0; i < cols * kTileRows; ++i) out[i] = PlainValue(dtype, tile + i * bytes);
    return;
  }
  const int block_elements = BlockElements(dtype);
  const int64_t num_blocks = cols / block_elements;
  float row[256];
  WithBlockType(dtype, [&]<class B>(B*) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      const B& block = *reinterpret_cast<const B*>(tile + b * static_cast<int64_t>(sizeof(B)));
      for (int n = 0; n < kTileRows; ++n) {
        UnpackBlock(block, n, row);
        for (int e = 0; e < block_elements; ++e) out[(b * block_elements + e) * kTileRows + n] = row[e];
      }
    }
  });
}

}  // namespace attest
