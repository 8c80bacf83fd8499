// The types of the KV cache: what they cost in memory, and what they cost in accuracy on a real model,
// measured as the distance of log-probabilities from the same model with its keys and values in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "cache/kv_sizing.h"
#include "device/cpu.h"
#include "engine/kv_calibration.h"
#include "engine/runner.h"
#include "io/checkpoint.h"
#include "tests/model/reference.h"
#include "tests/support/models.h"
#include "tests/support/sanitizers.h"

namespace attest::testing {
namespace {

TEST(KvDType, NamesAreThoseOfTheFlagAndOthersAreRefusedWithAllOfThem) {
  EXPECT_EQ(KvDTypeOf("fp8").value(), DType::kF8E4M3);
  EXPECT_EQ(KvDTypeOf("fp8_e4m3").value(), DType::kF8E4M3);
  EXPECT_EQ(KvDTypeOf("fp8_e5m2").value(), DType::kF8E5M2);
  EXPECT_EQ(KvDTypeOf("int8").value(), DType::kI8);
  EXPECT_EQ(KvDTypeOf("bfloat16").value(), DType::kBF16);
  EXPECT_EQ(KvDTypeOf("float16").value(), DType::kF16);
  const auto refused = KvDTypeOf("fp4");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "kv_cache_dtype");
  for (const KvDTypeName& entry : kKvDTypes) {
    EXPECT_NE(refused.error().message.find(entry.name), std::string::npos) << refused.error().message;
  }
}

TEST(KvDType, EightBitCachesHoldTwiceTheTokensOfBf16) {
  KvSizingInput input;
  input.shape = {.num_layers = 4, .kv_heads = 2, .head_dim = 64, .v_head_dim = 64, .block_size = 16};
  input.available_bytes = int64_t{1} << 30;
  input.max_model_len = 1 << 20;
  input.max_num_seqs = 1 << 10;
  input.min_context_tokens = 16;
  std::map<DType, int64_t> blocks;
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    input.shape.dtype = dtype;
    // K and V of 2 heads of 64 in 4 layers: 1024 values a token.
    EXPECT_EQ(KvBytesPerBlock(input.shape), int64_t{16} * 1024 * BlockBytes(dtype)) << DTypeName(dtype);
    const auto sizing = SizeKvCache(input);
    ASSERT_TRUE(sizing) << sizing.error().message;
    blocks[dtype] = sizing->num_blocks;
    const auto storage = KvStorage::Allocate(input.shape, 64);
    ASSERT_TRUE(storage);
    EXPECT_GE(storage->size_bytes(), 64 * KvBytesPerBlock(input.shape));
  }
  EXPECT_EQ(blocks[DType::kF16], blocks[DType::kBF16]);
  EXPECT_EQ(blocks[DType::kBF16], 2 * blocks[DType::kF32]);
  for (const DType small : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    EXPECT_EQ(blocks[small], 2 * blocks[DType::kBF16]) << DTypeName(small);
  }
}

TEST(KvDType, ScalesThatDoNotFitAreRefused) {
  const KvShape shape{.num_layers = 2, .kv_heads = 3, .head_dim = 8, .v_head_dim = 8, .dtype = DType::kI8};
  const auto short_one = KvStorage::Allocate(shape, 4, {.k = std::vector<float>(5, 1.0f), .v = {}});
  ASSERT_FALSE(short_one);
  EXPECT_EQ(short_one.error().field, "k_scales");
  EXPECT_NE(short_one.error().message.find("5"), std::string::npos);
  const auto negative =
      KvStorage::Allocate(shape, 4, {.k = std::vector<float>(6, 1.0f), .v = {1, 1, -2, 1, 1, 1}});
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().field, "v_scales");
  auto scaled = KvStorage::Allocate(shape, 4, {.k = {1, 2, 3, 4, 5, 6}, .v = {6, 5, 4, 3, 2, 1}});
  ASSERT_TRUE(scaled);
  const KvStorage moved = std::move(*scaled);
  EXPECT_EQ(moved.layers()[1].k_scales[2], 6.0f);
  EXPECT_EQ(moved.layers()[0].v_scales[0], 6.0f);
}

struct Runner {
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRunner> runner;
};

constexpr int kBlockSize = 16;
constexpr int64_t kNumBlocks = 64;

Runner Load(const std::filesystem::path& path, DType kv_dtype, ComputeMode compute,
            std::span<const int32_t> calibration) {
  Runner r;
  const auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  ModelOptions options;
  options.cpu = DetectCpu();
  options.compute = compute;
  options.kv_dtype = kv_dtype;
  options.block_size = kBlockSize;
  r.team = std::make_unique<ThreadTeam>(ThreadTeamOptions{.num_threads = 2, .pin = false});
  auto model = Model::Load(**checkpoint, options, *r.team);
  EXPECT_TRUE(model) << model.error().message;
  r.model = std::move(*model);
  KvScales scales;
  if (kv_dtype == DType::kI8) {
    auto found = CalibrateKvScales(*r.model, calibration, *r.team);
    EXPECT_TRUE(found) << found.error().message;
    scales = std::move(*found);
  }
  auto kv = KvStorage::Allocate(ModelRunner::KvShapeOf(*r.model), kNumBlocks, std::move(scales));
  EXPECT_TRUE(kv) << kv.error().message;
  auto runner = ModelRunner::Create(*r.model, std::move(*kv), *r.team);
  EXPECT_TRUE(runner) << runner.error().message;
  r.runner = std::move(*runner);
  return r;
}

