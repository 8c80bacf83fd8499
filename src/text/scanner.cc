#include "text/scanner.h"

#include <algorithm>

namespace attest {
namespace {

constexpr uint8_t kNotSymbol = kSpace | kLetter | kNumber;

// The length of a contraction such as 's or 're at `p`, which holds an apostrophe; 0 if there is none.
int ContractionLength(const char* p, const char* end, bool any_case) {
  if (end - p < 2) return 0;
  const auto fold = [any_case](char c) {
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = fold(p[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (any_case && end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF') return 3;  // U+017F folds to s
  if (end - p < 3) return 0;
  const char second = fold(p[2]);
  const bool is_pair = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return is_pair ? 3 : 0;
}

}  // namespace

std::optional<ScanKind> ScannerFor(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return ScanKind::kGpt2;
  if (pattern == kLlama3Pattern) return ScanKind::kLlama3;
  if (pattern == kQwen2Pattern) return ScanKind::kQwen2;
  return std::nullopt;
}

const char* Scanner::SkipWhile(const char* p, const char* end, uint8_t mask) const {
  while (p < end && (ClassAt(p) & mask) != 0) p += Utf8Length(p);
  return p;
}

const char* Scanner::SkipUntil(const char* p, const char* end, uint8_t mask) const {
  while (p < end && (ClassAt(p) & mask) == 0) p += Utf8Length(p);
  return p;
}

// \s+(?!\S)|\s+ : a run of blanks gives its last one to what follows, unless it is the only one.
const char* Scanner::EndOfBlanks(const char* begin, const char* end) const {
  const char* p = begin;
  const char* last = begin;
  while (p < end && (ClassAt(p) & kSpace) != 0) {
    last = p;
    p += Utf8Length(p);
  }
  return p == end || last == begin ? p : last;
}

const char* Scanner::NextGpt2(const char* begin, const char* end) const {
  if (*begin == '\'') {
    if (const int length = ContractionLength(begin, end, false); length > 0) return begin + length;
  }
  const char* p = *begin == ' ' ? begin + 1 : begin;
  if (p < end) {
    const uint8_t c = ClassAt(p);
    if ((c & kLetter) != 0) return SkipWhile(p, end, kLetter);
    if ((c & kNumber) != 0) return SkipWhile(p, end, kNumber);
    if ((c & kSpace) == 0) return SkipUntil(p, end, kNotSymbol);
  }
  return EndOfBlanks(begin, end);
}

const char* Scanner::NextLlama3(const char* begin, const char* end) const {
  if (*begin == '\'') {
    if (const int length = ContractionLength(begin, end, true); length > 0) return begin + length;
  }
  const uint8_t c = ClassAt(begin);
  const char* second = begin + Utf8Length(begin);
  if ((c & kLetter) != 0) return SkipWhile(second, end, kLetter);
  if ((c & kNumber) != 0) {
    const char* p = second;
    const int most = kind_ == ScanKind::kLlama3 ? 3 : 1;
    for (int i = 1; i < most && p < end && (ClassAt(p) & kNumber) != 0; ++i) p += Utf8Length(p);
    return p;
  }
  if (*begin != '\r' && *begin != '\n' && second < end && (ClassAt(second) & kLetter) != 0) {
    return SkipWhile(second, end, kLetter);
  }
  const char* symbol = *begin == ' ' ? second : begin;
  if (symbol < end && (ClassAt(symbol) & kNotSymbol) == 0) {
    const char* p = SkipUntil(symbol, end, kNotSymbol);
    while (p < end && (*p == '\r' || *p == '\n')) ++p;
    return p;
  }
  const char* blanks_end = SkipWhile(begin, end, kSpace);
  for (const char* p = blanks_end; p > begin; --p) {
    if (p[-1] == '\r' || p[-1] == '\n') return p;
  }
  return EndOfBlanks(begin, end);
}

}  // namespace attest
