// GGUF vocabularies as plain data: rules for BOS, EOS and spaces, pre-tokenizers by name, and what is
// refused.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/tokenizer_corpus.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

using Ids = std::vector<int32_t>;

// Owns the texts that a GgufVocabulary points to.
class Vocab {
 public:
  explicit Vocab(std::string model) { gguf.model = std::move(model); }
  int32_t Add(std::string text, int32_t type = 1, float score = 0) {
    texts_.push_back(std::move(text));
    gguf.tokens.push_back(texts_.back());
    gguf.token_types.push_back(type);
    if (gguf.model == "llama") gguf.scores.push_back(score);
    return static_cast<int32_t>(gguf.tokens.size()) - 1;
  }
  void Merge(std::string pair) {
    texts_.push_back(std::move(pair));
    gguf.merges.push_back(texts_.back());
  }
  GgufVocabulary gguf;

 private:
  std::deque<std::string> texts_;
};

// SentencePiece: <unk>, <s>, </s>, all bytes, then some pieces. Scores fall with the id, as in real files.
Vocab Llama() {
  Vocab v("llama");
  v.gguf.unk_id = v.Add("<unk>", 2);
  v.gguf.bos_id = v.Add("<s>", 3);
  v.gguf.eos_id = v.Add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    v.Add(text, 6);
  }
  float score = 0;
  for (const char* piece :
       {"▁T", "hi", "is", "▁Thi", "▁This", "▁is", "Th", "This", "us", "er", "▁user", "user", "▁us",
        "▁",  "T",  "h",  "i",    "s",     "u",   "e",  "r",    "(",  ")",  "x",     "▁x"}) {
    v.Add(piece, 1, score -= 1);
  }
  return v;
}

// Byte-level: the 256 bytes by their value, then control tokens.
Vocab Gpt2(std::string pre) {
  Vocab v("gpt2");
  v.gguf.pre = std::move(pre);
  for (const char32_t c : ByteLevelAlphabet()) {
    std::string text;
    AppendUtf8(c, text);
    v.Add(text);
  }
  v.gguf.eos_id = v.gguf.bos_id = v.Add("<|endoftext|>", 3);
  v.Add("<|im_end|>", 3);
  v.Add("<tool>", 4);
  return v;
}

std::unique_ptr<Tokenizer> Make(const GgufVocabulary& gguf) {
  auto tokenizer = Tokenizer::FromGguf(gguf);
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

Ids Find(const Tokenizer& tokenizer, std::initializer_list<const char*> texts) {
  Ids ids;
  for (const char* text : texts) ids.push_back(tokenizer.TokenId(text).value());
  return ids;
}

// llama.cpp#167: without the leading space the first word is another token.
TEST(GgufTokenizer, PutsASpaceBeforeTheFirstWord) {
  const auto tokenizer = Make(Llama().gguf);
  EXPECT_EQ(tokenizer->Encode("This is"), Find(*tokenizer, {"<s>", "▁This", "▁is"}));
  EXPECT_EQ(tokenizer->Encode("This", {.add_special_tokens = false}), Find(*tokenizer, {"▁This"}));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("This is"), true), "This is");
}

