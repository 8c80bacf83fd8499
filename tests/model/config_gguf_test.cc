#include "model/config_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "model/rope.h"
#include "tests/support/gguf_writer.h"

namespace attest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The keys of SmolLM2-135M, without those in `left_out`, plus what `add` puts behind them.
Expected<ModelConfig> Read(const std::set<std::string>& left_out = {},
                           const std::function<void(GgufWriter&)>& add = {}, GgufTensorFacts facts = {}) {
  GgufWriter writer;
  writer.String("general.architecture", "llama");
  const auto u32 = [&](const char* key, uint32_t value) {
    if (!left_out.contains(key)) writer.U32(key, value);
  };
  const auto f32 = [&](const char* key, float value) {
    if (!left_out.contains(key)) writer.F32(key, value);
  };
  u32("llama.block_count", 30);
  u32("llama.context_length", 8192);
  u32("llama.embedding_length", 576);
  u32("llama.feed_forward_length", 1536);
  u32("llama.attention.head_count", 9);
  u32("llama.attention.head_count_kv", 3);
  f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  f32("llama.rope.freq_base", 1e5f);
  u32("llama.rope.dimension_count", 64);
  u32("llama.vocab_size", 49152);
  u32("tokenizer.ggml.eos_token_id", 2);
  u32("tokenizer.ggml.bos_token_id", 1);
  if (add) add(writer);
  facts.embedding_rows = 49152;
  const std::string bytes = writer.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "m.gguf");
  EXPECT_TRUE(file.has_value()) << file.error().message;
  return ConfigFromGguf(*file, facts);
}

void ExpectRefused(const Expected<ModelConfig>& config, ErrorCode code,
                   const std::vector<std::string>& words) {
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code, code) << config.error().message;
  for (const auto& word : words) EXPECT_THAT(config.error().message, HasSubstr(word));
}

TEST(ConfigGguf, ReadsAPlainModel) {
  const auto config = Read();
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->q_heads, 9);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->max_positions, 8192);
  EXPECT_FLOAT_EQ(static_cast<float>(config->rms_norm_eps), 1e-5f);
  EXPECT_DOUBLE_EQ(config->rope.theta, 1e5);
  EXPECT_TRUE(config->tied_head);  // no output.weight
  EXPECT_FALSE(Read({}, {}, {.has_output = true, .name = ""})->tied_head);
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
}

TEST(ConfigGguf, B03MissingKeysAreErrorsThatNameThem) {
  for (const char* key :
       {"llama.block_count", "llama.context_length", "llama.embedding_length", "llama.feed_forward_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
    ExpectRefused(Read({key}), ErrorCode::kCorruptFile, {key});
  }
  EXPECT_EQ(Read({"llama.attention.head_count_kv"})->kv_heads, 9);  // by the format's definition
  EXPECT_TRUE(Read({"llama.vocab_size"}).has_value());
}

TEST(ConfigGguf, B04KeysThatNobodyReadAreRefused) {
  ExpectRefused(Read({}, [](GgufWriter& w) { w.F32("llama.final_logit_softcapping", 30.0f); }),
                ErrorCode::kUnsupported, {"llama.final_logit_softcapping"});
  ExpectRefused(Read({}, [](GgufWriter& w) { w.F32("llama.rope.scaling.yarn_log_multiplier", 0.1f); }),
                ErrorCode::kUnsupported, {"llama.rope.scaling.yarn_log_multiplier"});
  ExpectRefused(Read({}, [](GgufWriter& w) { w.F32("llama.logit_scale", 0.5f); }), ErrorCode::kUnsupported,
                {"llama.logit_scale"});
  ExpectRefused(Read({}, [](GgufWriter& w) { w.String("llama.rope.scaling.type", "longrope"); }),
                ErrorCode::kUnsupported, {"llama.rope.scaling.type", "longrope", "yarn"});
  EXPECT_TRUE(Read({}, [](GgufWriter& w) { w.String("general.anything", "x"); }).has_value());
}

TEST(ConfigGguf, A08AWindowIsRefused) {
  ExpectRefused(Read({}, [](GgufWriter& w) { w.U32("llama.attention.sliding_window", 4096); }),
                ErrorCode::kUnsupported, {"llama.attention.sliding_window", "4096"});
}

TEST(ConfigGguf, ReadsLinearAndYarnScaling) {
  const auto linear = Read({}, [](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4.0f);
  });
  ASSERT_TRUE(linear.has_value()) << linear.error().message;
  EXPECT_EQ(linear->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear->rope.factor, 4.0);
  const auto old_linear = Read({}, [](GgufWriter& w) { w.F32("llama.rope.scale_linear", 4.0f); });
  EXPECT_EQ(RopeInverseFrequencies(linear->rope), RopeInverseFrequencies(old_linear->rope));
  ExpectRefused(Read({}, [](GgufWriter& w) { w.String("llama.rope.scaling.type", "linear"); }),
                ErrorCode::kCorruptFile, {"llama.rope.scaling.factor"});

  const auto yarn_keys = [](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 16.0f);
    w.U32("llama.rope.scaling.original_context_length", 4096).Bool("llama.rope.scaling.finetuned", true);
  };
  const auto yarn = Read({}, yarn_keys);
  ASSERT_TRUE(yarn.has_value()) << yarn.error().message;
  EXPECT_EQ(yarn->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn->rope.original_max_positions, 4096);
  EXPECT_NEAR(yarn->rope.attention_factor, 1.2772589, 1e-7);
  const auto scaled = Read({}, [&](GgufWriter& w) {
    yarn_keys(w);
    w.F32("llama.rope.scaling.attn_factor", 0.5f).F32("llama.rope.scaling.yarn_beta_fast", 16.0f);
  });
  EXPECT_NEAR(scaled->rope.attention_factor, 1.2772589 / 2, 1e-7);
  EXPECT_EQ(scaled->rope.beta_fast, 16.0);
}

