// What the front end takes from the files of a model folder.
#include "cli/text_assets.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

class TextAssetsOfAFolder : public ::testing::Test {
 protected:
  TextAssetsOfAFolder() {
    folder_.Write("config.json", R"({"model_type":"llama"})");
    folder_.Write("tokenizer.json", R"({
      "version": "1.0", "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
      "trim_offsets": true, "use_regex": true}, "post_processor": null, "decoder": {"type": "ByteLevel"},
      "added_tokens": [{"id": 2, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
      "normalized": false, "special": true}],
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<end>": 2}, "merges": []}})");
    folder_.Write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}, "chat_template": "hi"})");
    SafetensorsWriter writer;
    writer.TensorF32("x", {1}, std::array{1.0f});
    writer.Write(folder_.path() / "model.safetensors");
  }
  Expected<TextAssets> Load(const TextSources& sources = {}, int64_t vocab_size = 3) {
    ATTEST_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(folder_.path()));
    ModelConfig config;
    config.vocab_size = vocab_size;
    return LoadTextAssets(*checkpoint, config, sources);
  }
  TempFolder folder_;
};

TEST_F(TextAssetsOfAFolder, SamplingDefaultsAreThoseOfTheGenerationConfig) {
  folder_.Write("generation_config.json",
                R"({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "typical_p": 0.9,
                    "repetition_penalty": 1.05, "do_sample": true})");
  const auto assets = Load();
  ASSERT_TRUE(assets) << assets.error().message;
  const SamplingParams& sampling = assets->default_sampling;
  EXPECT_EQ(sampling.temperature, 0.6f);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.top_p, 0.95f);
  EXPECT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.typical_p, 0.9f);
  EXPECT_EQ(sampling.repetition_penalty, 1.05f);
}

TEST_F(TextAssetsOfAFolder, WithoutAGenerationConfigNothingIsFiltered) {
  const auto assets = Load();
  ASSERT_TRUE(assets) << assets.error().message;
  const SamplingParams& sampling = assets->default_sampling;
  EXPECT_EQ(sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(sampling.typical_p, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
}

// Too small for a float they became 0, which no request may ask for: every one was refused. And 0 itself
// meant everything where it means the best token alone.
TEST_F(TextAssetsOfAFolder, TinyDefaultsKeepTheBestTokenAndAMinusOneIsOff) {
  for (const char* const tiny : {"1e-60", "0"}) {
    folder_.Write("generation_config.json",
                  std::string(R"({"top_k": -1, "top_p": )") + tiny + R"(, "typical_p": )" + tiny + "}");
    const auto assets = Load();
    ASSERT_TRUE(assets) << assets.error().message;
    const SamplingParams& sampling = assets->default_sampling;
    EXPECT_EQ(sampling.top_k, 0);
    EXPECT_EQ(sampling.top_p, std::numeric_limits<float>::min());
    EXPECT_EQ(sampling.typical_p, std::numeric_limits<float>::min());
  }
}

// An end token beyond the model's vocabulary had every request refused.
TEST_F(TextAssetsOfAFolder, EndTokensThatTheModelCannotSayEndNothing) {
  EXPECT_EQ(Load()->eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(Load({}, 2)->eos_ids, std::vector<int32_t>{});
}

TEST_F(TextAssetsOfAFolder, ADefaultOutOfRangeIsNamed) {
  for (const char* const value : {"\"high\"", "0", "1e-60", "101"}) {
    folder_.Write("generation_config.json", std::string(R"({"repetition_penalty": )") + value + "}");
    const auto assets = Load();
    ASSERT_FALSE(assets) << value;
    EXPECT_EQ(assets.error().field, "repetition_penalty");
  }
}

TEST_F(TextAssetsOfAFolder, TheTokenizersConfigAndTheTemplateAreKeptForClients) {
  const auto assets = Load();
  ASSERT_TRUE(assets) << assets.error().message;
  EXPECT_EQ(assets->chat_template_text, "hi");
  EXPECT_EQ(nlohmann::json::parse(assets->tokenizer_config_json)["eos_token"]["content"], "<end>");
}

TEST_F(TextAssetsOfAFolder, GenerationConfigVllmTakesNoDefaultsFromTheModel) {
  folder_.Write("generation_config.json", R"({"temperature": 0.6})");
  const auto assets = Load({.generation_config = "vllm"});
  ASSERT_TRUE(assets) << assets.error().message;
  EXPECT_EQ(assets->default_sampling.temperature, 1.0f);
}

TEST_F(TextAssetsOfAFolder, GenerationConfigOfAnotherFolderReplacesTheModels) {
  folder_.Write("generation_config.json", R"({"temperature": 0.6})");
  TempFolder other;
  const std::string path = other.path().string();
  const auto missing = Load({.generation_config = path});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find(path), std::string::npos) << missing.error().message;
  other.Write("generation_config.json", "[]");
  EXPECT_FALSE(Load({.generation_config = path}));
  other.Write("generation_config.json", R"({"temperature": 0.25})");
  for (const std::string& source : {path, path + "/generation_config.json"}) {
    const auto assets = Load({.generation_config = source});
    ASSERT_TRUE(assets) << assets.error().message;
    EXPECT_EQ(assets->default_sampling.temperature, 0.25f);
  }
}

TEST_F(TextAssetsOfAFolder, AnotherTokenizerComesWithItsTemplateAndFitsTheModel) {
  TempFolder other;
  const auto missing = Load({.tokenizer = other.path()});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("tokenizer.json"), std::string::npos) << missing.error().message;
  const auto write = [&](const std::string& vocab) {
    other.Write("tokenizer.json",
                R"({"version": "1.0", "normalizer": null, "pre_tokenizer": {"type": "ByteLevel",
      "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "post_processor": null,
      "decoder": {"type": "ByteLevel"}, "added_tokens": [], "model": {"type": "BPE", "vocab": )" +
                    vocab + R"(, "merges": []}})");
  };
  write(R"({"b": 0, "a": 1})");
  other.Write("tokenizer_config.json", R"({"chat_template": "other"})");
  const auto assets = Load({.tokenizer = other.path()});
  ASSERT_TRUE(assets) << assets.error().message;
  EXPECT_EQ(assets->tokenizer->Encode("ab", {}), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(assets->chat_template_text, "other");
  write(R"({"b": 0, "a": 1, "c": 2, "d": 3})");
  const auto larger = Load({.tokenizer = other.path()});
  ASSERT_FALSE(larger);
  EXPECT_NE(larger.error().message.find("4 tokens"), std::string::npos) << larger.error().message;
}

}  // namespace
}  // namespace attest
