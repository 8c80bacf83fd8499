// --dtype: matrices that are not quantised are converted at load.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/model_driver.h"

namespace attest {
namespace {

std::vector<float> LogitsOf(const char* name, std::optional<DType> weight_dtype,
                            int64_t* weight_bytes = nullptr) {
  ThreadTeam team(1);
  const auto checkpoint =
      Checkpoint::Open(std::string(ATTEST_SOURCE_DIR) + "/tests/data/model/" + name).value();
  ModelOptions options;
  options.cpu = DetectCpu();
  options.compute = ComputeMode::kPrecise;
  options.kv_dtype = DType::kF32;
  options.weight_dtype = weight_dtype;
  const auto model = Model::Load(*checkpoint, options, team).value();
  if (weight_bytes != nullptr) *weight_bytes = model->weight_bytes();
  ModelDriver driver(*model, team, 1, 32);
  const std::vector<int32_t> tokens = {1, 7, 42, 99, 3};
  const auto logits = driver.Step(0, tokens);
  return std::vector<float>(logits.data, logits.data + logits.size());
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

TEST(WeightDtype, WideningBf16ChangesNothing) {
  int64_t bf16_bytes = 0, f32_bytes = 0;
  const auto stored = LogitsOf("tiny_tied_yarn", std::nullopt, &bf16_bytes);
  const auto widened = LogitsOf("tiny_tied_yarn", DType::kF32, &f32_bytes);
  EXPECT_GT(f32_bytes, bf16_bytes * 3 / 2);
  EXPECT_LE(LargestDifference(stored, widened),
            1e-5);  // the same products; another kernel may sum in another order
}

// f16 keeps 11 bits of a weight, bf16 8: a relative error of 2^-9 per weight must show, and stay small on
// logits of about 5 (two layers of up to 160 independent errors: about 2^-9 * 5).
TEST(WeightDtype, NarrowingF16ToBf16RoundsWeights) {
  const auto stored = LogitsOf("tiny_untied_llama3", std::nullopt);
  const auto narrowed = LogitsOf("tiny_untied_llama3", DType::kBF16);
  EXPECT_GT(LargestDifference(stored, narrowed), 1e-4);
  EXPECT_LT(LargestDifference(stored, narrowed), 0.1);
}

}  // namespace
}  // namespace attest
