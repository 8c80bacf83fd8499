#include "model/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/rope.h"

namespace attest {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As transformers 4 wrote SmolLM2-135M.
Json SmolLm2() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": true,
    "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 49152})");
}

Json Llama3Rope() {
  return Json::parse(R"({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"})");
}

Expected<ModelConfig> Read(const Json& json, std::string_view generation = "", bool has_head = true) {
  const std::string text = json.dump();
  return ConfigFromJson(
      {.config = text, .generation_config = generation, .has_lm_head = has_head, .name = "folder"});
}

void ExpectRefused(const Json& json, ErrorCode code, const std::vector<std::string>& words,
                   bool has_head = true) {
  const auto config = Read(json, "", has_head);
  ASSERT_FALSE(config.has_value()) << json.dump();
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
  for (const auto& word : words) EXPECT_THAT(config.error().message, HasSubstr(word));
}

TEST(ConfigJson, ReadsTheOldSpelling) {
  const auto config = Read(SmolLm2());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->name, "folder");
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->q_heads, 9);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);  // hidden / heads
  EXPECT_EQ(config->max_positions, 8192);
  EXPECT_DOUBLE_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_TRUE(config->tied_head);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_DOUBLE_EQ(config->rope.theta, 1e5);
  EXPECT_EQ(config->rope.rotary_dim, 64);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
}

TEST(ConfigJson, ReadsTheNewSpellingToTheSameConfig) {
  Json old_spelling = SmolLm2();
  old_spelling["rope_scaling"] = Llama3Rope();
  Json new_spelling = SmolLm2();
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) new_spelling.erase(key);
  new_spelling["dtype"] = "bfloat16";
  new_spelling["head_dim"] = 64;
  new_spelling["rope_parameters"] = Llama3Rope();
  new_spelling["rope_parameters"]["rope_theta"] = 100000.0;
  const auto a = Read(old_spelling);
  const auto b = Read(new_spelling);
  ASSERT_TRUE(a.has_value()) << a.error().message;
  ASSERT_TRUE(b.has_value()) << b.error().message;
  EXPECT_EQ(a->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(RopeInverseFrequencies(a->rope), RopeInverseFrequencies(b->rope));
  EXPECT_EQ(a->head_dim, b->head_dim);
}

TEST(ConfigJson, TakesAnExplicitHeadDim) {
  Json json = SmolLm2();
  json["head_dim"] = 128;
  EXPECT_EQ(Read(json)->head_dim, 128);
  json["hidden_size"] = 577;
  EXPECT_TRUE(Read(json).has_value());
  json.erase("head_dim");
  ExpectRefused(json, ErrorCode::kCorruptFile, {"hidden_size 577", "num_attention_heads 9"});
}

TEST(ConfigJson, GenerationConfigNamesMoreEndTokens) {
  Json json = SmolLm2();
  const auto config = Read(json, R"({"eos_token_id": [7, 2, 9], "bos_token_id": 5})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_THAT(config->eos_ids, ElementsAre(7, 2, 9));
  EXPECT_EQ(config->bos_id, 5);
  json["eos_token_id"] = 49152;
  ExpectRefused(json, ErrorCode::kCorruptFile, {"eos_token_id", "49152", "49151"});
}

TEST(ConfigJson, A08SlidingWindowIsRefusedUnlessNull) {
  Json json = SmolLm2();
  json["sliding_window"] = nullptr;
  EXPECT_TRUE(Read(json).has_value());
  json["sliding_window"] = 64;
  ExpectRefused(json, ErrorCode::kUnsupported, {"sliding_window", "64"});
}

TEST(ConfigJson, MistralMustSayWhetherItHasAWindow) {
  Json json = SmolLm2();
  json["model_type"] = "mistral";
  json["architectures"] = {"MistralForCausalLM"};
  // transformers reads the missing key as 4096.
  ExpectRefused(json, ErrorCode::kCorruptFile, {"sliding_window"});
  json["sliding_window"] = nullptr;
  EXPECT_TRUE(Read(json).has_value());
  EXPECT_TRUE(Read(json)->layer_windows.empty());
  json["sliding_window"] = 4096;
  const auto config = Read(json);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->layer_windows,
            std::vector<std::optional<int32_t>>(static_cast<size_t>(config->num_layers), 4096));
  json["sliding_window"] = 0;
  ExpectRefused(json, ErrorCode::kCorruptFile, {"sliding_window", "0"});
}

