// Tokenizers of real GGUF files. Each test skips where its file is absent ($ATTEST_MODELS, or the default
// cache).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "io/gguf.h"
#include "io/mapped_file.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

std::filesystem::path ModelPath(const std::string& name) {
  if (const char* folder = std::getenv("ATTEST_MODELS")) return std::filesystem::path(folder) / name;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "" : home) / ".cache" / "attest-models" / name;
}

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

constexpr const char* kText = "The capital of France is Paris. 12345 naïve café 你好 🙂\n\n  def f(x):";

TEST(GgufTokenizer, GivesTheKnownIdsOfSmolLM2) {
  const auto path = ModelPath("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const auto tokenizer = LoadTokenizer(path);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const std::vector<int32_t> wanted = {504, 3575,  282,  4649,  314,   7042,  30,  216,   33,  34,
                                       35,  36,    37,   15486, 46494, 37366, 216, 18645, 250, 48392,
                                       138, 47526, 8866, 753,   275,   24,    104, 727};
  EXPECT_EQ((*tokenizer)->Encode(kText), wanted);
  EXPECT_EQ((*tokenizer)->Decode(wanted, false), kText);
}

}  // namespace
}  // namespace attest
