// What tokenizer.json may say, what it may not, and how that is told.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cpu_time.h"
#include "tests/support/tokenizer_corpus.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

using nlohmann::json;

json Minimal() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]]}})");
}

Expected<std::unique_ptr<Tokenizer>> Load(const json& document) {
  return Tokenizer::FromTokenizerJson(document.dump());
}

void ExpectError(const json& document, ErrorCode code, const std::string& part) {
  const auto tokenizer = Load(document);
  ASSERT_FALSE(tokenizer.has_value()) << part;
  EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
  EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
  EXPECT_EQ(tokenizer.error().message.find('\n'), std::string::npos) << tokenizer.error().message;
}

TEST(TokenizerJson, ReadsMergesInBothForms) {
  json document = Minimal();
  const std::vector<int32_t> wanted = {2, 3};
  EXPECT_EQ((*Load(document))->Encode("abc"), wanted);
  document["model"]["merges"] = json::array({"#version: 0.2", "a b"});
  EXPECT_EQ((*Load(document))->Encode("abc"), wanted);
}

TEST(TokenizerJson, NamesEachContradiction) {
  const auto corrupt = [](const std::function<void(json&)>& change, const std::string& part) {
    json document = Minimal();
    change(document);
    ExpectError(document, ErrorCode::kCorruptFile, part);
  };
  corrupt([](json& d) { d["model"]["merges"] = json::array({json::array({"a"})}); },
          "model.merges[0] is not a pair");
  corrupt([](json& d) { d["model"]["merges"] = json::array({json::array({"a", "b", "c"})}); },
          "model.merges[0]");
  corrupt([](json& d) { d["model"]["merges"] = json::array({"ab"}); }, "model.merges[0] is not a pair");
  corrupt([](json& d) { d["model"]["merges"] = json::array({"a b", "a b c"}); },
          "model.merges[1] is not a pair");
  corrupt([](json& d) { d["model"]["merges"] = json::array({7}); }, "model.merges[0] is not a pair");
  corrupt([](json& d) { d["model"]["merges"] = json::array({"a c"}); },
          "'ac', which is not in the vocabulary");
  corrupt([](json& d) { d["model"]["merges"] = json::array({"z b"}); }, "model.merges[0] needs 'z'");
  corrupt([](json& d) { d["model"].erase("merges"); }, "model.merges is absent");
  corrupt([](json& d) { d["model"].erase("vocab"); }, "model.vocab is absent");
  corrupt([](json& d) { d["model"]["vocab"]["d"] = 9; }, "gives 'd' the id 9, 5 tokens want the ids 0 to 4");
  corrupt([](json& d) { d["model"]["vocab"]["d"] = 3; }, "the same id 3");
  corrupt([](json& d) { d["model"]["vocab"]["d"] = -1; }, "model.vocab['d'] is not a token id");
  corrupt([](json& d) { d["model"]["vocab"]["d\n"] = "x"; }, "model.vocab['d?'] is not a token id");
  corrupt([](json& d) { d["model"]["unk_token"] = "<unk>"; }, "model.unk_token is \"<unk>\"");
  corrupt([](json& d) { d["model"]["byte_fallback"] = 1; }, "model.byte_fallback is 1, wanted true or false");
  corrupt([](json& d) { d["model"] = 3; }, "model is 3, wanted an object");
  corrupt([](json& d) { d["added_tokens"] = {{{"id", 9}, {"content", "<s>"}}}; },
          "added_tokens[0].id is 9, wanted 4");
  corrupt([](json& d) { d["added_tokens"] = {{{"id", 1}, {"content", "a"}}}; },
          "added_tokens[0].id is 1, wanted 0");
  corrupt([](json& d) { d["added_tokens"] = {{{"id", 0}, {"content", "a"}}, {{"id", 0}, {"content", "a"}}}; },
          "added_tokens[1].content");
  corrupt([](json& d) { d["added_tokens"] = {{{"id", -4}, {"content", "a"}}}; }, "added_tokens[0].id is -4");
  corrupt([](json& d) { d["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}}; },
          "pre_tokenizer.pattern: ");
  corrupt(
      [](json& d) {
        d["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Odd"}};
      },
      "pre_tokenizer.behavior is \"Odd\"");
  corrupt(
      [](json& d) {
        d["post_processor"] = json::parse(R"({"type": "TemplateProcessing", "single":
      [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [77], "tokens": ["<s>"]}}})");
      },
      "token id 77, the vocabulary has ids 0 to 3");
}

