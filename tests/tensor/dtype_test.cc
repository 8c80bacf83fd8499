#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attest {
namespace {

TEST(F16, EveryValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 value{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(wide))));
    } else {
      EXPECT_EQ(ToF16(wide).bits, bits);
    }
  }
}

TEST(F16, RoundsToNearestEven) {
  EXPECT_EQ(ToF16(65519.0f).bits, 0x7bff);  // below the middle between 65504 and 65536
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7c00);  // the middle: to even, which is infinity
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(ToF16(1.0f + 3 * 0x1p-11f).bits, 0x3c02);
  EXPECT_EQ(ToF16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(ToF16(0x1.8p-25f).bits, 0x0001);
  EXPECT_EQ(ToF16(-0x1p-24f).bits, 0x8001);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(ToBf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(ToFloat(ToBf16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

TEST(RowBytes, CountsWholeBlocks) {
  EXPECT_EQ(RowBytes(DType::kQ4_1, 576), 576 / 32 * 20);
  EXPECT_EQ(RowBytes(DType::kQ6_K, 1536), 6 * 210);
  EXPECT_EQ(RowBytes(DType::kBF16, 7), 14);
}

}  // namespace
}  // namespace attest
