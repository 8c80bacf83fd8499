// Two small random Llama models against logits recorded from transformers: head_dim 32, tied, YaRN, bf16; and
// 5 query heads per K/V head, untied, llama3 rope, every bias, f16.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/rope.h"
#include "tests/model/checkpoint_copy.h"
#include "tests/model/reference.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

// transformers and we both compute in float32 on the same weights. Each of about ten sums per layer of up to
// 160 terms has a relative rounding error near 6e-8 * sqrt(160) = 8e-7; two layers and a head on logits up to
// 5 give some 1e-5. Measured: below 5e-6.
constexpr double kTinyTolerance = 5e-5;

class TinyModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = ModelDataFolder() / GetParam();
    expected_ = ReadJsonFile(folder_ / "expected.json");
    prompt_ = ReferencePrompt::FromJson(expected_);
    prompt_.name = GetParam();
  }

  std::unique_ptr<Model> Load(const std::filesystem::path& path, ComputeMode compute) {
    auto model = LoadModel(path, compute, team_);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    return model ? std::move(*model) : nullptr;
  }

  // The largest difference from the full rows `key` of the recording.
  double LargestLogitDifference(View<const float, 2> logits, const char* key) {
    double largest = 0;
    const auto& positions = expected_.at("full_positions");
    for (size_t i = 0; i < positions.size(); ++i) {
      const auto row = expected_.at(key)[i].get<std::vector<double>>();
      const float* ours = logits.At(positions[i].get<int64_t>());
      for (size_t j = 0; j < row.size(); ++j) {
        const double difference = std::abs(static_cast<double>(ours[j]) - row[j]);
        if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
      }
    }
    return largest;
  }

  [[nodiscard]] std::span<const int32_t> tokens() const {
    return std::span(prompt_.tokens).first(prompt_.positions());
  }

  ThreadTeam team_{2};
  std::filesystem::path folder_;
  nlohmann::json expected_;
  ReferencePrompt prompt_;
};

TEST_P(TinyModel, FrequenciesAreThoseOfTransformers) {
  const auto checkpoint = Checkpoint::Open(folder_).value();
  const auto config = ReadModelConfig(*checkpoint);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const auto ours = RopeInverseFrequencies(config->rope);
  const auto theirs = expected_.at("inv_freq").get<std::vector<double>>();
  ASSERT_EQ(ours.size(), theirs.size());
  // Computed there in float32, a power and some products: a few times 6e-8.
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-6 * theirs[i]) << "pair " << i;
  EXPECT_NEAR(config->rope.attention_factor, expected_.at("attention_factor").get<double>(), 1e-6);
}

