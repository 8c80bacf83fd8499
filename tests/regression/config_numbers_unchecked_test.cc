// Numbers of a model's description that made a wrong model instead of an error: a negative count of KV heads
// became whatever its lower 32 bits say, and YaRN's rotations of 0 made angles that are no numbers. A context
// longer than attention can compute was refused only when a request grew that long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "model/config_gguf.h"
#include "model/config_json.h"
#include "tests/support/gguf_writer.h"

namespace attest {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Expected<ModelConfig> OfJson(const std::function<void(Json&)>& change) {
  Json json = Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192, "model_type": "llama",
    "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 1e-05,
    "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152})");
  change(json);
  const std::string text = json.dump();
  return ConfigFromJson({.config = text, .generation_config = "", .has_lm_head = true, .name = "model"});
}

Expected<ModelConfig> OfGguf(int64_t kv_heads) {
  GgufWriter writer;
  writer.String("general.architecture", "llama");
  writer.U32("llama.block_count", 30).U32("llama.context_length", 8192).U32("llama.embedding_length", 576);
  writer.U32("llama.feed_forward_length", 1536).U32("llama.attention.head_count", 9);
  writer.I64("llama.attention.head_count_kv", kv_heads);
  writer.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f).F32("llama.rope.freq_base", 1e5f);
  writer.U32("llama.rope.dimension_count", 64).U32("llama.vocab_size", 49152);
  writer.U32("tokenizer.ggml.eos_token_id", 2);
  const std::string bytes = writer.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "model.gguf");
  if (!file) return std::unexpected(file.error());
  GgufTensorFacts facts;
  facts.embedding_rows = 49152;
  return ConfigFromGguf(*file, facts);
}

void ExpectRefused(const Expected<ModelConfig>& config, const std::vector<std::string>& words) {
  ASSERT_FALSE(config.has_value()) << config->kv_heads << " KV heads";
  EXPECT_EQ(config.error().code, ErrorCode::kCorruptFile) << config.error().message;
  for (const auto& word : words) EXPECT_THAT(config.error().message, HasSubstr(word));
}

TEST(ConfigNumbers, OfNegativeCountsAreRefusedNotWrapped) {
  constexpr int64_t kWrapsTo3 = -(int64_t{1} << 32) + 3;
  ASSERT_TRUE(OfJson([](Json&) {}).has_value());
  ExpectRefused(OfJson([&](Json& json) { json["num_key_value_heads"] = kWrapsTo3; }),
                {"num_key_value_heads -4294967293"});
  ExpectRefused(OfJson([&](Json& json) { json["head_dim"] = kWrapsTo3 + 61; }), {"head_dim -4294967232"});
  ASSERT_TRUE(OfGguf(3).has_value());
  ExpectRefused(OfGguf(kWrapsTo3), {"head_count_kv -4294967293"});
}

TEST(ConfigNumbers, OfTheContextAreThoseThatAttentionTakes) {
  const auto with_positions = [](int64_t positions) {
    return OfJson([&](Json& json) { json["max_position_embeddings"] = positions; });
  };
  ASSERT_TRUE(with_positions(int64_t{1} << 30).has_value());
  ExpectRefused(with_positions((int64_t{1} << 30) + 1),
                {"max_position_embeddings is 1073741825, expected 1 to 1073741824"});
}

TEST(ConfigNumbers, OfYarnMustGiveFiniteAngles) {
  const auto with_betas = [](double fast, double slow) {
    return OfJson([&](Json& json) {
      json["rope_scaling"] = {{"rope_type", "yarn"},
                              {"factor", 4.0},
                              {"original_max_position_embeddings", 2048},
                              {"beta_fast", fast},
                              {"beta_slow", slow}};
    });
  };
  ASSERT_TRUE(with_betas(32, 1).has_value()) << with_betas(32, 1).error().message;
  ExpectRefused(with_betas(0, 0), {"beta_fast is 0", "beta_slow 0"});
  ExpectRefused(with_betas(32, 0), {"beta_fast is 32", "beta_slow 0"});
  ExpectRefused(with_betas(32, -1), {"beta_slow -1"});
  ExpectRefused(with_betas(1, 32), {"beta_fast is 1", "beta_slow 32"});
}

}  // namespace
}  // namespace attest
