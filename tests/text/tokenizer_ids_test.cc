// Every tokenizer of tests/data/text against the recorded answers of the PyPI library `tokenizers`.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/tokenizer_corpus.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

const TokenizerCorpus& Corpus() {
  static const TokenizerCorpus kCorpus(kTextData);
  return kCorpus;
}

class RecordedIds : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = kTextData + "/" + GetParam() + ".tokenizer.json";
    auto loaded = Tokenizer::FromTokenizerJson(ReadWholeFile(path));
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    tokenizer_ = *std::move(loaded);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(RecordedIds, AreOurIdsAndOurTexts) {
  const IdHashes recorded = ReadIdHashes(kTextData + "/" + GetParam() + ".ids");
  EXPECT_EQ(CompareWithRecorded(*tokenizer_, Corpus(), recorded), "");
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, RecordedIds,
                         testing::Values("gemma", "gpt2", "llama", "llama3", "metaspace", "mistral",
                                         "prefix_space", "qwen2", "smollm", "splits", "tekken"),
                         [](const auto& test) { return std::string(test.param); });

TEST(TokenizerCorpus, IsTheOneThatWasRecorded) {
  uint32_t hash = 0;
  for (size_t i = 0; i < TokenizerCorpus::kNumStrings; ++i) {
    const std::string text = Corpus().String(i);
    const auto size = static_cast<int32_t>(text.size());
    hash = Crc32(text, Crc32OfIds({&size, 1}, hash));
  }
  EXPECT_EQ(hash, ReadIdHashes(kTextData + "/gpt2.ids").corpus);
}

}  // namespace
}  // namespace attest