TEST(GgufTokenizer, WritesTheLlamaEmojiAsItsFourBytes) {
  const auto tokenizer = Make(Llama().gguf);
  EXPECT_EQ(tokenizer->Encode("This is (🦙)"),
            Find(*tokenizer, {"<s>", "▁This", "▁is", "▁", "(", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>", ")"}));
}

// llama.cpp#7049: the word after an added token is a first word again.
TEST(GgufTokenizer, PutsASpaceAfterAnAddedToken) {
  Vocab v = Llama();
  v.Add("<|im_start|>", 4);
  const auto tokenizer = Make(v.gguf);
  EXPECT_EQ(tokenizer->Encode("<|im_start|>user"), Find(*tokenizer, {"<s>", "<|im_start|>", "▁user"}));
}

TEST(GgufTokenizer, LeavesTheSpaceAwayWhereTheFileSaysSo) {
  Vocab v = Llama();
  v.gguf.add_space_prefix = false;
  const auto tokenizer = Make(v.gguf);
  EXPECT_EQ(tokenizer->Encode("user x"), Find(*tokenizer, {"<s>", "user", "▁x"}));
  EXPECT_EQ(tokenizer->Decode(Find(*tokenizer, {"▁x"}), true), " x");
}

TEST(GgufTokenizer, AddsBosAndEosByTheModelsRule) {
  Vocab llama = Llama();
  EXPECT_EQ(Make(llama.gguf)->Encode("x").front(), *llama.gguf.bos_id);  // by default
  llama.gguf.add_bos = false;
  llama.gguf.add_eos = true;
  const auto tokenizer = Make(llama.gguf);
  EXPECT_EQ(tokenizer->Encode("x"), Find(*tokenizer, {"▁x", "</s>"}));

  Vocab gpt2 = Gpt2("gpt-2");
  EXPECT_EQ(Make(gpt2.gguf)->Encode("x"), Ids{'x'});  // by default
  gpt2.gguf.add_bos = true;
  EXPECT_EQ(Make(gpt2.gguf)->Encode("x"), (Ids{*gpt2.gguf.bos_id, 'x'}));
  gpt2.gguf.add_bos.reset();
  gpt2.gguf.pre = "llama-bpe";  // says so by its name
  EXPECT_EQ(Make(gpt2.gguf)->Encode("x"), (Ids{*gpt2.gguf.bos_id, 'x'}));
}

// The pieces a pre-tokenizer makes, read off merges that join any two neighbours within a piece.
TEST(GgufTokenizer, CutsDigitsAsItsPreTokenizerSays) {
  const auto ids_of = [](const char* pre, std::string_view text) {
    Vocab v = Gpt2(pre);
    for (const char* pair : {"1 2", "3 4", "12 34", "12 3"}) {
      std::string joined = pair;
      std::erase(joined, ' ');
      v.Add(joined);
      v.Merge(pair);
    }
    const auto tokenizer = Make(v.gguf);
    std::vector<std::string> pieces;
    for (const int32_t id : tokenizer->Encode(text, {.add_special_tokens = false})) {
      pieces.emplace_back(tokenizer->TokenText(id));
    }
    return pieces;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(ids_of("gpt-2", "1234"), (Pieces{"1234"}));
  EXPECT_EQ(ids_of("smollm", "1234"), (Pieces{"1", "2", "3", "4"}));
  EXPECT_EQ(ids_of("qwen2", "1234"), (Pieces{"1", "2", "3", "4"}));
  EXPECT_EQ(ids_of("llama-bpe", "1234"), (Pieces{"123", "4"}));
  EXPECT_EQ(ids_of("default", "1234"), (Pieces{"123", "4"}));
  EXPECT_EQ(ids_of("", "1234"), (Pieces{"123", "4"}));
}

TEST(GgufTokenizer, TellsSpecialFromUserDefinedTokens) {
  const auto tokenizer = Make(Gpt2("smollm").gguf);
  const Ids ids = tokenizer->Encode("<tool>a<|im_end|>");
  EXPECT_EQ(ids, (Ids{258, 'a', 257}));
  EXPECT_EQ(tokenizer->Decode(ids, true), "<tool>a");
  EXPECT_EQ(tokenizer->Decode(ids, false), "<tool>a<|im_end|>");
  EXPECT_EQ(tokenizer->end_ids(), (Ids{256, 257}));  // the file's eos, and the marker of a turn's end
  const Ids plain = tokenizer->Encode("<tool><|im_end|>", {.parse_special_tokens = false});
  EXPECT_EQ(plain.front(), 258);
  EXPECT_EQ(plain.size(), 1 + std::string_view("<|im_end|>").size());
}

void ExpectError(const GgufVocabulary& gguf, ErrorCode code, const std::string& part) {
  const auto tokenizer = Tokenizer::FromGguf(gguf);
  ASSERT_FALSE(tokenizer.has_value()) << part;
  EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
  EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
}

TEST(GgufTokenizer, RefusesWhatItDoesNotKnowByName) {
  ExpectError(Gpt2("tekken").gguf, ErrorCode::kUnsupported, "pre-tokenizer 'tekken'");
  ExpectError(Vocab("rwkv").gguf, ErrorCode::kUnsupported, "model 'rwkv'");
}

TEST(GgufTokenizer, NamesEachContradiction) {
  const auto corrupt = [](const std::function<void(Vocab&)>& change, const std::string& part) {
    Vocab v = Gpt2("gpt-2");
    change(v);
    ExpectError(v.gguf, ErrorCode::kCorruptFile, part);
  };
  corrupt([](Vocab& v) { v.gguf.token_types.pop_back(); }, "token_type has 258 entries for 259 tokens");
  corrupt([](Vocab& v) { v.gguf.bos_id = 259; }, "bos_token_id is 259, the vocabulary has 259 tokens");
  corrupt([](Vocab& v) { v.gguf.pad_id = -1; }, "padding_token_id is -1");
  corrupt([](Vocab& v) { v.Add("\xFF"); }, "tokens[259] is not valid UTF-8");
  corrupt([](Vocab& v) { v.Merge("ab"); }, "merges[0] 'ab' is not a pair");
  corrupt([](Vocab& v) { v.Merge("a b"); }, "merges[0] 'a b' names a token outside the vocabulary");
  ExpectError(Vocab("gpt2").gguf, ErrorCode::kCorruptFile, "vocabulary of 0 tokens");
  Vocab llama = Llama();
  llama.gguf.scores.pop_back();
  ExpectError(llama.gguf, ErrorCode::kCorruptFile, "scores has");
}

}  // namespace
}  // namespace attest
