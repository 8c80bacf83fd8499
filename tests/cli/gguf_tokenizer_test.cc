// Tokenizers of real GGUF files. Each test skips where its file is absent ($ATTEST_MODELS, or the default
// cache).
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <memory>
#include <string>

#include "io/gguf.h"
#include "io/mapped_file.h"
#include "tests/support/models.h"
#include "tests/support/tokenizer_corpus.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

std::optional<int32_t> Id(const GgufFile& file, const char* key) {
  const auto value = file.FindInt(key);
  return value.has_value() && value->has_value() ? std::optional(static_cast<int32_t>(**value))
                                                 : std::nullopt;
}

std::optional<bool> Flag(const GgufFile& file, const char* key) {
  const auto value = file.FindBool(key);
  return value.has_value() ? *value : std::nullopt;
}

Expected<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& path) {
  ATTEST_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  ATTEST_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(mapped.bytes(), path.string()));
  GgufVocabulary vocabulary;
  ATTEST_ASSIGN_OR_RETURN(const std::string_view model, file.String("tokenizer.ggml.model"));
  vocabulary.model = model;
  ATTEST_ASSIGN_OR_RETURN(const auto pre, file.FindString("tokenizer.ggml.pre"));
  vocabulary.pre = pre.value_or("");
  ATTEST_ASSIGN_OR_RETURN(vocabulary.tokens, file.Strings("tokenizer.ggml.tokens"));
  ATTEST_ASSIGN_OR_RETURN(const auto scores, file.FindFloats("tokenizer.ggml.scores"));
  vocabulary.scores = scores.value_or(std::vector<float>());
  ATTEST_ASSIGN_OR_RETURN(const auto types, file.FindInts("tokenizer.ggml.token_type"));
  vocabulary.token_types = types.value_or(std::vector<int32_t>());
  ATTEST_ASSIGN_OR_RETURN(const auto merges, file.FindStrings("tokenizer.ggml.merges"));
  vocabulary.merges = merges.value_or(std::vector<std::string_view>());
  vocabulary.bos_id = Id(file, "tokenizer.ggml.bos_token_id");
  vocabulary.eos_id = Id(file, "tokenizer.ggml.eos_token_id");
  vocabulary.unk_id = Id(file, "tokenizer.ggml.unknown_token_id");
  vocabulary.add_bos = Flag(file, "tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = Flag(file, "tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = Flag(file, "tokenizer.ggml.add_space_prefix");
  return Tokenizer::FromGguf(vocabulary);
}

struct RealModel {
  const char* name;  // of the recorded answers, tests/data/text/NAME.ids
  const char* file;
};

// The recorded answers are those of the tokenizer that transformers makes of the same file; for SmolLM2 with
// single digits put before it, as the file's pre-tokenizer `smollm` and llama.cpp have it.
class RealTokenizer : public ::testing::TestWithParam<RealModel> {
 protected:
  void SetUp() override {
    const auto path = FindModel(GetParam().file);
    if (!path.has_value()) GTEST_SKIP() << ModelMissing(GetParam().file);
    auto loaded = LoadTokenizer(*path);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    tokenizer_ = *std::move(loaded);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(RealTokenizer, GivesTheRecordedIdsAndTexts) {
  const std::string data = std::string(ATTEST_SOURCE_DIR) + "/tests/data/text";
  EXPECT_EQ(CompareWithRecorded(*tokenizer_, TokenizerCorpus(data),
                                ReadIdHashes(data + "/" + GetParam().name + ".ids")),
            "");
}

INSTANTIATE_TEST_SUITE_P(Models, RealTokenizer,
                         ::testing::Values(RealModel{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                                           RealModel{"qwen2.5-coder",
                                                     "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
                                           RealModel{"gemma3", "gemma-3-270m-q4_k_m.gguf"}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase_if(
                               name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

constexpr const char* kText = "The capital of France is Paris. 12345 naïve café 你好 🙂\n\n  def f(x):";

TEST(GgufTokenizer, GivesTheKnownIdsOfSmolLM2) {
  const auto path = FindModel(kSmolLm2File);
  if (!path.has_value()) GTEST_SKIP() << ModelMissing(kSmolLm2File);
  const auto tokenizer = LoadTokenizer(*path);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const std::vector<int32_t> wanted = {504, 3575,  282,  4649,  314,   7042,  30,  216,   33,  34,
                                       35,  36,    37,   15486, 46494, 37366, 216, 18645, 250, 48392,
                                       138, 47526, 8866, 753,   275,   24,    104, 727};
  EXPECT_EQ((*tokenizer)->Encode(kText), wanted);
  EXPECT_EQ((*tokenizer)->Decode(wanted, false), kText);
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->end_ids(), (std::vector<int32_t>{0, 2}));  // <|endoftext|> and <|im_end|>
}

}  // namespace
}  // namespace attest
