// Each kernel against double arithmetic, on every instruction set of this CPU; outputs and padding are NaN
// before the call.
#include "kernels/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/elementwise_ops.h"

namespace attest {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const ElementwiseOps*> AllOps() {
  std::vector<const ElementwiseOps*> ops = {&kElementwisePortable};
  if (&BestElementwiseOps() != ops[0]) ops.push_back(&BestElementwiseOps());
  return ops;
}

std::vector<float> Normal(size_t n, unsigned seed, float sigma = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

TEST(Elementwise, RmsNormMatchesDoubleArithmetic) {
  for (const ElementwiseOps* ops : AllOps()) {
    for (int64_t n : {1, 7, 16, 31, 64, 576, 1000}) {
      const std::vector<float> x = Normal(static_cast<size_t>(n), 1);
      const std::vector<float> w = Normal(static_cast<size_t>(n), 2);
      std::vector<float> out(static_cast<size_t>(n) + 1, kNan);
      ops->rms_norm(x.data(), w.data(), 1e-5f, out.data(), n);
      double mean = 0;
      for (float v : x) mean += double{v} * v / static_cast<double>(n);
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = x[i] / std::sqrt(mean + 1e-5) * w[i];
        // The sum's error (16 partial sums) enters by half of it; the rest is four roundings.
        EXPECT_NEAR(out[i], want, std::fabs(want) * 6e-7) << "n " << n << " element " << i;
      }
      EXPECT_TRUE(std::isnan(out.back())) << "wrote past the row, n " << n;
    }
  }
}

TEST(Elementwise, RmsNormWorksInPlaceOnStridedRowsWithAnyTeam) {
  for (int threads : {1, 2, 3}) {
    ThreadTeam team(threads);
    const std::vector<float> values = Normal(5 * 40, 3);
    const std::vector<float> w = Normal(32, 4);
    std::vector<float> in_place = values;
    std::vector<float> out(5 * 32, kNan);
    const View<float, 2> x{.data = in_place.data(), .shape = {5, 32}, .stride = {40, 1}};
    RmsNorm(x, w.data(), 1e-6f, View<float, 2>::Dense(out.data(), {5, 32}), team);
    RmsNorm(x, w.data(), 1e-6f, x, team);
    for (size_t t = 0; t < 5; ++t) {
      for (size_t i = 0; i < 40; ++i) {
        const float want = i < 32 ? out[t * 32 + i] : values[t * 40 + i];
        EXPECT_EQ(in_place[t * 40 + i], want) << "row " << t << " element " << i;
      }
    }
  }
}

TEST(Elementwise, SiluMulMatchesDoubleArithmeticFromVeryNegativeToVeryPositive) {
  std::vector<float> gate = {0.0f, -0.0f, 1e-30f, -20.0f, -86.0f, -200.0f, 20.0f, 88.5f, 1e20f};
  for (float v = -30.0f; v < 30.0f; v += 0.0371f) gate.push_back(v);
  const std::vector<float> up = Normal(gate.size(), 7);
  for (const ElementwiseOps* ops : AllOps()) {
    std::vector<float> out(gate.size() + 1, kNan);
    ops->silu_mul(gate.data(), up.data(), out.data(), static_cast<int64_t>(gate.size()));
    for (size_t i = 0; i < gate.size(); ++i) {
      const double want = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
      // exp is right to 2e-7; past -87 the answer is below 1e-35 and clamping keeps it there.
      EXPECT_NEAR(out[i], want, std::fabs(want) * 5e-7 + 1e-34) << "gate " << gate[i];
    }
    EXPECT_TRUE(std::isnan(out.back()));
  }
}

TEST(Elementwise, SiluMulKeepsNan) {
  for (const ElementwiseOps* ops : AllOps()) {
    const std::vector<float> gate(9, kNan);
    const std::vector<float> up(9, 1.0f);
    std::vector<float> out(9, 0.0f);
    ops->silu_mul(gate.data(), up.data(), out.data(), 9);
    for (float v : out) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(Elementwise, SiluMulReadsGateThenUpFromStridedRows) {
  ThreadTeam team(3);
  const std::vector<float> gate_up = Normal(4 * 50, 9);
  std::vector<float> out(4 * 30, kNan);
  const View<const float, 2> in{.data = gate_up.data(), .shape = {4, 46}, .stride = {50, 1}};
  const View<float, 2> dst{.data = out.data(), .shape = {4, 23}, .stride = {30, 1}};
  SiluMul(in, dst, team);
  for (size_t t = 0; t < 4; ++t) {
    for (size_t j = 0; j < 30; ++j) {
      if (j >= 23) {
        EXPECT_TRUE(std::isnan(out[t * 30 + j]));
        continue;
      }
      const double gate = gate_up[t * 50 + j];
      const double want = gate / (1.0 + std::exp(-gate)) * gate_up[t * 50 + 23 + j];
      EXPECT_NEAR(out[t * 30 + j], want, std::fabs(want) * 5e-7 + 1e-30);
    }
  }
}

TEST(Elementwise, RopeAnglesAreRightAtPositionOneHundredThousand) {
  const int half = 32;
  std::vector<float> inv_freq(half);
  for (int i = 0; i < half; ++i) {
    inv_freq[static_cast<size_t>(i)] = static_cast<float>(std::pow(1e4, -2.0 * i / (2 * half)));
  }
  for (const ElementwiseOps* ops : AllOps()) {
    for (int position : {0, 1, 2, 3, 7, 1023, 4096, 99991, 100000, 1 << 20}) {
      std::vector<float> cosines(half, kNan);
      std::vector<float> sines(half, kNan);
      ops->rope_angles(position, inv_freq.data(), 1.0f, cosines.data(), sines.data(), half);
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * inv_freq[i];
        EXPECT_NEAR(cosines[i], std::cos(angle), 7e-8) << "position " << position << " pair " << i;
        EXPECT_NEAR(sines[i], std::sin(angle), 7e-8) << "position " << position << " pair " << i;
      }
    }
  }
}

TEST(Elementwise, ApplyRopeRotatesHalfSplitPairsAndLeavesTheRest) {
  constexpr int kTokens = 3;
  constexpr int kHeads = 2;
  constexpr int kDim = 20;
  constexpr int kRotary = 12;
  ThreadTeam team(2);
  const std::vector<float> inv_freq = {1.0f, 0.5f, 0.25f, 0.1f, 0.01f, 0.001f};
  const RopeTable table{.inv_freq = inv_freq.data(), .rotary_dim = kRotary, .attention_factor = 1.25f};
  const std::vector<int32_t> positions = {5, 0, 70001};
  const std::vector<float> before = Normal(kTokens * 100, 10);
  std::vector<float> after = before;
  const View<float, 3> x{.data = after.data(), .shape = {kTokens, kHeads, kDim}, .stride = {100, 24, 1}};
  ApplyRope(x, positions, table, team);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t h = 0; h < kHeads; ++h) {
      const float* in = before.data() + t * 100 + h * 24;
      const float* out = after.data() + t * 100 + h * 24;
      for (size_t i = 0; i < kRotary / 2; ++i) {
        const double angle = static_cast<double>(positions[t]) * inv_freq[i];
        const double a = in[i];
        const double b = in[i + kRotary / 2];
        EXPECT_NEAR(out[i], 1.25 * (a * std::cos(angle) - b * std::sin(angle)), 2e-6);
        EXPECT_NEAR(out[i + kRotary / 2], 1.25 * (b * std::cos(angle) + a * std::sin(angle)), 2e-6);
      }
      for (size_t i = kRotary; i < 24; ++i) EXPECT_EQ(out[i], in[i]) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace attest
