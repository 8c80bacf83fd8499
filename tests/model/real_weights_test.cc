// SmolLM2-135M-Instruct (Q4_1) against logprobs recorded from transformers in float32 on the same weights,
// and against how far llama.cpp is from them (tools/record_reference.py). Skips where the file is absent.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "device/memory.h"
#include "io/gguf.h"
#include "kernels/dequantize.h"
#include "tests/model/checkpoint_copy.h"
#include "tests/model/reference.h"
#include "tests/support/models.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

// Largest accepted |logprob difference| in float32. Both sides sum in float32 in different orders; 30 layers
// add up to a few 1e-4 on logprobs of unlikely tokens.
constexpr double kPreciseTolerance = 2e-3;
// Two values that are each off by the tolerance can swap only when they were closer than twice that.
constexpr double kNearTie = 2 * kPreciseTolerance;
constexpr size_t kChunk = 256;  // of long prompts, to bound the logits held at once

int NumThreads() { return std::max(1, std::min(DetectCpu().logical_cpus, 8)); }

class RealWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = FindModel(kSmolLm2File);
    if (!path) GTEST_SKIP() << ModelMissing(kSmolLm2File);
    path_ = *path;
    prompts_ = ReadReferencePrompts(ModelDataFolder() / "smollm2_hf.json");
    // Sanitizers make a step ten times slower, so they see two prompts instead of nine.
    if (kSanitized) prompts_.resize(2);
  }

  std::unique_ptr<Model> Load(const std::filesystem::path& path, ComputeMode compute) {
    auto model = LoadModel(path, compute, team_);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    return model ? std::move(*model) : nullptr;
  }

  Comparison CompareAll(Model& model) {
    Comparison comparison;
    for (const auto& prompt : prompts_) {
      ComparePrompt(model, team_, prompt, kChunk, comparison);
    }
    fmt::print(
        "{} positions: mean |difference| {:.3g}, max {:.3g} at {}, greedy differs at {} (gap up to {:.3g})\n",
        comparison.positions, comparison.mean(), comparison.max_difference, comparison.worst,
        comparison.greedy_differs, comparison.largest_gap_where_greedy_differs);
    return comparison;
  }

  static void ExpectPrecise(const Comparison& comparison) {
    EXPECT_GE(comparison.positions, kSanitized ? 2 * 64 : 8 * 64 + 664);
    EXPECT_LE(comparison.max_difference, kPreciseTolerance) << comparison.worst;
    EXPECT_LE(comparison.largest_gap_where_greedy_differs, kNearTie);
    EXPECT_EQ(comparison.outside_top5, 0);
  }

  using Rows = std::vector<std::vector<float>>;

  static double Largest(const float* a, const std::vector<float>& b) {
    double largest = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const double difference = std::abs(a[j] - b[j]);
      if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    }
    return largest;
  }

  // All logits of 40 tokens in one prefill.
  Rows WholePrompt(Model& model) {
    ModelDriver driver(model, team_, 1, 64);
    const auto logits = driver.Step(0, std::span(prompts_[1].tokens).first(40));
    Rows rows;
    for (int64_t i = 0; i < logits.shape[0]; ++i) {
      rows.emplace_back(logits.At(i), logits.At(i) + logits.shape[1]);
    }
    return rows;
  }

  // The largest difference from them when the tokens come in pieces, one by one, or in mixed steps.
  double LargestOverRoutes(Model& model, const Rows& whole) {
    const auto t = std::span<const int32_t>(prompts_[1].tokens).first(40);
    const auto other = std::span<const int32_t>(prompts_[0].tokens).first(20);
    double largest = 0;
    for (const size_t chunk : {1u, 7u, 32u}) {
      ModelDriver driver(model, team_, 1, 64);
      for (size_t begin = 0; begin < t.size(); begin += chunk) {
        const size_t count = std::min<size_t>(chunk, t.size() - begin);
        const auto logits = driver.Step(0, t.subspan(begin, count));
        for (size_t i = 0; i < count; ++i)
          largest = std::max(largest, Largest(logits.At(i), whole[begin + i]));
      }
    }
    ModelDriver driver(model, team_, 3, 64);
    driver.Step(1, t.first(30), true);
    driver.Step(2, other.first(9), true);
    const StepPiece mixed[] = {{.seq = 2, .tokens = other.subspan(9, 1)},
                               {.seq = 0, .tokens = t.first(20)},
                               {.seq = 1, .tokens = t.subspan(30, 10)}};
    const auto logits = driver.Step(mixed);
    for (size_t i = 0; i < 20; ++i) largest = std::max(largest, Largest(logits.At(1 + i), whole[i]));
    for (size_t i = 0; i < 10; ++i) largest = std::max(largest, Largest(logits.At(21 + i), whole[30 + i]));
    return largest;
  }

  std::filesystem::path path_;
  std::vector<ReferencePrompt> prompts_;
  ThreadTeam team_{NumThreads()};
};

