// Finds stop strings in text that arrives in pieces. Of several that could match, the one that ends first
// wins; of those that end together, the first in the list. Owned by one generation; one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attest {

class StopMatcher {
 public:
  // REQUIRES: no string is empty. `keep_match`: the matched text stays in the output.
  StopMatcher(std::vector<std::string> stops, bool keep_match);

  struct Step {
    std::string text;                  // safe to show: no stop string can begin in it or before it
    std::optional<std::string> match;  // the stop string that ended the text; nothing may follow
  };
  // REQUIRES: no match before. Holds back only what may still become a stop string: at most the longest one's
  // length - 1. Pieces of whole code points give texts of whole code points.
  Step Append(std::string_view piece);
  // Shows `piece` (and what was held back) without looking for stop strings in it.
  std::string Skip(std::string_view piece);
  // What is still held back, at the end of the text.
  std::string Finish();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [length]: longest proper prefix that ends text[0..i], Knuth-Morris-Pratt
    size_t matched = 0;            // longest prefix of `text` that the stream ends with
  };

  std::vector<Stop> stops_;
  bool keep_match_;
  std::string held_;
};

}  // namespace attest