TEST(TokenizerJson, RefusesWhatItCannotDoByName) {
  const auto unsupported = [](const std::function<void(json&)>& change, const std::string& part) {
    json document = Minimal();
    change(document);
    ExpectError(document, ErrorCode::kUnsupported, part);
  };
  unsupported([](json& d) { d["model"]["type"] = "Unigram"; }, "model.type \"Unigram\"");
  unsupported([](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; },
              "model.end_of_word_suffix \"</w>\"");
  unsupported([](json& d) { d["model"]["dropout"] = 0.1; }, "model.dropout 0.1");
  unsupported([](json& d) { d["version"] = "2.0"; }, "version \"2.0\"");
  unsupported([](json& d) { d["normalizer"] = {{"type", "Precompiled"}}; },
              "normalizer.type \"Precompiled\"");
  unsupported(
      [](json& d) { d["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}; },
      "normalizer.normalizers[0].type \"Lowercase\"");
  unsupported([](json& d) { d["pre_tokenizer"] = {{"type", "BertPreTokenizer"}}; }, "\"BertPreTokenizer\"");
  unsupported(
      [](json& d) {
        d["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", R"(\p{Greek}+)"}}}, {"behavior", "Isolated"}};
      },
      R"(\p{Greek})");
  unsupported(
      [](json& d) {
        d["pre_tokenizer"] = {
            {"type", "Sequence"},
            {"pretokenizers", {{{"type", "ByteLevel"}, {"add_prefix_space", false}}, {{"type", "Digits"}}}}};
      },
      "'Digits' after ByteLevel");
  unsupported([](json& d) { d["decoder"] = {{"type", "WordPiece"}}; }, "decoder.type \"WordPiece\"");
  unsupported(
      [](json& d) {
        d["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}};
      },
      "a decoder other than Strip after one that fuses");
  unsupported([](json& d) { d["post_processor"] = {{"type", "RobertaProcessing"}}; },
              "\"RobertaProcessing\"");
}

TEST(TokenizerJson, RefusesTextThatIsNoDocument) {
  for (const char* text :
       {"", "[]", "7", "{", "{\"model\": }", "\xFF", "{\"model\": {\"vocab\": {\"a\": 0}, \"vocab\": {}}}"}) {
    const auto tokenizer = Tokenizer::FromTokenizerJson(text);
    ASSERT_FALSE(tokenizer.has_value()) << text;
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kCorruptFile) << tokenizer.error().message;
  }
  const std::string deep(100000, '[');
  EXPECT_EQ(Tokenizer::FromTokenizerJson(deep).error().code, ErrorCode::kCorruptFile);
}

TEST(TokenizerJson, SurvivesEveryInputThatOnceHurt) {
  for (const auto& entry : std::filesystem::directory_iterator(kTextData + "/crashes")) {
    const std::string text = ReadWholeFile(entry.path());
    const auto tokenizer = Tokenizer::FromTokenizerJson(text);
    if (!tokenizer.has_value()) continue;
    const std::vector<int32_t> ids = (*tokenizer)->Encode("a  b\n\xE4\xBD\xA0 <s> 12 'll");
    EXPECT_TRUE(IsValidUtf8((*tokenizer)->Decode(ids, false))) << entry.path();
  }
}

TEST(TokenizerJson, TakesBosAndEosFromTheConfig) {
  const json document = Minimal();
  const auto tokenizer =
      Tokenizer::FromTokenizerJson(document.dump(), R"({"bos_token": {"content": "a"}, "eos_token": "c"})");
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->bos_id(), 0);
  EXPECT_EQ((*tokenizer)->eos_id(), 3);
  EXPECT_EQ((*tokenizer)->end_ids(), std::vector<int32_t>{3});
  const auto missing = Tokenizer::FromTokenizerJson(document.dump(), R"({"eos_token": "</s>"})");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().field, "eos_token");
}