TEST(ConfigJson, MinistralSaysWhichLayersHaveTheWindow) {
  Json json = SmolLm2();
  json["model_type"] = "ministral";
  json["architectures"] = {"MinistralForCausalLM"};
  json["sliding_window"] = 32;
  Json types = Json::array();
  const int layers = json["num_hidden_layers"].get<int>();
  for (int layer = 0; layer < layers; ++layer)
    types.push_back(layer % 3 == 0 ? "full_attention" : "sliding_attention");
  json["layer_types"] = types;
  const auto config = Read(json);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  ASSERT_EQ(std::ssize(config->layer_windows), layers);
  for (int layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(config->layer_windows[static_cast<size_t>(layer)],
              layer % 3 == 0 ? std::nullopt : std::optional<int32_t>(32));
  }
  json["layer_types"].push_back("full_attention");
  ExpectRefused(json, ErrorCode::kCorruptFile, {"layer_types", std::to_string(layers + 1)});
  json["layer_types"] = types;
  json["sliding_window"] = nullptr;
  ExpectRefused(json, ErrorCode::kUnsupported, {"layer_types", "sliding_window"});
  json["sliding_window"] = 32;
  json["layer_types"][1] = "chunked_attention";
  ExpectRefused(json, ErrorCode::kUnsupported, {"layer_types", "chunked_attention"});
}

TEST(ConfigJson, B03MissingKeysAreErrorsThatNameThem) {
  for (const char* key :
       {"rope_theta", "rms_norm_eps", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "vocab_size", "max_position_embeddings", "hidden_act", "model_type"}) {
    Json json = SmolLm2();
    json.erase(key);
    ExpectRefused(json, ErrorCode::kCorruptFile, {key});
    json[key] = nullptr;
    ExpectRefused(json, ErrorCode::kCorruptFile, {key});
  }
  Json json = SmolLm2();
  json.erase("tie_word_embeddings");
  ExpectRefused(json, ErrorCode::kCorruptFile, {"tie_word_embeddings"}, /*has_head=*/false);
  EXPECT_FALSE(Read(json, "", /*has_head=*/true)->tied_head);
}

TEST(ConfigJson, RopeDictionariesMissNothing) {
  const Json linear = Json::parse(R"({"type": "linear", "factor": 2.0})");
  for (const auto& [whole, keys] : std::vector<std::pair<Json, std::vector<std::string>>>{
           {Llama3Rope(),
            {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
             "rope_type"}},
           {linear, {"factor", "type"}}}) {
    for (const std::string& key : keys) {
      Json json = SmolLm2();
      json["rope_scaling"] = whole;
      ASSERT_TRUE(Read(json).has_value());
      json["rope_scaling"].erase(key);
      ExpectRefused(json, ErrorCode::kCorruptFile, {"rope_scaling." + (key == "type" ? "rope_type" : key)});
    }
  }
  Json json = SmolLm2();
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["rope_parameters"] = Json::parse(R"({"rope_type": "default"})");
  ExpectRefused(json, ErrorCode::kCorruptFile, {"rope_parameters.rope_theta"});
}

