#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/matmul_layout.h"
#include "tests/support/weights.h"

namespace attest {
namespace {

using testing::kWeightTypes;
using testing::MakeWeights;
using testing::RandomWeights;

std::vector<std::byte> FromHex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

DType TypeNamed(const std::string& name) {
  for (DType dtype : kWeightTypes) {
    if (DTypeName(dtype) == name) return dtype;
  }
  ADD_FAILURE() << "unknown type " << name;
  return DType::kI8;
}

// The fixture was written by the Python package gguf (tests/data/kernels/make_dequantize_fixture.py).
TEST(Dequantize, EqualsThePythonGgufPackageBitForBit) {
  std::ifstream file(std::string(ATTEST_SOURCE_DIR) + "/tests/data/kernels/dequantize.txt");
  if (!file) GTEST_SKIP() << "no source tree on this machine: tests/data/kernels/dequantize.txt";
  std::map<std::string, int> blocks_of_type;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name, block_hex, values_hex;
    fields >> name >> block_hex >> values_hex;
    const DType dtype = TypeNamed(name);
    const std::vector<std::byte> blocks = FromHex(block_hex);
    const std::vector<std::byte> value_bytes = FromHex(values_hex);
    std::vector<float> want(value_bytes.size() / sizeof(float));
    std::memcpy(want.data(), value_bytes.data(), value_bytes.size());
    std::vector<float> got(want.size(), NAN);
    DequantizeBlocks(dtype, blocks.data(), static_cast<int64_t>(want.size()), got.data());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << name << " element " << i;
    ++blocks_of_type[name];
  }
  EXPECT_EQ(blocks_of_type.size(), 10u);  // every type but f32
}

TEST(Dequantize, MatchesTheFormulasOfEveryTypeElementByElement) {
  for (DType dtype : kWeightTypes) {
    const RandomWeights w = MakeWeights(dtype, 3, 512, 11);
    std::vector<float> got(3 * 512, NAN);
    DequantizeBlocks(dtype, w.stored.data(), 3 * 512, got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      // Two or three f32 roundings of terms up to four times the largest value.
      EXPECT_NEAR(got[i], w.values[i], 1e-7) << DTypeName(dtype) << " element " << i;
    }
  }
}

// Blocks small enough to work out by hand.
TEST(Dequantize, HandMadeBlocks) {
  const uint8_t one[2] = {0x00, 0x3c};    // 1.0
  const uint8_t half[2] = {0x00, 0x38};   // 0.5
  const uint8_t minus[2] = {0x00, 0xc0};  // -2.0
  float out[256];
  const auto run = [&](DType dtype, const std::vector<uint8_t>& block) {
    ASSERT_EQ(static_cast<int>(block.size()), BlockBytes(dtype));
    DequantizeBlocks(dtype, reinterpret_cast<const std::byte*>(block.data()), BlockElements(dtype), out);
  };
  std::vector<uint8_t> block(18, 0x88);
  std::memcpy(block.data(), half, 2);
  block[2] = 0xf0;  // element 0: 0 - 8, element 16: 15 - 8
  run(DType::kQ4_0, block);
  EXPECT_EQ(out[0], -4.0f);
  EXPECT_EQ(out[16], 3.5f);
  EXPECT_EQ(out[1], 0.0f);

  block.assign(20, 0);
  std::memcpy(block.data(), half, 2);
  std::memcpy(block.data() + 2, minus, 2);
  block[4 + 3] = 0x9a;  // element 3: 10, element 19: 9
  run(DType::kQ4_1, block);
  EXPECT_EQ(out[3], 3.0f);
  EXPECT_EQ(out[19], 2.5f);
  EXPECT_EQ(out[0], -2.0f);

  block.assign(22, 0);
  std::memcpy(block.data(), one, 2);
  block[2 + 2] = 0x02;  // fifth bit of element 17
  block[6 + 1] = 0x31;  // element 1: 1, element 17: 3 + 16
  run(DType::kQ5_0, block);
  EXPECT_EQ(out[1], -15.0f);
  EXPECT_EQ(out[17], 3.0f);

  block.assign(24, 0);
  std::memcpy(block.data(), one, 2);
  std::memcpy(block.data() + 2, half, 2);
  block[4] = 0x80;  // fifth bit of element 7
  run(DType::kQ5_1, block);
  EXPECT_EQ(out[7], 16.5f);
  EXPECT_EQ(out[8], 0.5f);

  block.assign(34, 0);
  std::memcpy(block.data(), half, 2);
  block[2 + 31] = 0x80;
  run(DType::kQ8_0, block);
  EXPECT_EQ(out[31], -64.0f);

  block.assign(144, 0);
  std::memcpy(block.data(), one, 2);
  std::memcpy(block.data() + 2, half, 2);
  block[4 + 1] = 0x80 | 5;    // scale of 1: 5; high bits 2 of the scale of 5
  block[4 + 5] = 0x40 | 6;    // minimum of 1: 6; high bits 1 of the minimum of 5
  block[4 + 9] = 0x73;        // low bits of 5: scale 3, minimum 7
  block[16 + 0] = 0x20;       // sub-block 1 (high nibbles), element 0: 2
  block[16 + 64 + 4] = 0x90;  // sub-block 5, element 4: 9
  run(DType::kQ4_K, block);
  EXPECT_EQ(out[32], 5.0f * 2 - 0.5f * 6);
  EXPECT_EQ(out[5 * 32 + 4], 35.0f * 9 - 0.5f * 23);

  block.assign(176, 0);
  std::memcpy(block.data(), one, 2);
  block[4 + 2] = 3;        // scale of 2
  block[16 + 9] = 0x04;    // high bit of element 9 in sub-block 2
  block[48 + 32 + 9] = 1;  // low nibble
  run(DType::kQ5_K, block);
  EXPECT_EQ(out[2 * 32 + 9], 3.0f * 17);

  block.assign(210, 0);
  std::memcpy(block.data() + 208, half, 2);
  block[192 + 8 + 2 * 3 + 1] = 0xfe;  // second half, quarter 3, elements 16-31: -2
  block[64 + 32 + 20] = 0x50;         // nibble 5 of element 20
  block[128 + 32 + 20] = 0xc0;        // two bits 3
  run(DType::kQ6_K, block);
  EXPECT_EQ(out[128 + 96 + 20], 0.5f * -2 * (5 + 48 - 32));
}

TEST(PackedTile, GivesBackEveryRowExactly) {
  for (DType dtype : kWeightTypes) {
    for (int rows : {1, 7, 16}) {
      const int64_t cols = BlockElements(dtype) == 256 ? 768 : 96;
      const RandomWeights w = MakeWeights(dtype, rows, cols, 5);
      std::vector<std::byte> tile(static_cast<size_t>(w.row_bytes() * kTileRows), std::byte{0xff});
      PackTile(dtype, w.stored.data(), w.row_bytes(), rows, cols, tile.data());
      std::vector<float> want(static_cast<size_t>(cols));
      std::vector<float> got(static_cast<size_t>(cols));
      std::vector<float> panel(static_cast<size_t>(cols) * kTileRows);
      DequantizeTile(dtype, tile.data(), cols, panel.data());
      for (int r = 0; r < kTileRows; ++r) {
        if (r < rows) {
          DequantizeBlocks(dtype, w.stored.data() + r * w.row_bytes(), cols, want.data());
        } else {
          std::fill(want.begin(), want.end(), 0.0f);
        }
        DequantizeTileRow(dtype, tile.data(), r, cols, got.data());
        for (size_t k = 0; k < got.size(); ++k) {
          ASSERT_EQ(got[k], want[k]) << DTypeName(dtype) << " row " << r << " column " << k;
          ASSERT_EQ(panel[k * kTileRows + static_cast<size_t>(r)], want[k]) << DTypeName(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attest
