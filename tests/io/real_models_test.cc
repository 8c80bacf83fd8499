// Real GGUF files, where this machine has them: in the folder $ATTEST_MODELS, else ~/.cache/attest-models.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/inspect.h"

namespace attest {
namespace {

struct RealModel {
  const char* file;
  int64_t file_bytes;
  const char* architecture;
  int64_t layers;
  size_t vocab_size;
  std::map<DType, int64_t> tensors;
};

std::filesystem::path ModelFolder() {
  if (const char* folder = std::getenv("ATTEST_MODELS")) return folder;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "" : home) / ".cache" / "attest-models";
}

class RealModels : public testing::TestWithParam<RealModel> {};

TEST_P(RealModels, HaveTheTensorsTheyAreKnownToHave) {
  const RealModel& model = GetParam();
  const auto path = ModelFolder() / model.file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; set ATTEST_MODELS";
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->file_bytes(), model.file_bytes);
  const CheckpointSummary summary = Summarize(**checkpoint);
  std::map<DType, int64_t> counts;
  for (const DTypeSummary& entry : summary.dtypes) counts[entry.dtype] = entry.tensors;
  EXPECT_EQ(counts, model.tensors);
  EXPECT_LT(summary.tensor_bytes, summary.file_bytes);

  const GgufFile& gguf = *(*checkpoint)->gguf();
  EXPECT_EQ(gguf.version(), 3u);
  EXPECT_EQ(gguf.String("general.architecture"), model.architecture);
  EXPECT_EQ(gguf.Int(std::string(model.architecture) + ".block_count"), model.layers);
  EXPECT_EQ(gguf.Strings("tokenizer.ggml.tokens")->size(), model.vocab_size);
  EXPECT_EQ((*gguf.FindInts("tokenizer.ggml.token_type"))->size(), model.vocab_size);
  const TensorInfo* embedding = (*checkpoint)->FindTensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape[0], static_cast<int64_t>(model.vocab_size));
}

INSTANTIATE_TEST_SUITE_P(
    Gguf, RealModels,
    testing::Values(RealModel{"SmolLM2-135M-Instruct.Q4_1.gguf",
                              98362432,
                              "llama",
                              30,
                              49152,
                              {{DType::kQ4_1, 210}, {DType::kQ8_0, 1}, {DType::kF32, 61}}},
                    RealModel{"gemma-3-270m-q4_k_m.gguf",
                              253113024,
                              "gemma3",
                              18,
                              262144,
                              {{DType::kQ5_0, 81},
                               {DType::kQ4_K, 27},
                               {DType::kQ8_0, 10},
                               {DType::kQ6_K, 9},
                               {DType::kF32, 109}}},
                    RealModel{"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                              491400064,
                              "qwen2",
                              24,
                              151936,
                              {{DType::kQ5_0, 133},
                               {DType::kQ8_0, 13},
                               {DType::kQ6_K, 12},
                               {DType::kQ4_K, 12},
                               {DType::kF32, 121}}}),
    [](const auto& param_info) { return std::string(param_info.param.architecture); });

}  // namespace
}  // namespace attest
