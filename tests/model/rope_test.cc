#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attest {
namespace {

RopeConfig Llama31() {
  RopeConfig rope;
  rope.theta = 5e5;
  rope.rotary_dim = 128;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_positions = 8192;
  return rope;
}

RopeConfig Plain(double theta, int dim) {
  RopeConfig rope;
  rope.theta = theta;
  rope.rotary_dim = dim;
  return rope;
}

TEST(Rope, B01Llama3StretchesTheLongWavelengthsOnly) {
  const auto scaled = RopeInverseFrequencies(Llama31());
  const auto plain = RopeInverseFrequencies(Plain(5e5, 128));
  ASSERT_EQ(scaled.size(), 64u);
  for (size_t i = 0; i <= 28; ++i) EXPECT_EQ(scaled[i], plain[i]) << "pair " << i;
  EXPECT_NEAR(scaled[29], 0.00216657, 5e-9);
  EXPECT_NEAR(plain[32], 0.00141421, 5e-9);
  EXPECT_NEAR(scaled[32], 0.000524846, 5e-10);
  EXPECT_NEAR(plain[63], 2.45514e-6, 5e-12);
  EXPECT_NEAR(scaled[63], 3.06893e-7, 5e-13);
}

TEST(Rope, B02YarnAttentionFactorFollowsTheMscalePair) {
  EXPECT_DOUBLE_EQ(YarnAttentionFactor(16, 1, 1), 1.0);
  EXPECT_NEAR(YarnAttentionFactor(16, 0, 0), 1.2772589, 1e-7);
  EXPECT_NEAR(YarnAttentionFactor(32, 0, 0), 1.3465736, 1e-7);
  EXPECT_NEAR(YarnAttentionFactor(40, 0.707, 1), (0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1),
              1e-12);
  EXPECT_DOUBLE_EQ(YarnAttentionFactor(0.5, 0, 0), 1.0);
}

TEST(Rope, B03TheBaseSetsTheAngle) {
  EXPECT_NEAR(std::cos(100.0 * RopeInverseFrequencies(Plain(5e5, 128))[1]), 0.97597, 5e-6);
  EXPECT_NEAR(std::cos(100.0 * RopeInverseFrequencies(Plain(1e4, 128))[1]), 0.20125, 5e-6);
}

TEST(Rope, LinearDividesEveryFrequency) {
  RopeConfig rope = Plain(1e4, 64);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  const auto scaled = RopeInverseFrequencies(rope);
  const auto plain = RopeInverseFrequencies(Plain(1e4, 64));
  for (size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4) << "pair " << i;
}

TEST(Rope, YarnKeepsFastPairsAndDividesSlowOnes) {
  RopeConfig rope = Plain(1e4, 128);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 16;
  rope.original_max_positions = 4096;
  // Bounds by the formula: 128 ln(4096 / (2 pi 32)) / (2 ln 1e4) = 20.94, and with 1 turn 45.03.
  const auto truncated = RopeInverseFrequencies(rope);
  const auto plain = RopeInverseFrequencies(Plain(1e4, 128));
  EXPECT_EQ(truncated[20], plain[20]);
  EXPECT_LT(truncated[21], plain[21]);
  EXPECT_GT(truncated[45], plain[45] / 16);
  EXPECT_FLOAT_EQ(truncated[46], plain[46] / 16);
  const double ramp = (30.0 - 20) / (46 - 20);
  EXPECT_FLOAT_EQ(truncated[30], static_cast<float>(plain[30] * (ramp / 16 + 1 - ramp)));
  rope.truncate = false;
  const auto exact = RopeInverseFrequencies(rope);
  EXPECT_NE(exact[30], truncated[30]);
  EXPECT_FLOAT_EQ(exact[20], plain[20]);
}

TEST(Rope, FrequencyDivisorsOfTheFileDivide) {
  RopeConfig rope = Plain(1e4, 8);
  rope.freq_divisors = {1, 1, 2, 8};
  const auto divided = RopeInverseFrequencies(rope);
  const auto plain = RopeInverseFrequencies(Plain(1e4, 8));
  EXPECT_EQ(divided[0], plain[0]);
  EXPECT_FLOAT_EQ(divided[2], plain[2] / 2);
  EXPECT_FLOAT_EQ(divided[3], plain[3] / 8);
}

}  // namespace
}  // namespace attest
