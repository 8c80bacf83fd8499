// Unicode as the reference library (PyPI `tokenizers`) sees it: UTF-8 steps, general categories of Unicode
// 16, White_Space, and NFC with the library's own (older) tables. Pure functions over immutable tables; any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attest {

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

// One step through bytes that claim to be UTF-8.
struct Utf8Step {
  enum Kind : uint8_t { kValid, kInvalid, kTruncated };
  char32_t code_point = 0;  // kValid only
  uint8_t length =
      0;  // kInvalid: the longest invalid prefix, replaced by one U+FFFD; kTruncated: what is left
  Kind kind = kInvalid;
};
// REQUIRES: begin < end.
[[nodiscard]] Utf8Step StepUtf8(const char* begin, const char* end);
[[nodiscard]] bool IsValidUtf8(std::string_view text);
// Each longest invalid prefix becomes one U+FFFD, as in Rust's from_utf8_lossy and in WHATWG decoders.
[[nodiscard]] std::string RepairUtf8(std::string_view bytes);
void AppendUtf8(char32_t code_point, std::string& out);
// `text` for an error message: one line, at most about 60 bytes, control characters as '?'.
[[nodiscard]] std::string ForMessage(std::string_view text);

// REQUIRES: `p` points at the first byte of a valid code point.
[[nodiscard]] inline int Utf8Length(const char* p) {
  const auto lead = static_cast<uint8_t>(*p);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
[[nodiscard]] inline char32_t DecodeValidUtf8(const char* p) {
  const auto* b = reinterpret_cast<const uint8_t*>(p);
  if (b[0] < 0x80) return b[0];
  if (b[0] < 0xE0) return static_cast<char32_t>((b[0] & 0x1F) << 6 | (b[1] & 0x3F));
  if (b[0] < 0xF0) {
    return static_cast<char32_t>((b[0] & 0x0F) << 12 | (b[1] & 0x3F) << 6 | (b[2] & 0x3F));
  }
  return static_cast<char32_t>((b[0] & 0x07) << 18 | (b[1] & 0x3F) << 12 | (b[2] & 0x3F) << 6 |
                               (b[3] & 0x3F));
}

// Bits of a code point's class.
inline constexpr uint8_t kLetter = 1;        // \p{L}
inline constexpr uint8_t kNumber = 2;        // \p{N}
inline constexpr uint8_t kSpace = 4;         // White_Space: has U+0085, has not U+180E
inline constexpr uint8_t kWord = 8;          // \w
inline constexpr uint8_t kDigitsSplit = 16;  // what the Digits pre-tokenizer splits: \p{N} of Unicode 17

class UnicodeClasses {
 public:
  static const UnicodeClasses& Get();  // built once, about 10 ms

  [[nodiscard]] uint8_t operator[](char32_t c) const { return pages_[page_of_[c >> 8] * 256u + (c & 0xFF)]; }

 private:
  UnicodeClasses();
  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<uint8_t> pages_;
};

// Code points whose general category differs between Unicode 14 (the oldest PCRE2 and utf8proc we build with)
// and Unicode 16 (what the reference library's regex engine knows). Sorted, disjoint.
struct CategoryRange {
  char32_t first;
  char32_t last;
  char category[3];
};
[[nodiscard]] const std::vector<CategoryRange>& CategoriesSinceUnicode14();

// Appends the canonical composition (NFC) of `text`. REQUIRES: valid UTF-8.
void AppendNfc(std::string_view text, std::string& out);

}  // namespace attest
