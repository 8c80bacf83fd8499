// Normalizers and pre-tokenizers of tokenizer.json as flat lists of steps: text in, pieces for the model out.
// Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/scanner.h"
#include "text/split_regex.h"

namespace attest {

// A pattern that cuts text: literal text, a scanner for a well-known regular expression, or any other one.
class TextPattern {
 public:
  static TextPattern Literal(std::string text) { return TextPattern(std::move(text)); }
  static Expected<TextPattern> Regex(std::string_view pattern);

  // Calls found(begin, end) for each match from left to right.
  template <class Found>
  void ForEachMatch(std::string_view text, const Found& found) const;

 private:
  explicit TextPattern(std::variant<std::string, Scanner, SplitRegex> impl) : impl_(std::move(impl)) {}
  std::variant<std::string, Scanner, SplitRegex> impl_;
};

struct NfcStep {};
struct PrependStep {
  std::string text;  // put before every text that is not empty
};
struct ReplaceStep {
  TextPattern pattern;
  std::string content;
};
using NormalizerStep = std::variant<NfcStep, PrependStep, ReplaceStep>;

// True when `out` holds the new text; false when the text is unchanged.
[[nodiscard]] bool Normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                             std::string& out);

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};
struct DigitsStep {
  bool individual = false;
};
struct MetaspaceStep {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
struct ByteLevelStep {  // the last step; the model itself maps bytes
  bool add_prefix_space = false;
  std::optional<Scanner> scanner;  // GPT-2's pattern, unless use_regex is false
};
using PreTokenizerStep = std::variant<SplitStep, DigitsStep, MetaspaceStep, ByteLevelStep>;

// Receives the pieces in order.
class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual void Piece(std::string_view piece) = 0;
};

// `at_text_begin`: the text is the start of the whole input (Metaspace's "first").
void PreTokenize(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool at_text_begin,
                 PieceSink& sink);

}  // namespace attest
