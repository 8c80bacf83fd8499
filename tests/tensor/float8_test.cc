#include "tensor/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attest {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Format {
  const char* name;
  int exponent_bits, fraction_bits;
  bool has_infinity;
  uint8_t (*encode)(float);
  uint8_t largest;  // bits
};
const Format kFormats[] = {{"e4m3fn", 4, 3, false, &ToF8E4M3, 0x7e}, {"e5m2", 5, 2, true, &ToF8E5M2, 0x7b}};

// By the definition of the formats (OCP 8-bit floating point, 1.0), with nothing shared with the conversion.
double Decode(const Format& f, int bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = (bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const int top = (1 << f.exponent_bits) - 1;
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  if (f.has_infinity && exponent == top) return fraction == 0 ? sign * kInf : static_cast<double>(kNan);
  if (!f.has_infinity && exponent == top && fraction == (1 << f.fraction_bits) - 1) return kNan;
  const double mantissa = fraction / std::ldexp(1.0, f.fraction_bits) + (exponent == 0 ? 0.0 : 1.0);
  return sign * std::ldexp(mantissa, std::max(exponent, 1) - bias);
}

TEST(Float8, EveryOneOfThe256ValuesRoundTrips) {
  for (const Format& f : kFormats) {
    for (int bits = 0; bits < 256; ++bits) {
      const double value = Decode(f, bits);
      const int back = f.encode(static_cast<float>(value));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(Decode(f, back))) << f.name << " " << bits;
      } else if (std::isinf(value)) {
        EXPECT_EQ(back, (bits & 0x80) | f.largest) << f.name << " saturates";
      } else {
        EXPECT_EQ(back, bits) << f.name << " " << value;  // the sign of zero too
      }
    }
  }
}

TEST(Float8, TiesGoToTheEvenNeighbourAndOneUlpAsideToTheNearest) {
  for (const Format& f : kFormats) {
    for (int bits = 0; bits < f.largest; ++bits) {
      const auto low = static_cast<float>(Decode(f, bits)), high = static_cast<float>(Decode(f, bits + 1));
      const float middle = (low + high) / 2;  // exact: two more bits than the format has
      const int even = bits % 2 == 0 ? bits : bits + 1;
      EXPECT_EQ(f.encode(middle), even) << f.name << " " << middle;
      EXPECT_EQ(f.encode(-middle), even | 0x80) << f.name << " " << middle;
      EXPECT_EQ(f.encode(std::nextafterf(middle, 0.0f)), bits) << f.name << " " << middle;
      EXPECT_EQ(f.encode(std::nextafterf(middle, kInf)), bits + 1) << f.name << " " << middle;
    }
  }
}

TEST(Float8, SaturatesAndKeepsNan) {
  for (const Format& f : kFormats) {
    const auto largest = static_cast<float>(Decode(f, f.largest));
    for (const float value :
         {largest, std::nextafterf(largest, kInf), largest * 1.0625f, largest * 2, 1e38f, kInf}) {
      EXPECT_EQ(f.encode(value), f.largest) << f.name << " " << value;
      EXPECT_EQ(f.encode(-value), f.largest | 0x80) << f.name << " " << value;
    }
    EXPECT_TRUE(std::isnan(Decode(f, f.encode(kNan))));
    EXPECT_TRUE(std::isnan(Decode(f, f.encode(-kNan))));
    EXPECT_EQ(f.encode(std::numeric_limits<float>::denorm_min()), 0);
  }
  EXPECT_EQ(Decode(kFormats[0], 0x7e), 448.0);
  EXPECT_EQ(Decode(kFormats[1], 0x7b), 57344.0);
}

TEST(Float8, RandomValuesGoToTheNearestOfAllValues) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-20.0f, 17.0f), fraction(1.0f, 2.0f);
  for (const Format& f : kFormats) {
    for (int i = 0; i < 20000; ++i) {
      const float value = std::ldexp(fraction(random), static_cast<int>(exponent(random)));
      double best = kInf;
      for (int bits = 0; bits <= f.largest; ++bits) {
        best = std::min(best, std::abs(Decode(f, bits) - static_cast<double>(value)));
      }
      ASSERT_EQ(std::abs(Decode(f, f.encode(value)) - static_cast<double>(value)), best)
          << f.name << " " << value;
    }
  }
}

TEST(Int8, RoundsToEvenAndSaturates) {
  for (int i = -128; i <= 127; ++i) EXPECT_EQ(ToI8(static_cast<float>(i)), i);
  for (int i = -128; i < 127; ++i) {
    EXPECT_EQ(ToI8(static_cast<float>(i) + 0.5f), i % 2 == 0 ? i : i + 1) << i;
  }
  EXPECT_EQ(ToI8(127.4f), 127);
  EXPECT_EQ(ToI8(1e30f), 127);
  EXPECT_EQ(ToI8(kInf), 127);
  EXPECT_EQ(ToI8(-128.5f), -128);
  EXPECT_EQ(ToI8(-kInf), -128);
  EXPECT_EQ(ToI8(kNan), 0);
}

}  // namespace
}  // namespace attest