TEST_P(TinyModel, PreciseModeGivesTheRecordedLogits) {
  const auto model = Load(folder_, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  ModelDriver driver(*model, team_, 1, 128);
  const auto logits = driver.Step(0, tokens());
  ASSERT_NE(logits.data, nullptr);
  EXPECT_LE(LargestLogitDifference(logits, "full_logits"), kTinyTolerance);
  Comparison comparison;
  for (size_t t = 0; t < prompt_.positions(); ++t) comparison.Add(prompt_, t, logits.At(t), logits.shape[1]);
  EXPECT_EQ(comparison.positions, 96);
  EXPECT_LE(comparison.max_difference, kTinyTolerance) << comparison.worst;
  EXPECT_LE(comparison.largest_gap_where_greedy_differs, 2 * kTinyTolerance);
}

// For logprobs of prompts: a step that asked for its last row only can be asked for the others, in any order
// and in more rows than it reserved.
TEST_P(TinyModel, LogitsOfFurtherRowsAreThoseOfTheStep) {
  const auto model = Load(folder_, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  ModelDriver driver(*model, team_, 1, 128);
  ASSERT_NE(driver.Step(0, tokens(), /*last_row_only=*/true).data, nullptr);
  const int64_t vocab = model->config().vocab_size;
  const auto count = static_cast<int64_t>(tokens().size());
  std::vector<float> logits(static_cast<size_t>(count * vocab), std::nanf(""));
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < count; ++row) rows.push_back(static_cast<int32_t>(count) - 1 - row);
  model->Logits(rows, View<float, 2>::Dense(logits.data(), {count, vocab}), team_);
  std::vector<float> ordered(logits.size());
  for (int64_t row = 0; row < count; ++row) {
    std::copy_n(logits.begin() + row * vocab, vocab, ordered.begin() + (count - 1 - row) * vocab);
  }
  EXPECT_LE(
      LargestLogitDifference(View<const float, 2>::Dense(ordered.data(), {count, vocab}), "full_logits"),
      kTinyTolerance);
}

// The yardstick of the default mode: transformers itself in bfloat16, which rounds every activation.
TEST_P(TinyModel, FastModeIsCloserThanTransformersInBf16) {
  const auto model = Load(folder_, ComputeMode::kFast);
  ASSERT_NE(model, nullptr);
  ModelDriver driver(*model, team_, 1, 128);
  const auto logits = driver.Step(0, tokens());
  ASSERT_NE(logits.data, nullptr);
  double bf16_largest = 0, bf16_squares = 0, our_squares = 0;
  for (size_t i = 0; i < expected_.at("full_logits").size(); ++i) {
    const auto exact = expected_.at("full_logits")[i].get<std::vector<double>>();
    const auto rounded = expected_.at("bf16_logits")[i].get<std::vector<double>>();
    const float* ours = logits.At(expected_.at("full_positions")[i].get<int64_t>());
    for (size_t j = 0; j < exact.size(); ++j) {
      bf16_largest = std::max(bf16_largest, std::abs(exact[j] - rounded[j]));
      bf16_squares += (exact[j] - rounded[j]) * (exact[j] - rounded[j]);
      our_squares += (exact[j] - ours[j]) * (exact[j] - ours[j]);
    }
  }
  EXPECT_GT(bf16_largest, 0.005);  // the yardstick measures something
  EXPECT_LE(std::sqrt(our_squares), std::sqrt(bf16_squares));
  // One number out of a thousand is a matter of luck: between two ways to round, it may be half as large
  // again.
  EXPECT_LE(LargestLogitDifference(logits, "full_logits"), 1.5 * bf16_largest);
}

// Norms and residuals are float32 here, so "multiply by the weight, then cast" and "cast, then multiply" are
// one; the stored bf16 or f16 weights are used as they are.
TEST_P(TinyModel, B08LogitsOfHalfPrecisionWeightsMatchTheReferenceOfTheArchitecture) {
  const auto model = Load(folder_, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  ModelDriver driver(*model, team_, 1, 128);
  const auto logits = driver.Step(0, tokens());
  ASSERT_NE(logits.data, nullptr);
  const double to_f32 = LargestLogitDifference(logits, "full_logits");
  const double to_bf16 = LargestLogitDifference(logits, "bf16_logits");
  EXPECT_LE(to_f32, kTinyTolerance);
  // Rounding anywhere in the residual path would show: bf16 is 100 times further away.
  EXPECT_GT(to_bf16, 100 * to_f32);
}

TEST_P(TinyModel, ChunksStepsAndCompanionsDoNotChangeTheLogits) {
  const auto model = Load(folder_, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  const int64_t vocab = model->config().vocab_size;
  ModelDriver whole_driver(*model, team_, 1, 128);
  const auto whole = whole_driver.Step(0, tokens());
  ASSERT_NE(whole.data, nullptr);
  const auto expect_row = [&](const float* row, size_t t, const char* how) {
    double largest = 0;
    for (int64_t j = 0; j < vocab; ++j) {
      const double difference = std::abs(row[j] - *whole.At(t, j));
      if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    }
    EXPECT_LE(largest, kTinyTolerance) << how << ", position " << t;
  };
  for (const size_t chunk : {1u, 5u, 16u, 17u, 64u}) {
    ModelDriver driver(*model, team_, 1, 128);
    for (size_t begin = 0; begin < tokens().size(); begin += chunk) {
      const size_t count = std::min<size_t>(chunk, tokens().size() - begin);
      const auto logits = driver.Step(0, tokens().subspan(begin, count));
      ASSERT_NE(logits.data, nullptr);
      for (size_t i = 0; i < count; ++i) expect_row(logits.At(i), begin + i, "in pieces");
    }
  }
  // A decode row, a prefill, an extend and a one-token prompt in one step, in an order that moves.
  const auto t = tokens();
  ModelDriver driver(*model, team_, 4, 128);
  driver.Step(0, t.first(30), true);
  driver.Step(2, t.first(11), true);
  const StepPiece mixed[] = {{.seq = 2, .tokens = t.subspan(11, 20)},
                             {.seq = 0, .tokens = t.subspan(30, 1)},
                             {.seq = 3, .tokens = t.first(1)},
                             {.seq = 1, .tokens = t.first(40)}};
  const auto logits = driver.Step(mixed);
  ASSERT_NE(logits.data, nullptr);
  for (size_t i = 0; i < 20; ++i) expect_row(logits.At(i), 11 + i, "extend in a mixed step");
  expect_row(logits.At(20), 30, "decode in a mixed step");
  expect_row(logits.At(21), 0, "one-token prompt in a mixed step");
  for (size_t i = 0; i < 40; ++i) expect_row(logits.At(22 + i), i, "prefill in a mixed step");
  // Only the wanted rows are written, in their order.
  const auto last = driver.Step(1, t.subspan(40, 10), /*last_row_only=*/true);
  ASSERT_EQ(last.shape[0], 1);
  expect_row(last.At(0), 49, "last row only");
}

TEST_P(TinyModel, AsGgufItGivesTheSameLogits) {
  const TempFolder temp;
  const CheckpointCopy copy = CheckpointCopy::Read(folder_);
  if (copy.config.contains("sliding_window"))
    GTEST_SKIP() << "GGUF files of this architecture have no window";
  copy.ToGguf().Write(temp.path() / "tiny.gguf");
  const auto model = Load(temp.path() / "tiny.gguf", ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->config().tied_head, copy.config.at("tie_word_embeddings").get<bool>());
  ModelDriver driver(*model, team_, 1, 128);
  const auto logits = driver.Step(0, tokens());
  ASSERT_NE(logits.data, nullptr);
  EXPECT_LE(LargestLogitDifference(logits, "full_logits"), kTinyTolerance);
}

TEST_P(TinyModel, TheOldConfigSpellingGivesTheSameLogits) {
  const TempFolder temp;
  CheckpointCopy copy = CheckpointCopy::Read(folder_);
  auto rope = copy.config.at("rope_parameters");
  copy.config["rope_theta"] = rope.at("rope_theta");
  copy.config["torch_dtype"] = copy.config.at("dtype");
  rope["type"] = rope.at("rope_type");
  for (const char* key : {"rope_theta", "rope_type"}) rope.erase(key);
  for (const char* key : {"rope_parameters", "dtype"}) copy.config.erase(key);
  copy.config["rope_scaling"] = rope;
  copy.WriteFolder(temp.path());
  const auto model = Load(temp.path(), ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  ModelDriver driver(*model, team_, 1, 128);
  const auto logits = driver.Step(0, tokens());
  ASSERT_NE(logits.data, nullptr);
  EXPECT_LE(LargestLogitDifference(logits, "full_logits"), kTinyTolerance);
}

TEST_P(TinyModel, StageTimesAddUp) {
  const auto model = Load(folder_, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  ModelDriver driver(*model, team_, 1, 128);
  StageTimes times;
  model->set_stage_times(&times);
  driver.Step(0, tokens().first(40));
  model->set_stage_times(nullptr);
  driver.Step(0, tokens().subspan(40, 1));
  EXPECT_EQ(times.steps, 1);
  for (size_t i = 0; i < times.ns.size(); ++i) {
    EXPECT_GT(times.ns[i], 0) << ForwardStageName(static_cast<ForwardStage>(i));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel,
                         ::testing::Values("tiny_tied_yarn", "tiny_untied_llama3", "tiny_mistral_window",
                                           "tiny_ministral_hybrid"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace attest
