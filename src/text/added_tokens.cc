#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace attest {
namespace {

// The first byte of the code point that ends at `end`. REQUIRES: end > 0.
size_t PreviousCodePoint(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool HasClass(std::string_view text, size_t at, uint8_t mask) {
  return (UnicodeClasses::Get()[DecodeValidUtf8(text.data() + at)] & mask) != 0;
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && HasClass(text, PreviousCodePoint(text, begin), kWord)) return false;
  return end == text.size() || !HasClass(text, end, kWord);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<Pattern>& patterns) {
  roots_.fill(-1);
  for (const Pattern& pattern : patterns) {
    int32_t& root = roots_[static_cast<uint8_t>(pattern.text[0])];
    if (root < 0) {
      root = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.byte = pattern.text[0]});
    }
    int32_t node = root;
    for (const char byte : std::string_view(pattern.text).substr(1)) node = AddChild(node, byte);
    nodes_[static_cast<size_t>(node)].token = pattern.token;
  }
}

int32_t AddedTokenMatcher::Child(int32_t node, char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

int32_t AddedTokenMatcher::AddChild(int32_t node, char byte) {
  int32_t child = Child(node, byte);
  if (child >= 0) return child;
  child = static_cast<int32_t>(nodes_.size());
  nodes_.push_back({.next_sibling = nodes_[static_cast<size_t>(node)].first_child, .byte = byte});
  nodes_[static_cast<size_t>(node)].first_child = child;
  return child;
}

const AddedToken* AddedTokenMatcher::Longest(std::string_view text, size_t begin, size_t& end) const {
  const AddedToken* longest = nullptr;
  size_t at = begin + 1;
  for (int32_t node = roots_[static_cast<uint8_t>(text[begin])]; node >= 0;) {
    if (const AddedToken* token = nodes_[static_cast<size_t>(node)].token; token != nullptr) {
      longest = token;
      end = at;
    }
    if (at == text.size()) break;
    node = Child(node, text[at++]);
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text, bool match_special, std::vector<TextSpan>& spans) const {
  size_t copied = 0;  // everything before it is in `spans`
  for (size_t at = 0; !empty() && at < text.size();) {
    size_t end = 0;
    const AddedToken* token = roots_[static_cast<uint8_t>(text[at])] < 0 ? nullptr : Longest(text, at, end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    at = end;
    if (token->special && !match_special) continue;
    if (token->single_word && !StandsAlone(text, begin, end)) continue;
    if (token->lstrip) {
      while (begin > 0 && HasClass(text, PreviousCodePoint(text, begin), kSpace))
        begin = PreviousCodePoint(text, begin);
      begin = std::max(begin, copied);
    }
    if (token->rstrip) {
      while (end < text.size() && HasClass(text, end, kSpace))
        end += static_cast<size_t>(Utf8Length(text.data() + end));
    }
    if (copied < begin) spans.push_back({copied, begin, -1});
    spans.push_back({begin, end, token->id});
    copied = end;
  }
  if (copied < text.size()) spans.push_back({copied, text.size(), -1});
}

}  // namespace attest
