// The three split patterns that nearly every byte-level model uses, as hand-written scanners: the same pieces
// as the regular expressions, several times faster (tests/text/scanner_test.cc holds each against PCRE2).
// Pure; any thread.
#pragma once

#include <optional>
#include <string_view>

#include "text/unicode.h"

namespace attest {

// In words: GPT-2 keeps one leading space with letters, numbers or symbols. Llama 3 keeps any one leading
// non-newline, cuts numbers to three, ends symbols and blanks at newlines, and ignores the case of
// contractions. Qwen 2 is Llama 3 with single numbers.
enum class ScanKind { kGpt2, kLlama3, kQwen2 };

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The scanner for exactly this pattern text, or nullopt.
[[nodiscard]] std::optional<ScanKind> ScannerFor(std::string_view pattern);

class Scanner {
 public:
  explicit Scanner(ScanKind kind) : kind_(kind), classes_(&UnicodeClasses::Get()) {
    for (char32_t c = 0; c < 128; ++c) ascii_[c] = (*classes_)[c];
  }

  // The end of the piece that begins at `begin`; every byte of the text belongs to a piece. REQUIRES: begin <
  // end, valid UTF-8, `begin` on a code point.
  [[nodiscard]] const char* Next(const char* begin, const char* end) const {
    return kind_ == ScanKind::kGpt2 ? NextGpt2(begin, end) : NextLlama3(begin, end);
  }

 private:
  [[nodiscard]] const char* NextGpt2(const char* begin, const char* end) const;
  [[nodiscard]] const char* NextLlama3(const char* begin, const char* end) const;
  [[nodiscard]] uint8_t ClassAt(const char* p) const {
    const auto lead = static_cast<uint8_t>(*p);
    return lead < 0x80 ? ascii_[lead] : (*classes_)[DecodeValidUtf8(p)];
  }
  // The first code point in [p, end) with (class & mask) == 0.
  [[nodiscard]] const char* SkipWhile(const char* p, const char* end, uint8_t mask) const;
  // The first code point in [p, end) with (class & mask) != 0.
  [[nodiscard]] const char* SkipUntil(const char* p, const char* end, uint8_t mask) const;
  [[nodiscard]] const char* EndOfBlanks(const char* begin, const char* end) const;

  ScanKind kind_;
  const UnicodeClasses* classes_;
  uint8_t ascii_[128];
};

}  // namespace attest
