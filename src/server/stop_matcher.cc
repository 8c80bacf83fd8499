#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace attest {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool keep_match) : keep_match_(keep_match) {
  stops_.reserve(stops.size());
  for (std::string& text : stops) {
    std::vector<size_t> fallback(text.size(), 0);
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = fallback[k - 1];
      if (text[i] == text[k]) ++k;
      fallback[i] = k;
    }
    stops_.push_back({.text = std::move(text), .fallback = std::move(fallback)});
  }
}

StopMatcher::Step StopMatcher::Append(std::string_view piece) {
  if (stops_.empty()) return {.text = std::string(piece), .match = std::nullopt};
  for (const char c : piece) {
    held_.push_back(c);
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.fallback[stop.matched - 1];
      if (stop.text[stop.matched] == c) ++stop.matched;
      if (stop.matched < stop.text.size()) continue;
      if (!keep_match_) held_.resize(held_.size() - stop.text.size());
      return {.text = std::exchange(held_, {}), .match = stop.text};
    }
  }
  size_t hold = 0;
  for (const Stop& stop : stops_) hold = std::max(hold, stop.matched);
  Step step{.text = held_.substr(0, held_.size() - hold), .match = std::nullopt};
  held_.erase(0, held_.size() - hold);
  return step;
}

std::string StopMatcher::Skip(std::string_view piece) {
  for (Stop& stop : stops_) stop.matched = 0;
  std::string text = std::exchange(held_, {});
  text += piece;
  return text;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace attest