// Logits of the rows behind tokens [begin, end), whose context is in the cache already.
std::vector<float> Run(Runner& r, std::span<const int32_t> tokens, int32_t begin, int32_t end) {
  StepBatch batch;
  for (int32_t t = begin; t < end; ++t) {
    batch.tokens.push_back(tokens[static_cast<size_t>(t)]);
    batch.positions.push_back(t);
    batch.groups[0].slots.push_back(kBlockSize + t);
    batch.logit_rows.push_back(t - begin);
  }
  batch.q_begin = CuSeqlens::FromLengths(std::vector<int32_t>{end - begin}).value();
  batch.kv_len = {end};
  batch.block_ids_per_seq = (end + kBlockSize - 1) / kBlockSize;
  batch.groups[0].block_ids.resize(static_cast<size_t>(batch.block_ids_per_seq));
  std::iota(batch.groups[0].block_ids.begin(), batch.groups[0].block_ids.end(), 1);
  const int64_t vocab = r.model->config().vocab_size;
  std::vector<float> logits(static_cast<size_t>((end - begin) * vocab));
  const Status ran = r.runner->Run(batch, View<float, 2>::Dense(logits.data(), {end - begin, vocab}));
  EXPECT_TRUE(ran) << ran.error().message;
  return logits;
}

struct Distance {
  double mean = 0, largest = 0;
};

// Of the log-probability of each text token from the reference's.
Distance DistanceOf(const std::vector<std::vector<double>>& ours,
                    const std::vector<std::vector<double>>& reference) {
  Distance d;
  int64_t count = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    for (size_t t = 0; t < ours[i].size(); ++t, ++count) {
      const double distance = std::abs(ours[i][t] - reference[i][t]);
      d.mean += distance;
      d.largest = std::max(d.largest, distance);
    }
  }
  d.mean /= static_cast<double>(count);
  return d;
}

std::vector<std::vector<double>> Score(const std::filesystem::path& path, DType kv_dtype,
                                       const std::vector<ReferencePrompt>& prompts) {
  // The ranges come from one text, the others are read with them.
  Runner r = Load(path, kv_dtype, ComputeMode::kPrecise, prompts.front().tokens);
  const int64_t vocab = r.model->config().vocab_size;
  std::vector<std::vector<double>> scores;
  for (const ReferencePrompt& prompt : prompts) {
    const auto count = static_cast<int32_t>(std::min<size_t>(prompt.positions(), 128));
    // Most of it as one prompt, the rest in the small steps of extends and decodes.
    const int32_t first = count - 15;
    std::vector<float> logits = Run(r, prompt.tokens, 0, first);
    for (int32_t t = first; t < count;) {
      const int32_t end = std::min(count, t + 1 + t % 9);
      const std::vector<float> more = Run(r, prompt.tokens, t, end);
      logits.insert(logits.end(), more.begin(), more.end());
      t = end;
    }
    scores.emplace_back();
    for (int32_t t = 0; t < count; ++t) {
      const LogProbs row(logits.data() + t * vocab, vocab);
      scores.back().push_back(row.of(prompt.tokens[static_cast<size_t>(t) + 1]));
    }
  }
  return scores;
}

// Mean and largest distance measured over 768 positions of nine texts (the table in docs/scheduling.md),
// times two; half of those positions are read here. They follow the step of each format: 2^-12, 2^-9, 2^-4
// and 2^-3 of a value for f16, bf16, e4m3 and e5m2, and 1/254 of the head's largest for int8.
TEST(KvDType, LogprobsOfTheRealModelStayWithinTheRecordedDistanceOfF32) {
  if (kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  const auto path = FindModel(kSmolLm2File);
  if (!path) GTEST_SKIP() << ModelMissing(kSmolLm2File);
  auto prompts =
      ReadReferencePrompts(std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/model/smollm2_hf.json");
  // Prose (which the ranges of int8 come from), C, chat, numbers and the long one.
  std::erase_if(prompts, [](const ReferencePrompt& prompt) {
    return prompt.name == "python" || prompt.name == "multilingual" || prompt.name == "json" ||
           prompt.name == "question";
  });
  const auto reference = Score(*path, DType::kF32, prompts);
  struct Bound {
    DType dtype;
    double mean, largest;
  };
  std::map<DType, Distance> measured;
  for (const Bound& bound :
       {Bound{DType::kF16, 0.0014, 0.029}, Bound{DType::kBF16, 0.0095, 0.2}, Bound{DType::kI8, 0.12, 1.2},
        Bound{DType::kF8E4M3, 0.16, 2.4}, Bound{DType::kF8E5M2, 0.37, 15.2}}) {
    const Distance d = DistanceOf(Score(*path, bound.dtype, prompts), reference);
    std::printf("  %-9s mean %.5f, largest %.4f\n", std::string(DTypeName(bound.dtype)).c_str(), d.mean,
                d.largest);
    EXPECT_GT(d.mean, 0) << DTypeName(bound.dtype);
    EXPECT_LE(d.mean, bound.mean) << DTypeName(bound.dtype);
    EXPECT_LE(d.largest, bound.largest) << DTypeName(bound.dtype);
    measured[bound.dtype] = d;
  }
  EXPECT_LT(measured[DType::kF16].mean, measured[DType::kBF16].mean);
  EXPECT_LT(measured[DType::kBF16].mean, measured[DType::kF8E4M3].mean);
  EXPECT_LT(measured[DType::kF8E4M3].mean, measured[DType::kF8E5M2].mean);
}

}  // namespace
}  // namespace attest::testing