TEST(ConfigGguf, PerLayerNumbersMustBeEqual) {
  const auto equal = Read({"llama.attention.head_count_kv"}, [](GgufWriter& w) {
    w.I32s("llama.attention.head_count_kv", std::vector<int32_t>(30, 3));
  });
  ASSERT_TRUE(equal.has_value()) << equal.error().message;
  EXPECT_EQ(equal->kv_heads, 3);
  ExpectRefused(Read({"llama.attention.head_count_kv"},
                     [](GgufWriter& w) { w.I32s("llama.attention.head_count_kv", {3, 3, 9}); }),
                ErrorCode::kUnsupported, {"llama.attention.head_count_kv", "3 in layer 0", "9 in layer 2"});
}

TEST(ConfigGguf, EndTokensIncludeTheEndOfATurn) {
  const auto config = Read({}, [](GgufWriter& w) {
    w.U32("tokenizer.ggml.eot_token_id", 7).U32("tokenizer.ggml.eom_token_id", 2);
  });
  EXPECT_THAT(config->eos_ids, ElementsAre(2, 7));
  ExpectRefused(Read({}, [](GgufWriter& w) { w.U32("tokenizer.ggml.eot_token_id", 49152); }),
                ErrorCode::kCorruptFile, {"tokenizer.ggml.eot_token_id", "49152"});
}

TEST(ConfigGguf, ContradictionsAreNamed) {
  ExpectRefused(Read({"llama.vocab_size"}, [](GgufWriter& w) { w.U32("llama.vocab_size", 32000); }),
                ErrorCode::kCorruptFile, {"llama.vocab_size", "32000", "49152"});
  ExpectRefused(
      Read({"llama.rope.dimension_count"}, [](GgufWriter& w) { w.U32("llama.rope.dimension_count", 32); }),
      ErrorCode::kUnsupported, {"llama.rope.dimension_count", "32", "64"});
  ExpectRefused(Read({},
                     [](GgufWriter& w) {
                       w.U32("llama.attention.key_length", 64).U32("llama.attention.value_length", 128);
                     }),
                ErrorCode::kUnsupported, {"llama.attention.value_length", "128"});
  ExpectRefused(
      Read({"llama.attention.head_count"}, [](GgufWriter& w) { w.U32("llama.attention.head_count", 7); }),
      ErrorCode::kCorruptFile, {"llama.embedding_length 576"});
}

}  // namespace
}  // namespace attest
