// What a client can type at a tokenizer's regular expression: the work stays linear in the text for the
// patterns of real tokenizers, and bounded for any pattern of a model's file.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/cpu_time.h"
#include "tests/support/sanitizers.h"
#include "text/split_regex.h"

namespace attest {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string Repeat(std::string_view piece, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

double SecondsToSplit(const SplitRegex& regex, const std::string& text, size_t* covered) {
  *covered = 0;
  return ThreadCpuSeconds(
      [&] { regex.ForEachMatch(text, [&](size_t from, size_t to) { *covered += to - from; }); });
}

TEST(RegexBounds, TextsMadeToBacktrackTakeLinearTime) {
  constexpr size_t kBytes = kSanitized ? 20'000 : 400'000;
  for (const char* pattern : {kGpt2, kLlama3, kQwen2}) {
    auto regex = SplitRegex::Compile(pattern);
    ASSERT_TRUE(regex) << regex.error().message;
    for (const char* piece : {" ", " \t", "a", "1", "'", "'l", "!", " !", "a ", "\n", " \n", "\r\n \r",
                              "\xC3\xA9", "\xE3\x80\x80", "a'", "\xF0\x9F\x99\x82", "a1!\n "}) {
      size_t covered = 0;
      const std::string text = Repeat(piece, kBytes);
      // Of linear work, some 10 ms; of quadratic work, a minute.
      EXPECT_LT(SecondsToSplit(*regex, text, &covered), 5.0) << pattern << " on " << piece;
      EXPECT_EQ(covered, text.size()) << pattern << " on " << piece << ": every byte belongs to a piece";
    }
  }
}

TEST(RegexBounds, PatternsThatExplodeEnd) {
  // Each needs exponential time on its text without a limit.
  for (const auto& [pattern, text] :
       {std::pair(R"((a+)+b)", Repeat("a", 5000)), std::pair(R"((a|aa)+[bc])", Repeat("a", 5000)),
        std::pair(R"((\w*\s*)*!!x)", Repeat("ab ", 5000)),
        std::pair(R"((.*)(.*)(.*)(.*)=x)", Repeat("y", 2000))}) {
    auto regex = SplitRegex::Compile(pattern);
    ASSERT_TRUE(regex) << pattern << ": " << regex.error().message;
    size_t covered = 0;
    EXPECT_LT(SecondsToSplit(*regex, text, &covered), kSanitized ? 60.0 : 10.0) << pattern;
  }
}

}  // namespace
}  // namespace attest