TEST_F(RealWeights, PreciseModeMatchesTransformersOnEveryPosition) {
  const auto model = Load(path_, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  ExpectPrecise(CompareAll(*model));
}

TEST_F(RealWeights, DefaultModeIsAtMostHalfAsFarAsLlamaCpp) {
  const auto& prompts = prompts_;
  const auto others = ReadReferencePrompts(ModelDataFolder() / "smollm2_llamacpp.json");
  ASSERT_LE(prompts.size(), others.size());
  double sum = 0;
  double values = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    ASSERT_EQ(prompts[p].positions(), others[p].positions());
    for (size_t t = 0; t < prompts[p].positions(); ++t) {
      sum += std::abs(others[p].next[t] - prompts[p].next[t]);
      for (size_t i = 0; i < prompts[p].top[t].size(); ++i) {
        sum += std::abs(others[p].top[t][i] - prompts[p].top[t][i]);
      }
      values += 1 + static_cast<double>(prompts[p].top[t].size());
    }
  }
  const double llama_mean = sum / values;
  const auto model = Load(path_, ComputeMode::kFast);
  ASSERT_NE(model, nullptr);
  const Comparison comparison = CompareAll(*model);
  fmt::print("llama.cpp's mean |difference| {:.3g}\n", llama_mean);
  EXPECT_LE(comparison.mean(), llama_mean / 2);
  EXPECT_EQ(comparison.outside_top5, 0);
}

TEST_F(RealWeights, PiecesStepsAndCompanionsDoNotChangeTheLogits) {
  Rows exact;
  {
    const auto model = Load(path_, ComputeMode::kPrecise);
    ASSERT_NE(model, nullptr);
    exact = WholePrompt(*model);
    ASSERT_EQ(exact.size(), 40u);
    const double largest = LargestOverRoutes(*model, exact);
    fmt::print("precise: routes differ by up to {:.3g}\n", largest);
    EXPECT_LE(largest, kPreciseTolerance);  // float32 sums in another order, as against transformers
  }
  const auto model = Load(path_, ComputeMode::kFast);
  ASSERT_NE(model, nullptr);
  const Rows whole = WholePrompt(*model);
  ASSERT_EQ(whole.size(), 40u);
  double error = 0;
  for (size_t t = 0; t < whole.size(); ++t) error = std::max(error, Largest(whole[t].data(), exact[t]));
  const double largest = LargestOverRoutes(*model, whole);
  fmt::print("fast: off by up to {:.3g}, routes differ by up to {:.3g}\n", error, largest);
  // Two routes, each at most as far from the exact logits as the one that was measured.
  EXPECT_LE(largest, 2 * error);
  EXPECT_LE(error, 0.5);  // of logits up to 20; bf16 keeps 8 bits of keys and values
}

