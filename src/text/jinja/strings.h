// Python's string operations on UTF-8 text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attest::jinja {

enum class Case { kLower, kUpper, kTitle, kCapitalize };
[[nodiscard]] std::string MapCase(std::string_view text, Case to);

// str.strip(chars): `chars` nullptr strips whitespace.
[[nodiscard]] std::string StripChars(std::string_view text, const std::string* chars, bool left, bool right);
// str.replace(old, new, count); count < 0 replaces all.
[[nodiscard]] std::string ReplaceAll(std::string_view text, std::string_view old, std::string_view with,
                                     int64_t count);
// text[first:last:step] of code points. REQUIRES: both are inside, or -1 for `last` where `step` is negative.
[[nodiscard]] std::string SliceText(std::string_view text, int64_t first, int64_t last, int64_t step);
// These three end one piece after kMaxPieces (value.h), which whoever makes a list of them refuses.
// str.split(separator, limit): `separator` nullptr splits on whitespace runs; limit < 0 is none.
[[nodiscard]] std::vector<std::string> Split(std::string_view text, const std::string* separator,
                                             int64_t limit);
[[nodiscard]] std::vector<std::string> SplitRight(std::string_view text, const std::string& separator,
                                                  int64_t limit);
[[nodiscard]] std::vector<std::string> SplitLines(std::string_view text, bool keep_ends);
[[nodiscard]] bool IsSpaceCodePoint(std::string_view point);

}  // namespace attest::jinja