std::unique_ptr<Tokenizer> Fixture(const std::string& name) {
  auto tokenizer = Tokenizer::FromTokenizerJson(ReadWholeFile(kTextData + "/" + name + ".tokenizer.json"));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

TEST(Tokenizer, KeepsOneBosWhenThePromptWritesItToo) {
  const auto tokenizer = Fixture("llama3");
  const int32_t bos = *tokenizer->TokenId("<|begin_of_text|>");
  EXPECT_EQ(tokenizer->bos_id(), bos);
  const std::string text = "<|begin_of_text|>hello";
  const std::vector<int32_t> twice = tokenizer->Encode(text);
  EXPECT_EQ(twice[0], bos);
  EXPECT_EQ(twice[1], bos);  // as the reference library does
  const std::vector<int32_t> once = tokenizer->Encode(text, {.single_bos = true});
  EXPECT_EQ(once, tokenizer->Encode("hello"));
  EXPECT_EQ(tokenizer->Encode(text, {.add_special_tokens = false, .single_bos = true}), once);
}

TEST(Tokenizer, NeverMakesAControlTokenOfTextThatMustNotSteer) {
  for (const char* name : {"llama3", "qwen2", "smollm", "gpt2", "llama", "gemma", "mistral"}) {
    const auto tokenizer = Fixture(name);
    std::string text;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->is_special(id)) text += std::string(tokenizer->TokenText(id)) + " x";
    }
    for (const int32_t id :
         tokenizer->Encode(text, {.add_special_tokens = false, .parse_special_tokens = false})) {
      // <unk> is what an unknown character is, and no instruction.
      EXPECT_TRUE(!tokenizer->is_special(id) || tokenizer->TokenText(id) == "<unk>") << name << " " << id;
    }
  }
}

TEST(Tokenizer, RoundTripsEveryByteLevelText) {
  const TokenizerCorpus corpus(kTextData);
  for (const char* name : {"gpt2", "llama3", "smollm", "tekken"}) {
    const auto tokenizer = Fixture(name);
    for (size_t i = TokenizerCorpus::kNumLong + 1; i < TokenizerCorpus::kNumStrings; i += 17) {
      const std::string text = corpus.String(i);
      if (std::string_view(name) == "gpt2" &&
          (text.find("<l") != std::string::npos || text.find("<r") != std::string::npos)) {
        continue;  // these swallow blanks
      }
      const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
      ASSERT_EQ(tokenizer->Decode(ids, false), text) << name << " string " << i;
    }
  }
}

TEST(Tokenizer, EncodesInvalidUtf8AsItsRepair) {
  const auto tokenizer = Fixture("gpt2");
  EXPECT_EQ(tokenizer->Encode("a\xE4\xBD z\xFF"), tokenizer->Encode("a\xEF\xBF\xBD z\xEF\xBF\xBD"));
}

TEST(Tokenizer, TokenBytesJoinToTheText) {
  const auto gpt2 = Fixture("gpt2");
  const auto gemma = Fixture("gemma");
  for (const Tokenizer* tokenizer : {gpt2.get(), gemma.get()}) {
    const std::string text = "naïve 你好 🙂\n the end";
    std::string joined;
    for (const int32_t id : tokenizer->Encode(text, {.add_special_tokens = false}))
      joined += tokenizer->TokenBytes(id);
    EXPECT_EQ(joined, text);
  }
}

TEST(Tokenizer, GivesTheSameIdsFromManyThreads) {
  const auto tokenizer = Fixture("llama3");
  const TokenizerCorpus corpus(kTextData);
  const auto encode_all = [&] {
    std::vector<std::vector<int32_t>> all;
    for (size_t i = 5000; i < 5400; ++i) all.push_back(tokenizer->Encode(corpus.String(i)));
    return all;
  };
  const auto wanted = encode_all();
  std::vector<std::vector<std::vector<int32_t>>> got(4);
  std::vector<std::thread> threads;
  for (auto& result : got) threads.emplace_back([&] { result = encode_all(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : got) EXPECT_EQ(result, wanted);
}

// A quadratic step on one megabyte takes minutes; the bound leaves room for a slow, shared machine.
TEST(Tokenizer, EncodesAMegabyteWithoutSpacesInSeconds) {
  const TokenizerCorpus corpus(kTextData);
  for (const char* name : {"gpt2", "llama3", "tekken", "llama", "gemma"}) {
    const auto tokenizer = Fixture(name);
    for (size_t i = 1; i <= TokenizerCorpus::kNumLong; ++i) {
      const std::string text = corpus.String(i);
      EXPECT_LT(ThreadCpuSeconds([&] { EXPECT_FALSE(tokenizer->Encode(text).empty()); }), 10.0)
          << name << " string " << i;
    }
  }
}

}  // namespace
}  // namespace attest