// The first 2 layers and 4,096 rows of the vocabulary, as GGUF and as the safetensors folder of the same
// values.
TEST_F(RealWeights, TheSameWeightsAsSafetensorsGiveTheSameLogits) {
  const auto gguf = Checkpoint::Open(path_).value();
  constexpr int64_t kVocab = 4096;
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"hidden_act", "silu"},
                                 {"vocab_size", kVocab},
                                 {"hidden_size", 576},
                                 {"intermediate_size", 1536},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 9},
                                 {"num_key_value_heads", 3},
                                 {"max_position_embeddings", 8192},
                                 {"rms_norm_eps", 9.999999747378752e-06},
                                 {"rope_theta", 100000.0},
                                 {"tie_word_embeddings", true},
                                 {"torch_dtype", "float32"}};
  CheckpointCopy folder{.config = config, .tensors = {}};
  GgufWriter part;
  part.String("general.architecture", "llama");
  for (const GgufEntry& entry : gguf->gguf()->metadata()) {
    if (!entry.key.starts_with("llama.") || entry.key == "llama.vocab_size") continue;
    const std::string key(entry.key);
    if (entry.type == GgufType::kF32) {
      part.F32(key, static_cast<float>(gguf->gguf()->Float(key).value()));
    } else {
      const auto value = static_cast<uint32_t>(gguf->gguf()->Int(key).value());
      part.U32(key, key == "llama.block_count" ? 2 : value);
    }
  }
  const std::pair<const char*, const char*> names[] = {
      {"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
      {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"},
      {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  const auto add = [&](const std::string& gguf_name, const std::string& hf_name, int64_t heads) {
    const TensorInfo* tensor = gguf->FindTensor(gguf_name);
    ASSERT_NE(tensor, nullptr) << gguf_name;
    std::vector<int64_t> shape = tensor->shape;
    if (gguf_name == "token_embd.weight") shape[0] = kVocab;
    const int64_t rows = shape.size() == 2 ? shape[0] : 1;
    const int64_t cols = shape.back();
    const int64_t row_bytes = RowBytes(tensor->dtype, cols);
    part.Tensor(
        gguf_name, tensor->dtype, shape,
        std::string(reinterpret_cast<const char*>(tensor->data), static_cast<size_t>(rows * row_bytes)));
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row) {
      // Row r of a head in Hugging Face order is row 2 (r mod d/2) + r div (d/2) of the file.
      int64_t from = row;
      if (heads > 0) {
        const int64_t d = rows / heads;
        from = row / d * d + row % d % (d / 2) * 2 + row % d / (d / 2);
      }
      DequantizeBlocks(tensor->dtype, tensor->data + from * row_bytes, cols, values.data() + row * cols);
    }
    folder.tensors[hf_name] = {DType::kF32, shape,
                               std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
  };
  add("token_embd.weight", "model.embed_tokens.weight", 0);
  add("output_norm.weight", "model.norm.weight", 0);
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [from, to] : names) {
      const std::string_view name = from;
      const int heads = name == "attn_q" ? 9 : name == "attn_k" ? 3 : 0;
      add(fmt::format("blk.{}.{}.weight", layer, from), fmt::format("model.layers.{}.{}.weight", layer, to),
          heads);
    }
  }
  const TempFolder temp;
  part.Write(temp.path() / "part.gguf");
  folder.WriteFolder(temp.path() / "hf");
  const auto a = Load(temp.path() / "part.gguf", ComputeMode::kPrecise);
  const auto b = Load(temp.path() / "hf", ComputeMode::kPrecise);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  const std::vector<int32_t> tokens = {504, 3575, 282, 1649, 314, 42,  30,  216,
                                       33,  34,   35,  36,   37,  246, 494, 366};
  ModelDriver driver_a(*a, team_, 1, 16);
  ModelDriver driver_b(*b, team_, 1, 16);
  const auto logits_a = driver_a.Step(0, tokens);
  const auto logits_b = driver_b.Step(0, tokens);
  double largest = 0;
  double scale = 0;
  for (int64_t i = 0; i < logits_a.size(); ++i) {
    const double difference = std::abs(logits_a.data[i] - logits_b.data[i]);
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    scale = std::max<double>(scale, std::abs(logits_a.data[i]));
  }
  EXPECT_GT(scale, 1.0);
  EXPECT_LE(largest, 1e-5 * scale);  // the same float32 weights; only the kernels' order of summation differs
}

// The whole model as transformers writes it; 538 MB, so only where it was made (tools/record_reference.py).
TEST_F(RealWeights, TheSafetensorsFolderMatchesTransformersOnEveryPosition) {
  if (kSanitized) GTEST_SKIP() << "the GGUF file went through the same code";
  const char* given = std::getenv("ATTEST_HF_SMOLLM2");
  const auto folder =
      given != nullptr ? std::optional<std::filesystem::path>(given) : FindModel("hf-smollm2");
  if (!folder) GTEST_SKIP() << ModelMissing("hf-smollm2") << " and $ATTEST_HF_SMOLLM2";
  const auto model = Load(*folder, ComputeMode::kPrecise);
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->config().tied_head);
  ExpectPrecise(CompareAll(*model));
}

TEST_F(RealWeights, LoadingKeepsLittleMoreThanTheFileResident) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  const auto checkpoint = Checkpoint::Open(path_).value();
  ModelOptions options;
  options.cpu = DetectCpu();
  const int64_t before = ResidentBytes();
  const auto model = Model::Load(*checkpoint, options, team_);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const int64_t resident = ResidentBytes() - before;
  fmt::print("resident after load {:.3f} of the file\n",
             static_cast<double>(resident) / static_cast<double>(checkpoint->file_bytes()));
  EXPECT_LE(resident, checkpoint->file_bytes() * 115 / 100);
  EXPECT_LE((*model)->weight_bytes(), checkpoint->file_bytes() * 105 / 100);
}

}  // namespace
}  // namespace attest
