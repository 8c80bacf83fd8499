// What the front end takes from the files of a model folder.
#include "cli/text_assets.h"

#include <gtest/gtest.h>

#include <array>
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
  Expected<TextAssets> Load() {
    ATTEST_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(folder_.path()));
    return LoadTextAssets(*checkpoint, ModelConfig{}, "");
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

TEST_F(TextAssetsOfAFolder, ADefaultOutOfRangeIsNamed) {
  folder_.Write("generation_config.json", R"({"repetition_penalty": "high"})");
  const auto assets = Load();
  ASSERT_FALSE(assets);
  EXPECT_EQ(assets.error().field, "repetition_penalty");
}

TEST_F(TextAssetsOfAFolder, TheTokenizersConfigAndTheTemplateAreKeptForClients) {
  const auto assets = Load();
  ASSERT_TRUE(assets) << assets.error().message;
  EXPECT_EQ(assets->chat_template_text, "hi");
  EXPECT_EQ(nlohmann::json::parse(assets->tokenizer_config_json)["eos_token"]["content"], "<end>");
}

}  // namespace
}  // namespace attest
