#include "kernels/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/convert.h"

namespace attest {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Merged {
  float out = 0, lse = 0;
};
Merged MergeTwo(float out_a, float lse_a, float out_b, float lse_b,
                std::optional<float> sink = std::nullopt) {
  const float outs[] = {out_a, out_b}, lses[] = {lse_a, lse_b};
  Merged merged;
  merged.lse = MergeStateRow({.out = outs, .out_stride = 1, .lse = lses, .lse_stride = 1, .n = 2}, sink, 1,
                             &merged.out);
  return merged;
}

// {+inf, -inf, finite} x the same: an empty side never dominates, whichever sign marks it, and its output
// (NaN here) is never read.
TEST(MergeStates, EmptySidesAreTheIdentityWhicheverInfinityMarksThem) {
  for (const float empty : {kInf, -kInf}) {
    const Merged right = MergeTwo(kNan, empty, 3.0f, 1.5f), left = MergeTwo(3.0f, 1.5f, kNan, empty);
    EXPECT_EQ(right.out, 3.0f);
    EXPECT_EQ(right.lse, 1.5f);
    EXPECT_EQ(left.out, 3.0f);
    EXPECT_EQ(left.lse, 1.5f);
    for (const float other : {kInf, -kInf}) {
      const Merged none = MergeTwo(kNan, empty, kNan, other);
      EXPECT_EQ(none.out, 0.0f);
      EXPECT_EQ(none.lse, -kInf);
    }
  }
  const Merged both = MergeTwo(2.0f, 0.0f, 4.0f, 0.0f);
  EXPECT_FLOAT_EQ(both.out, 3.0f);
  EXPECT_FLOAT_EQ(both.lse, std::log(2.0f));
}

TEST(MergeStates, AStateOfNoWeightIsSelectedAwayNotMultiplied) {
  const Merged merged = MergeTwo(kNan, -500.0f, 5.0f, 0.0f);
  EXPECT_EQ(merged.out, 5.0f);
  EXPECT_EQ(merged.lse, 0.0f);
}

TEST(MergeStates, ABrokenLseShows) {
  EXPECT_TRUE(std::isnan(MergeTwo(1.0f, kNan, 5.0f, 0.0f).out));
  EXPECT_TRUE(std::isnan(MergeTwo(1.0f, 0.0f, 5.0f, kNan).lse));
}

TEST(MergeStates, CountsASinkOnce) {
  const Merged merged = MergeTwo(0.5f, std::log(2.0f), 2.5f, std::log(2.0f), 0.0f);
  EXPECT_NEAR(merged.out, 1.2f, 1e-6);
  EXPECT_NEAR(merged.lse, std::log(5.0f), 1e-6);
  const Merged only_sink = MergeTwo(kNan, -kInf, kNan, -kInf, 0.75f);
  EXPECT_EQ(only_sink.out, 0.0f);
  EXPECT_EQ(only_sink.lse, 0.75f);
  const Merged no_sink = MergeTwo(1.0f, 0.0f, 3.0f, 0.0f, -kInf);
  EXPECT_FLOAT_EQ(no_sink.out, 2.0f);
}

TEST(MergeStates, StaysFiniteFarFromZero) {
  for (const float shift : {-1e4f, 1e4f, 3e38f}) {
    const Merged merged = MergeTwo(1.0f, shift, 3.0f, shift);
    EXPECT_FLOAT_EQ(merged.out, 2.0f);
    EXPECT_TRUE(std::isfinite(merged.lse));
  }
}

// Tensors with strides of their own, LSE transposed, against a double sum over all states at once.
TEST(MergeStates, MergesStridedTensorsRowByRow) {
  constexpr int kTokens = 3, kHeads = 5, kDim = 70, kStates = 4;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> outs, lses;
  std::vector<AttentionState> states;
  for (int i = 0; i < kStates; ++i) {
    outs.emplace_back(kTokens * kHeads * (kDim + 10), kNan);
    lses.emplace_back(kTokens * kHeads);
    for (int row = 0; row < kTokens * kHeads; ++row) {
      for (int d = 0; d < kDim; ++d) outs.back()[static_cast<size_t>(row * (kDim + 10) + d)] = normal(random);
      lses.back()[static_cast<size_t>(row)] = row % 7 == i ? -kInf : 4 * normal(random);
    }
  }
  for (size_t i = 0; i < kStates; ++i) {
    states.push_back({.out = {.data = outs[i].data(),
                              .shape = {kTokens, kHeads, kDim},
                              .stride = {kHeads * (kDim + 10), kDim + 10, 1}},
                      .lse = {.data = lses[i].data(), .shape = {kHeads, kTokens}, .stride = {1, kHeads}}});
  }
  std::vector<float> out(kTokens * kHeads * kDim, kNan), lse(kTokens * kHeads, kNan);
  MergeStates(states, View<float, 3>::Dense(out.data(), {kTokens, kHeads, kDim}),
              View<float, 2>::Dense(lse.data(), {kHeads, kTokens}));
  for (int token = 0; token < kTokens; ++token) {
    for (int head = 0; head < kHeads; ++head) {
      double total = 0;
      for (const AttentionState& state : states)
        total += std::exp(static_cast<double>(*state.lse.At(head, token)));
      EXPECT_NEAR(lse[static_cast<size_t>(head * kTokens + token)], std::log(total), 1e-5);
      for (int d = 0; d < kDim; ++d) {
        double expected = 0;
        for (const AttentionState& state : states) {
          expected += std::exp(static_cast<double>(*state.lse.At(head, token))) / total *
                      *state.out.At(token, head, d);
        }
        ASSERT_NEAR(out[static_cast<size_t>((token * kHeads + head) * kDim + d)], expected, 2e-6);
      }
    }
  }
}

TEST(MergeStates, MayWriteIntoOneOfItsStates) {
  std::vector<float> out(200);
  for (int d = 0; d < 100; ++d) {
    out[static_cast<size_t>(d)] = static_cast<float>(d);
    out[static_cast<size_t>(100 + d)] = static_cast<float>(3 * d);
  }
  const float lse[] = {1.0f, 1.0f};
  MergeStateRow({.out = out.data(), .out_stride = 100, .lse = lse, .lse_stride = 1, .n = 2}, std::nullopt,
                100, out.data());
  for (int d = 0; d < 100; ++d) EXPECT_FLOAT_EQ(out[static_cast<size_t>(d)], 2.0f * static_cast<float>(d));
}

// Tensors of every float type, with gaps between rows and heads, merged in place into one of the states; what
// lies in the gaps stays.
TEST(MergeStates, TakesStridedTensorsOfEveryFloatType) {
  constexpr int kTokens = 5, kHeads = 3, kDim = 70, kHeadStride = 75, kTokenStride = 240, kStates = 4;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::vector<float>> lses;
    std::vector<StateTensor> states;
    const auto at = [&](const StateTensor& state, int token, int head, int d) {
      float value = 0;
      RowToFloats(state.out.data + (token * kTokenStride + head * kHeadStride + d) * BlockBytes(type), type,
                  1, &value);
      return value;
    };
    for (int i = 0; i < kStates; ++i) {
      auto& bytes = memory.emplace_back(static_cast<size_t>(kTokens * kTokenStride * BlockBytes(type)));
      auto& lse = lses.emplace_back(static_cast<size_t>(kHeads * 9));  // rows of 9 for 5 tokens
      for (int n = 0; n < kTokens * kTokenStride; ++n) {
        const float value = normal(random);
        RowFromFloats(&value, type, 1, bytes.data() + n * BlockBytes(type));
      }
      for (float& x : lse) x = 3 * normal(random);
      if (i == 2) lse[0] = -kInf;
      states.push_back({.out = {bytes.data(), {kTokens, kHeads, kDim}, {kTokenStride, kHeadStride, 1}},
                        .dtype = type,
                        .lse = {lse.data(), {kHeads, kTokens}, {9, 1}}});
    }
    const std::vector<float> sinks = {0.5f, -kInf, 2.0f};
    std::vector<double> expected;
    std::vector<double> expected_lse;
    for (int token = 0; token < kTokens; ++token) {
      for (int head = 0; head < kHeads; ++head) {
        double total = std::exp(static_cast<double>(sinks[static_cast<size_t>(head)]));
        for (const StateTensor& state : states)
          total += std::exp(static_cast<double>(*state.lse.At(head, token)));
        expected_lse.push_back(std::log(total));
        for (int d = 0; d < kDim; ++d) {
          double sum = 0;
          for (const StateTensor& state : states) {
            sum +=
                std::exp(static_cast<double>(*state.lse.At(head, token))) / total * at(state, token, head, d);
          }
          expected.push_back(sum);
        }
      }
    }
    const std::vector<std::byte> before = memory[1];
    std::vector<float> lse(kHeads * kTokens, kNan);
    const MergeTensors tensors{
        .states = states,
        .out = {memory[1].data(), {kTokens, kHeads, kDim}, {kTokenStride, kHeadStride, 1}},
        .out_dtype = type,
        .lse = {lse.data(), {kHeads, kTokens}, {1, kHeads}},
        .sinks = sinks.data()};
    MergeTokens(tensors, 0, 2);
    MergeTokens(tensors, 2, kTokens);
    const double ulp = type == DType::kF32 ? 0x1p-21 : type == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    size_t n = 0;
    for (int token = 0; token < kTokens; ++token) {
      for (int head = 0; head < kHeads; ++head) {
        EXPECT_NEAR(lse[static_cast<size_t>(token * kHeads + head)],
                    expected_lse[static_cast<size_t>(token * kHeads + head)], 1e-5);
        for (int d = 0; d < kDim; ++d, ++n) {
          ASSERT_NEAR(at(states[1], token, head, d), expected[n], ulp * (1 + std::abs(expected[n])))
              << DTypeName(type);
        }
        const size_t gap =
            static_cast<size_t>((token * kTokenStride + head * kHeadStride + kDim) * BlockBytes(type));
        EXPECT_TRUE(std::equal(before.begin() + static_cast<std::ptrdiff_t>(gap),
                               before.begin() + static_cast<std::ptrdiff_t>(gap) + 5 * BlockBytes(type),
                               memory[1].begin() + static_cast<std::ptrdiff_t>(gap)));
      }
    }
  }
}

}  // namespace
}  // namespace attest
