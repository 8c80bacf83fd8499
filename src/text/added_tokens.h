// Tokens that are found in the text before the model sees it (<|im_end|>, runs of blanks): leftmost first,
// longest among those. Immutable after construction; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attest {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool normalized = false;   // matched in the normalised text, by its own normalised form
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the blanks before it
  bool rstrip = false;       // swallows the blanks after it
};

// A stretch of text: a token, or (id < 0) text between tokens. Text stretches are never empty.
struct TextSpan {
  size_t begin;
  size_t end;
  int32_t id;
};

class AddedTokenMatcher {
 public:
  struct Pattern {
    std::string text;  // not empty
    const AddedToken* token;
  };
  AddedTokenMatcher() = default;
  // The tokens must outlive the matcher.
  explicit AddedTokenMatcher(const std::vector<Pattern>& patterns);

  [[nodiscard]] bool empty() const { return nodes_.empty(); }
  // Special tokens are left in the text when `match_special` is false; the stretch they cover is not searched
  // for other tokens, as in the reference library.
  void Split(std::string_view text, bool match_special, std::vector<TextSpan>& spans) const;

 private:
  struct Node {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    const AddedToken* token = nullptr;
    char byte = 0;
  };
  [[nodiscard]] int32_t Child(int32_t node, char byte) const;
  int32_t AddChild(int32_t node, char byte);
  // The longest token that begins at `begin`, and its end.
  [[nodiscard]] const AddedToken* Longest(std::string_view text, size_t begin, size_t& end) const;

  std::vector<Node> nodes_;
  std::array<int32_t, 256> roots_{};  // node of each first byte, or -1
};

}  // namespace attest
