// The hand-written scanners against the regular expressions they stand for, run by PCRE2.
#include "text/scanner.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/tokenizer_corpus.h"
#include "text/split_regex.h"

namespace attest {
namespace {

std::vector<std::string> ScannerPieces(ScanKind kind, std::string_view text) {
  const Scanner scanner(kind);
  std::vector<std::string> pieces;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* next = scanner.Next(p, end);
    pieces.emplace_back(p, next);
    p = next;
  }
  return pieces;
}

std::vector<std::string> RegexPieces(const SplitRegex& regex, std::string_view text) {
  std::vector<std::string> pieces;
  size_t covered = 0;
  regex.ForEachMatch(text, [&](size_t begin, size_t end) {
    if (covered < begin) pieces.emplace_back(text.substr(covered, begin - covered));
    pieces.emplace_back(text.substr(begin, end - begin));
    covered = end;
  });
  if (covered < text.size()) pieces.emplace_back(text.substr(covered));
  return pieces;
}

struct Case {
  ScanKind kind;
  std::string_view pattern;
};
constexpr Case kCases[] = {
    {ScanKind::kGpt2, kGpt2Pattern}, {ScanKind::kLlama3, kLlama3Pattern}, {ScanKind::kQwen2, kQwen2Pattern}};

TEST(Scanner, CutsLikeItsPatternOnEveryCorpusString) {
  const TokenizerCorpus corpus(std::string(ATTEST_SOURCE_DIR) + "/tests/data/text");
  for (const Case& c : kCases) {
    const auto regex = SplitRegex::Compile(c.pattern);
    ASSERT_TRUE(regex.has_value()) << regex.error().message;
    for (size_t i = 0; i < TokenizerCorpus::kNumStrings; i += 3) {
      if (i > 0 && i <= TokenizerCorpus::kNumLong) continue;
      const std::string text = corpus.String(i);
      ASSERT_EQ(ScannerPieces(c.kind, text), RegexPieces(*regex, text)) << c.pattern << "\nstring " << i;
    }
  }
}

TEST(Scanner, CutsLikeItsPatternAroundEveryCodePoint) {
  for (const Case& c : kCases) {
    const auto regex = SplitRegex::Compile(c.pattern);
    ASSERT_TRUE(regex.has_value());
    const Scanner scanner(c.kind);
    for (char32_t first = 0; first < 0x110000; first += 64) {
      if (first >= 0xD800 && first < 0xE000) continue;
      if (first >= 0x32000 && first < 0xE0000 && first % 0x1000 != 0) continue;  // unassigned
      std::string text;
      for (char32_t i = first; i < first + 64; ++i) {
        for (const char* frame : {"'", " ", "a", "1", "  ", "\n", "-"}) {
          text += frame;
          AppendUtf8(i, text);
        }
      }
      ASSERT_EQ(ScannerPieces(c.kind, text), RegexPieces(*regex, text))
          << c.pattern << "\nat " << static_cast<uint32_t>(first);
    }
  }
}

TEST(Scanner, IsChosenForItsPatternAlone) {
  EXPECT_EQ(ScannerFor(kLlama3Pattern), ScanKind::kLlama3);
  EXPECT_EQ(ScannerFor(std::string(kLlama3Pattern) + "|x"), std::nullopt);
}

TEST(SplitRegex, MatchesWhiteSpaceAsTheLibraryDoes) {
  const auto blanks = SplitRegex::Compile(R"(\s+)");
  ASSERT_TRUE(blanks.has_value());
  EXPECT_EQ(RegexPieces(*blanks, "a\xC2\x85z"), (std::vector<std::string>{"a", "\xC2\x85", "z"}));  // U+0085
  EXPECT_EQ(RegexPieces(*blanks, "a\xE1\xA0\x8Ez"), (std::vector<std::string>{"a\xE1\xA0\x8Ez"}));  // U+180E
  const auto others = SplitRegex::Compile(R"([\Sx]+)");
  ASSERT_TRUE(others.has_value());
  EXPECT_EQ(RegexPieces(*others, "a\xE1\xA0\x8E \xC2\x85"),
            (std::vector<std::string>{"a\xE1\xA0\x8E", " \xC2\x85"}));
}

TEST(SplitRegex, KnowsLettersThatThisPcre2DoesNot) {
  std::string todhri;  // U+105D2, a letter since Unicode 16
  AppendUtf8(0x105D2, todhri);
  const auto letters = SplitRegex::Compile(R"(\p{L}+)");
  ASSERT_TRUE(letters.has_value());
  EXPECT_EQ(RegexPieces(*letters, "-a" + todhri + "-"), (std::vector<std::string>{"-", "a" + todhri, "-"}));
}

TEST(SplitRegex, ReadsRubysRepeatedCounts) {
  // {1,2}+ repeats in Ruby's syntax; in PCRE2 it would be possessive and "aaa" could not match aa|aab.
  EXPECT_EQ(*TranslateOniguruma("xa{1,2}+b"), "x(?:a{1,2})+b");
  EXPECT_EQ(*TranslateOniguruma("(?:ab){,3}"), "(?:ab){0,3}");
  EXPECT_EQ(*TranslateOniguruma("a++b*?"), "a++b*?");
}

TEST(SplitRegex, NamesWhatItDoesNotSupport) {
  for (const char* pattern :
       {"^a", "a$", R"(\bword)", R"((a)\1)", "(?<name>a)", "(?m:a)", "[a&&b]", "[[:alpha:]]", R"(\p{Greek})",
        R"([\P{L}])", "a**", R"((?i:\p{L}))", R"(\xff)", "a{2}?"}) {
    const auto regex = SplitRegex::Compile(pattern);
    ASSERT_FALSE(regex.has_value()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::kUnsupported) << pattern << ": " << regex.error().message;
    EXPECT_EQ(regex.error().message.find('\n'), std::string::npos);
  }
  for (const char* pattern : {"(a", "a)", "[a", "*", "\\", "a{1", R"(\p{L)", R"(\u12)", "[z-a]"}) {
    const auto regex = SplitRegex::Compile(pattern);
    ASSERT_FALSE(regex.has_value()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::kInvalidArgument) << pattern << ": " << regex.error().message;
  }
  EXPECT_EQ(SplitRegex::Compile("a*").error().code, ErrorCode::kUnsupported);  // can match nothing at all
}

}  // namespace
}  // namespace attest
