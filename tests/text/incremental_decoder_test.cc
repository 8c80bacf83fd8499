// Streams of random ids: the pieces are valid UTF-8 and join to the full decode, wherever the stream stands.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/tokenizer_corpus.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  auto tokenizer = Tokenizer::FromTokenizerJson(ReadWholeFile(kTextData + "/" + name + ".tokenizer.json"));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return tokenizer.has_value() ? *std::move(tokenizer) : nullptr;
}

std::string Stream(const Tokenizer& tokenizer, bool skip, std::span<const int32_t> prompt,
                   std::span<const int32_t> ids) {
  IncrementalDecoder decoder(tokenizer, skip, prompt);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Append(id);
    EXPECT_TRUE(IsValidUtf8(piece));
    joined += piece;
  }
  const std::string rest = decoder.Finish();
  EXPECT_TRUE(IsValidUtf8(rest));
  return joined + rest;
}

// Ids of text cut at random places, whole random ids, and runs of byte tokens.
std::vector<int32_t> RandomIds(const Tokenizer& tokenizer, const TokenizerCorpus& corpus, SplitMix64& rng) {
  std::vector<int32_t> ids;
  const uint64_t parts = 1 + rng.Below(5);
  for (uint64_t part = 0; part < parts; ++part) {
    if (rng.Below(2) == 0) {
      const auto sequence = TokenizerCorpus::Sequence(rng.Below(5000), tokenizer.vocab_size());
      ids.insert(ids.end(), sequence.begin(), sequence.end());
      continue;
    }
    const std::string text = corpus.String(3000 + rng.Below(15000));
    const auto encoded = tokenizer.Encode(text, {.add_special_tokens = rng.Below(2) == 0});
    const size_t begin = rng.Below(encoded.size() + 1);
    ids.insert(ids.end(), encoded.begin() + static_cast<ptrdiff_t>(begin), encoded.end());
  }
  return ids;
}

class Streaming : public testing::TestWithParam<const char*> {};

TEST_P(Streaming, JoinsToTheFullDecode) {
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const TokenizerCorpus corpus(kTextData);
  SplitMix64 rng(11);
  for (int round = 0; round < 1500; ++round) {
    const std::vector<int32_t> ids = RandomIds(*tokenizer, corpus, rng);
    const bool skip = round % 2 == 0;
    ASSERT_EQ(Stream(*tokenizer, skip, {}, ids), tokenizer->Decode(ids, skip)) << "round " << round;
  }
}

TEST_P(Streaming, AfterAPromptContinuesItsDecode) {
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const TokenizerCorpus corpus(kTextData);
  SplitMix64 rng(12);
  for (int round = 0; round < 500; ++round) {
    const bool skip = round % 2 == 0;
    // A prompt of whole text: what the stream emits is exactly what the full decode has beyond the prompt's.
    const std::vector<int32_t> prompt = tokenizer->Encode(corpus.String(4000 + rng.Below(9000)) + "the end");
    const std::vector<int32_t> ids = RandomIds(*tokenizer, corpus, rng);
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), ids.begin(), ids.end());
    const std::string before = tokenizer->Decode(prompt, skip);
    const std::string full = tokenizer->Decode(all, skip);
    ASSERT_TRUE(full.starts_with(before)) << "round " << round;
    ASSERT_EQ(Stream(*tokenizer, skip, prompt, ids), full.substr(before.size())) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Streaming,
                         testing::Values("gemma", "gpt2", "llama", "llama3", "metaspace", "mistral",
                                         "prefix_space", "qwen2", "smollm"),
                         [](const auto& test) { return std::string(test.param); });

TEST(IncrementalDecoder, HoldsACodePointUntilItIsWhole) {
  const auto tokenizer = Load("gpt2");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> ids =
      tokenizer->Encode("\U0001F99A");  // not in the training text: one token per byte or two
  ASSERT_GT(ids.size(), 1u);
  IncrementalDecoder decoder(*tokenizer, true);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(decoder.Append(ids[i]), "");
  EXPECT_EQ(decoder.Append(ids.back()), "\U0001F99A");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(IncrementalDecoder, EndsACutCodePointWithOneReplacement) {
  const auto tokenizer = Load("gpt2");
  ASSERT_NE(tokenizer, nullptr);
  std::vector<int32_t> ids = tokenizer->Encode("a\U0001F99A");
  ids.pop_back();
  EXPECT_EQ(Stream(*tokenizer, true, {}, ids), "a\xEF\xBF\xBD");
}

TEST(IncrementalDecoder, ByteTokensThatMakeNoTextGiveOneReplacementEach) {
  const auto tokenizer = Load("llama");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> ids = {*tokenizer->TokenId("<0xE4>"), *tokenizer->TokenId("<0xBD>"),
                                    *tokenizer->TokenId("<0xFF>"), *tokenizer->TokenId("a")};
  EXPECT_EQ(Stream(*tokenizer, true, {}, ids),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "a");
}

TEST(IncrementalDecoder, KeepsTheSpaceOfTheFirstWordAfterAPrompt) {
  const auto tokenizer = Load("llama");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> word = tokenizer->Encode("the", {.add_special_tokens = false});
  EXPECT_EQ(Stream(*tokenizer, true, {}, word),
            "the");  // the leading mark is dropped at the very start alone
  const std::vector<int32_t> prompt = tokenizer->Encode("at");
  EXPECT_EQ(Stream(*tokenizer, true, prompt, word), " the");
}

TEST(IncrementalDecoder, NeverRepeatsThePromptsLastEmoji) {
  const auto tokenizer = Load("llama");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> prompt = tokenizer->Encode("hi \U0001F99A");  // ends in four byte tokens
  ASSERT_EQ(tokenizer->TokenText(prompt.back()), "<0x9A>");
  const std::vector<int32_t> word = tokenizer->Encode("the", {.add_special_tokens = false});
  EXPECT_EQ(Stream(*tokenizer, true, prompt, word), " the");
}

TEST(IncrementalDecoder, FinishesACodePointThatThePromptBegan) {
  const auto tokenizer = Load("llama");
  ASSERT_NE(tokenizer, nullptr);
  std::vector<int32_t> prompt = tokenizer->Encode("hi \U0001F99A");
  const int32_t last = prompt.back();
  prompt.pop_back();
  EXPECT_EQ(Stream(*tokenizer, true, prompt, std::vector<int32_t>{last}), "\U0001F99A");
}

}  // namespace
}  // namespace attest
