// The regular expressions of tokenizer.json (Oniguruma's Ruby syntax) run by PCRE2 with JIT. The pattern is
// rewritten so that \s, \d, \w and \p{..} mean exactly what they mean to the reference library: White_Space
// without U+180E, and the categories of Unicode 16 where this PCRE2 knows only 14. Immutable; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace attest {

// The pattern in PCRE2's syntax. kUnsupported names the construct; kInvalidArgument is a malformed pattern.
[[nodiscard]] Expected<std::string> TranslateOniguruma(std::string_view pattern);

class SplitRegex {
 public:
  static Expected<SplitRegex> Compile(std::string_view pattern);
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

  // Calls `found(begin, end)` for each match from left to right. REQUIRES: valid UTF-8. A pattern that runs
  // out of PCRE2's match limit finds nothing more.
  void ForEachMatch(std::string_view text, const std::function<void(size_t, size_t)>& found) const;

 private:
  struct Impl;
  explicit SplitRegex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attest
