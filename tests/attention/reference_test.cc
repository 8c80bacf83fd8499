// The oracle against numbers worked out by hand and against the formats' definitions: it judges every kernel,
// so it is judged by nothing that it shares.
#include "kernels/reference/attention_reference.h"

#include <gtest/gtest.h>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

AttentionSpec OneHead() {
  AttentionSpec spec = MakeSpec(1, 1, 1);
  spec.kv_dtype = DType::kF32;
  spec.scale = 1.0f;
  return spec;
}

// q = 1, k = the given scores, v = 1, 10, 100, ... so that every weight can be read off.
double Answer(const AttentionSpec& spec, const std::vector<float>& scores, int32_t q_len = 1,
              float sink = 0) {
  AttentionBatch batch(spec, {q_len}, {static_cast<int32_t>(scores.size())});
  batch.FillQ([](int, int, int, int) { return 1.0f; });
  batch.FillK([&](int, int key, int, int) { return scores[static_cast<size_t>(key)]; });
  batch.FillV([](int, int key, int, int) { return std::pow(10.0f, static_cast<float>(key)); });
  batch.sinks()[0] = sink;
  batch.alibi_slopes()[0] = 0.5f;
  return RunOracle(batch).out[0];
}

TEST(Reference, IsSoftmaxTimesV) {
  const double a = std::exp(1.0), b = std::exp(2.0);
  EXPECT_NEAR(Answer(OneHead(), {1, 2}), (a * 1 + b * 10) / (a + b), 1e-12);
}

TEST(Reference, CapsBeforeTheBiasAndTheBiasCountsDistance) {
  AttentionSpec spec = OneHead();
  spec.softcap = 3.0f;
  spec.has_alibi = true;
  const double a = std::exp(3 * std::tanh(1.0 / 3) - 0.5), b = std::exp(3 * std::tanh(2.0 / 3));
  EXPECT_NEAR(Answer(spec, {1, 2}), (a * 1 + b * 10) / (a + b), 1e-12);
}

TEST(Reference, ASinkEntersTheDenominatorOnceAndIsNotScaled) {
  AttentionSpec spec = OneHead();
  spec.has_sinks = true;
  spec.scale = 0.5f;
  const double a = std::exp(0.5), b = std::exp(1.0), sink = std::exp(2.0);
  EXPECT_NEAR(Answer(spec, {1, 2}, 1, 2.0f), (a * 1 + b * 10) / (a + b + sink), 1e-12);
}

TEST(Reference, MasksAreAlignedBottomRightAndWindowsIncludeBothEnds) {
  EXPECT_EQ(Answer(OneHead(), {5, 5, 5}, 3), 1.0);           // row 0 of 3 sees key 0
  EXPECT_NEAR(Answer(OneHead(), {5, 5, 5}, 2), 5.5, 1e-12);  // row 0 of 2 sees keys 0 and 1
  AttentionSpec spec = OneHead();
  spec.window_left = 1;
  EXPECT_NEAR(Answer(spec, {5, 5, 5}), 55.0, 1e-12);
  spec.sink_tokens = 1;
  EXPECT_NEAR(Answer(spec, {5, 5, 5}), 37.0, 1e-12);
  spec = OneHead();
  spec.causal = false;
  spec.window_right = 1;
  EXPECT_NEAR(Answer(spec, {5, 5, 5}, 3), 5.5, 1e-12);
  spec = OneHead();
  spec.chunk = 2;
  EXPECT_NEAR(Answer(spec, {5, 5, 5}), 100.0, 1e-12);
}

TEST(Reference, DecodesEveryByteOfTheEightBitFormats) {
  const auto value = [](int bits, DType type) {
    const auto byte = static_cast<uint8_t>(bits);
    return ReferenceElement(&byte, type, 0);
  };
  // e4m3fn: 448 is the largest, 0x7f and 0xff are NaN, 2^-9 the smallest; no infinity.
  EXPECT_EQ(value(0x7e, DType::kF8E4M3), 448.0);
  EXPECT_EQ(value(0x01, DType::kF8E4M3), 0x1p-9);
  EXPECT_EQ(value(0x08, DType::kF8E4M3), 0x1p-6);
  EXPECT_EQ(value(0x38, DType::kF8E4M3), 1.0);
  EXPECT_EQ(value(0xb8, DType::kF8E4M3), -1.0);
  EXPECT_EQ(value(0x78, DType::kF8E4M3), 256.0);
  EXPECT_TRUE(std::isnan(value(0x7f, DType::kF8E4M3)) && std::isnan(value(0xff, DType::kF8E4M3)));
  EXPECT_EQ(value(0x80, DType::kF8E4M3), 0.0);  // minus zero, not the NaN of the fnuz format
  EXPECT_EQ(value(0x7b, DType::kF8E5M2), 57344.0);
  EXPECT_EQ(value(0x01, DType::kF8E5M2), 0x1p-16);
  EXPECT_EQ(value(0x3c, DType::kF8E5M2), 1.0);
  EXPECT_EQ(value(0x7c, DType::kF8E5M2), kInfinity);
  EXPECT_TRUE(std::isnan(value(0x7d, DType::kF8E5M2)));
  EXPECT_EQ(value(0x80, DType::kI8), -128.0);
  int e4m3_nans = 0, e5m2_nans = 0;
  for (int bits = 0; bits < 256; ++bits) {
    e4m3_nans += std::isnan(value(bits, DType::kF8E4M3));
    e5m2_nans += std::isnan(value(bits, DType::kF8E5M2));
  }
  EXPECT_EQ(e4m3_nans, 2);
  EXPECT_EQ(e5m2_nans, 6);
}

TEST(Reference, AgreesWithTheSixteenBitConversions) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double f = ReferenceElement(&half, DType::kF16, 0), b = ReferenceElement(&half, DType::kBF16, 0);
    const float from_f16 = ToFloat(f16{half}), from_bf16 = ToFloat(bf16{half});
    ASSERT_TRUE(f == from_f16 || (std::isnan(f) && std::isnan(from_f16))) << bits;
    ASSERT_TRUE(b == from_bf16 || (std::isnan(b) && std::isnan(from_bf16))) << bits;
  }
}

}  // namespace
}  // namespace attest::testing