TEST(ConfigJson, B02YarnFactorsReachTheConfig) {
  Json json = SmolLm2();
  json["rope_scaling"] = Json::parse(R"({"rope_type": "yarn", "factor": 16, "mscale": 1, "mscale_all_dim": 1,
                                         "original_max_position_embeddings": 4096})");
  EXPECT_DOUBLE_EQ(Read(json)->rope.attention_factor, 1.0);
  json["rope_scaling"].erase("mscale");
  json["rope_scaling"].erase("mscale_all_dim");
  EXPECT_NEAR(Read(json)->rope.attention_factor, 1.2772589, 1e-7);
  json["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_DOUBLE_EQ(Read(json)->rope.attention_factor, 1.5);
  json["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(Read(json)->rope.original_max_positions, 8192);  // max_position_embeddings
  // The query scaling nested in newer files of this kind (Ministral) is not implemented.
  json["rope_scaling"]["llama_4_scaling_beta"] = 0.1;
  ExpectRefused(json, ErrorCode::kUnsupported, {"rope_scaling.llama_4_scaling_beta", "0.1"});
}

TEST(ConfigJson, B04UnknownRopeTypesAreRefusedByName) {
  for (const char* type : {"foo", "dynamic", "longrope", "su", ""}) {
    Json json = SmolLm2();
    json["rope_scaling"] = {{"rope_type", type}, {"factor", 2.0}};
    ExpectRefused(json, ErrorCode::kUnsupported,
                  {std::string("\"") + type + "\"", "rope_scaling.rope_type", "llama3"});
  }
}

TEST(ConfigJson, B04KeysThatNobodyReadAreRefused) {
  const std::vector<std::pair<const char*, Json>> keys = {
      {"rope_local_base_freq", 10000.0}, {"attention_window_size", 128}, {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0}, {"qk_layernorm", true},         {"rotary_pct", 0.25},
      {"sliding_window_pattern", 6},     {"query_norm_type", "rms"}};
  for (const auto& [key, value] : keys) {
    Json json = SmolLm2();
    json[key] = value;
    ExpectRefused(json, ErrorCode::kUnsupported, {key, value.dump()});
    json[key] = nullptr;  // not set
    EXPECT_TRUE(Read(json).has_value()) << key;
  }
  Json json = SmolLm2();
  json["rope_scaling"] = Llama3Rope();
  json["rope_scaling"]["extra"] = 1;
  ExpectRefused(json, ErrorCode::kUnsupported, {"rope_scaling.extra"});
  json = SmolLm2();
  json["some_training_detail"] = 3;  // says nothing about what the layers compute
  EXPECT_TRUE(Read(json).has_value());
}

TEST(ConfigJson, SwitchesOfOtherModelsMustBeOff) {
  for (const char* key : {"use_sliding_window", "rope_interleaved", "use_qk_norm"}) {
    Json json = SmolLm2();
    json[key] = false;
    EXPECT_TRUE(Read(json).has_value()) << key;
    json[key] = true;
    ExpectRefused(json, ErrorCode::kUnsupported, {key, "true"});
  }
  Json json = SmolLm2();
  json["layer_types"] = {"full_attention", "sliding_attention"};
  ExpectRefused(json, ErrorCode::kUnsupported, {"layer_types", "sliding_attention"});
  json = SmolLm2();
  json["partial_rotary_factor"] = 0.5;
  ExpectRefused(json, ErrorCode::kUnsupported, {"partial_rotary_factor", "0.5"});
  json = SmolLm2();
  json["quantization_config"] = {{"quant_method", "awq"}};
  ExpectRefused(json, ErrorCode::kUnsupported, {"quantization_config", "awq"});
  json = SmolLm2();
  json["hidden_act"] = "gelu";
  ExpectRefused(json, ErrorCode::kUnsupported, {"hidden_act", "gelu"});
}

TEST(ConfigJson, B05BothSpellingsOfTheTypeGiveTheSameTable) {
  std::vector<std::vector<float>> tables;
  for (const char* key : {"type", "rope_type"}) {
    Json json = SmolLm2();
    json["rope_scaling"] = {
        {key, "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}, {"finetuned", true}};
    const auto config = Read(json);
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->rope.scaling, RopeScaling::kYarn);
    tables.push_back(RopeInverseFrequencies(config->rope));
  }
  EXPECT_EQ(tables[0], tables[1]);
  Json json = SmolLm2();
  json["rope_scaling"] = {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 4.0}};
  ExpectRefused(json, ErrorCode::kCorruptFile, {"linear", "yarn"});
  json["rope_scaling"] = {{"kind", "linear"}, {"factor", 4.0}};
  ExpectRefused(json, ErrorCode::kCorruptFile, {"rope_scaling.rope_type"});
}

TEST(ConfigJson, OtherArchitecturesAreNamedWithTheSupportedOnes) {
  Json json = SmolLm2();
  json["model_type"] = "gemma3_text";
  ExpectRefused(json, ErrorCode::kUnsupported, {"model_type", "gemma3_text", "LlamaForCausalLM"});
  json = SmolLm2();
  json["architectures"] = {"LlamaForSequenceClassification"};
  ExpectRefused(json, ErrorCode::kUnsupported, {"architectures", "LlamaForSequenceClassification"});
}

TEST(ConfigJson, NonsenseIsAnErrorNotACrash) {
  for (const char* text : {"", "[]", "{", "null", "3", "\"x\"", "{\"model_type\": 3}"}) {
    EXPECT_FALSE(ConfigFromJson({.config = text, .generation_config = "", .has_lm_head = true, .name = ""})
                     .has_value())
        << text;
  }
  const std::vector<Json> values = {
      -1, 0, 1.5, "text", true, Json::array(), Json::object(), 1e30, 18446744073709551615u};
  const Json whole = SmolLm2();
  for (const auto& [key, ignored] : whole.items()) {
    for (const Json& value : values) {
      Json json = SmolLm2();
      json[key] = value;
      const auto config = Read(json);  // any answer, but an answer
      if (!config) {
        EXPECT_FALSE(config.error().message.empty());
      }
    }
  }
  Json json = SmolLm2();
  json["num_key_value_heads"] = 4;
  ExpectRefused(json, ErrorCode::kCorruptFile, {"num_key_value_heads is 4", "9"});
  json = SmolLm2();
  json["rms_norm_eps"] = 0;
  ExpectRefused(json, ErrorCode::kCorruptFile, {"rms_norm_eps"});
  json = SmolLm2();
  json["head_dim"] = 63;
  ExpectRefused(json, ErrorCode::kCorruptFile, {"head_dim is 63"});
  EXPECT_FALSE(Read(SmolLm2(), "[1]").has_value());
}

}  // namespace
}  // namespace attest
