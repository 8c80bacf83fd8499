#include "server/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace attest {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::string> match;
};

Outcome Feed(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    auto step = matcher.Append(piece);
    outcome.text += step.text;
    if (step.match) {
      outcome.match = step.match;
      return outcome;
    }
  }
  outcome.text += matcher.Finish();
  return outcome;
}

TEST(StopMatcher, CutsBeforeAStopStringThatSpansPieces) {
  const auto outcome = Feed(StopMatcher({"DEFGHIJ"}, false), {"ABC", "DEF", "G", "HI", "J", "K"});
  EXPECT_EQ(outcome.text, "ABC");
  EXPECT_EQ(outcome.match, "DEFGHIJ");
}

TEST(StopMatcher, FindsAStopStringInsideOnePiece) {
  EXPECT_EQ(Feed(StopMatcher({"own fox"}, false), {"The quick br", "own fox jumps"}).text, "The quick br");
}

TEST(StopMatcher, TheMatchThatEndsFirstWins) {
  const auto outcome = Feed(StopMatcher({"abcdef", "cd"}, false), {"xabcdef"});
  EXPECT_EQ(outcome.match, "cd");
  EXPECT_EQ(outcome.text, "xab");
}

TEST(StopMatcher, OfMatchesThatEndTogetherTheFirstListedWins) {
  EXPECT_EQ(Feed(StopMatcher({"fox", "own fox"}, false), {"brown fox"}).text, "brown ");
  EXPECT_EQ(Feed(StopMatcher({"own fox", "fox"}, false), {"brown fox"}).text, "br");
}

TEST(StopMatcher, KeepsTheMatchWhenAsked) {
  EXPECT_EQ(Feed(StopMatcher({"stop"}, true), {"now st", "op here"}).text, "now stop");
}

TEST(StopMatcher, HoldsBackNoMoreThanWhatMayBecomeAMatch) {
  StopMatcher matcher({"Question:"}, false);
  EXPECT_EQ(matcher.Append("The answer").text, "The answer");
  EXPECT_EQ(matcher.Append(" Quest").text, " ");
  EXPECT_EQ(matcher.Append("or Que").text, "Questor ");
  EXPECT_EQ(matcher.Finish(), "Que");
}

TEST(StopMatcher, SkippedTextBelongsToNoMatch) {
  StopMatcher matcher({"ab"}, false);
  EXPECT_EQ(matcher.Skip("xa"), "xa");
  const auto step = matcher.Append("b ab");
  EXPECT_EQ(step.text, "b ");
  EXPECT_EQ(step.match, "ab");
}

// Against a search in the joined text, over an alphabet small enough for overlaps.
TEST(StopMatcher, AgreesWithASearchInTheWholeText) {
  std::mt19937 random(11);
  const auto word = [&](size_t longest) {
    std::string out(1 + random() % longest, 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + random() % 3), pieces(1 + random() % 8);
    size_t longest = 0;
    for (auto& stop : stops) longest = std::max(longest, (stop = word(5)).size());
    std::string whole;
    for (auto& piece : pieces) whole += piece = word(3);
    size_t best_end = std::string::npos;
    std::string expected = whole;
    std::optional<std::string> match;
    for (const auto& stop : stops) {
      const size_t at = whole.find(stop);
      if (at == std::string::npos || at + stop.size() >= best_end) continue;
      best_end = at + stop.size();
      expected = whole.substr(0, at);
      match = stop;
    }
    const auto outcome = Feed(StopMatcher(stops, false), pieces);
    ASSERT_EQ(outcome.text, expected) << "round " << round;
    ASSERT_EQ(outcome.match, match) << "round " << round;

    StopMatcher matcher(stops, false);
    size_t given = 0, shown = 0;
    for (const auto& piece : pieces) {
      const auto step = matcher.Append(piece);
      given += piece.size();
      shown += step.text.size();
      if (step.match) break;
      ASSERT_LE(given - shown, longest - 1) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace attest
