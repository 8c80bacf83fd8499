#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <unordered_map>

#include "base/check.h"
#include "text/unicode_tables.h"

namespace attest {
namespace {

bool IsContinuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

uint8_t ClassOfCategory(int category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return kNumber | kDigitsSplit | kWord;
    case UTF8PROC_CATEGORY_NO:
      return kNumber | kDigitsSplit;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      return kWord;
    default:
      return 0;
  }
}

uint8_t ClassOfName(std::string_view category) {
  if (category[0] == 'L') return kLetter | kWord;
  if (category == "No") return kNumber | kDigitsSplit;
  if (category[0] == 'N') return kNumber | kDigitsSplit | kWord;
  return category[0] == 'M' || category == "Pc" ? kWord : 0;
}

struct ClassRange {
  char32_t first;
  char32_t last;
  uint8_t bits;
};
constexpr ClassRange kExtraClasses[] = {
    // White_Space.
    {0x09, 0x0D, kSpace},
    {0x20, 0x20, kSpace},
    {0x85, 0x85, kSpace},
    {0xA0, 0xA0, kSpace},
    {0x1680, 0x1680, kSpace},
    {0x2000, 0x200A, kSpace},
    {0x2028, 0x2029, kSpace},
    {0x202F, 0x202F, kSpace},
    {0x205F, 0x205F, kSpace},
    {0x3000, 0x3000, kSpace},
    // Word characters beyond their category: circled and squared letters, and the two joiners.
    {0x200C, 0x200D, kWord},
    {0x24B6, 0x24E9, kWord},
    {0x1F130, 0x1F149, kWord},
    {0x1F150, 0x1F169, kWord},
    {0x1F170, 0x1F189, kWord},
    // Numbers of Unicode 17.
    {0x11DE0, 0x11DE9, kDigitsSplit},
    {0x16FF4, 0x16FF6, kDigitsSplit},
};

// True for code points that NFC leaves alone whatever stands next to them, as ranges that cover common text.
// Anything else takes the exact path, so the list is about speed alone.
bool IsNfcStable(char32_t c) {
  if (c < 0x300) return true;
  if (c < 0x1100) {
    return (c >= 0x400 && c <= 0x482) || (c >= 0x48A && c <= 0x590) || (c >= 0x5D0 && c <= 0x60F) ||
           (c >= 0x621 && c <= 0x64A);
  }
  return (c >= 0x1E00 && c <= 0x1E99) || (c >= 0x1EA0 && c <= 0x1EFF) || (c >= 0x2010 && c <= 0x205E) ||
         (c >= 0x2190 && c <= 0x2328) || (c >= 0x2500 && c <= 0x2ADB) || (c >= 0x3000 && c <= 0x3029) ||
         (c >= 0x3041 && c <= 0x3094) || (c >= 0x30A1 && c <= 0x30FC) || (c >= 0x3400 && c <= 0x9FFF) ||
         (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFF9F) || (c >= 0x1F300 && c <= 0x1FAFF);
}

template <class Range>
bool Contains(const std::vector<Range>& ranges, char32_t c) {
  auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                [](char32_t value, const Range& range) { return value < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

// The library's tables end with Unicode 9: what came later passes through and separates what stands around
// it. So does U+11A7, which composes with nothing but which utf8proc 2.8 drops after a Hangul syllable.
bool IsNfcBarrier(char32_t c) {
  return c >= 0x700 &&
         (c == 0x11A7 || Contains(NfcInertRanges(), c) || Contains(CategoriesSinceUnicode14(), c));
}

void AppendNfcOfRun(std::string_view run, std::string& out) {
  if (run.empty()) return;
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(run.data()), static_cast<utf8proc_ssize_t>(run.size()),
      &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  ATTEST_CHECK(length >= 0);  // fails on invalid UTF-8 alone
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(length));
}

}  // namespace

Utf8Step StepUtf8(const char* begin, const char* end) {
  const auto* p = reinterpret_cast<const uint8_t*>(begin);
  const auto left = static_cast<size_t>(end - begin);
  const uint8_t lead = p[0];
  if (lead < 0x80) return {lead, 1, Utf8Step::kValid};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1, Utf8Step::kInvalid};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte has a narrower range after four leads: no overlong forms, no surrogates, nothing above
  // 10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code_point = static_cast<char32_t>(lead & (0x7F >> length));
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == left) return {0, static_cast<uint8_t>(i), Utf8Step::kTruncated};
    const bool fits = i == 1 ? p[i] >= low && p[i] <= high : IsContinuation(p[i]);
    if (!fits) return {0, static_cast<uint8_t>(i), Utf8Step::kInvalid};
    code_point = code_point << 6 | (p[i] & 0x3F);
  }
  return {code_point, static_cast<uint8_t>(length), Utf8Step::kValid};
}

bool IsValidUtf8(std::string_view text) {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    if (static_cast<uint8_t>(*p) < 0x80) {
      ++p;
      continue;
    }
    const Utf8Step step = StepUtf8(p, end);
    if (step.kind != Utf8Step::kValid) return false;
    p += step.length;
  }
  return true;
}

std::string RepairUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  const char* p = bytes.data();
  const char* end = p + bytes.size();
  while (p < end) {
    const Utf8Step step = StepUtf8(p, end);
    if (step.kind == Utf8Step::kValid) {
      out.append(p, step.length);
    } else {
      out += kReplacementUtf8;
    }
    p += step.length;
  }
  return out;
}

std::string ForMessage(std::string_view text) {
  std::string line = RepairUtf8(text.size() <= 60 ? text : text.substr(0, 57));
  for (char& c : line) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text.size() <= 60 ? line : line + "...";
}

void AppendUtf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

const UnicodeClasses& UnicodeClasses::Get() {
  static const UnicodeClasses kClasses;
  return kClasses;
}

UnicodeClasses::UnicodeClasses() {
  std::vector<uint8_t> flat(0x110000);
  for (char32_t c = 0; c < 0x110000; ++c) {
    flat[c] = ClassOfCategory(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  }
  for (const CategoryRange& range : CategoriesSinceUnicode14()) {
    std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, ClassOfName(range.category));
  }
  for (const ClassRange& range : kExtraClasses) {
    for (char32_t c = range.first; c <= range.last; ++c) flat[c] |= range.bits;
  }
  std::unordered_map<std::string, uint16_t> known;
  for (size_t page = 0; page < page_of_.size(); ++page) {
    const auto begin = flat.begin() + static_cast<ptrdiff_t>(page * 256);
    const auto [it, is_new] =
        known.emplace(std::string(begin, begin + 256), static_cast<uint16_t>(known.size()));
    if (is_new) pages_.insert(pages_.end(), begin, begin + 256);
    page_of_[page] = it->second;
  }
}

void AppendNfc(std::string_view text, std::string& out) {
  const char* p = text.data();
  const char* end = p + text.size();
  const char* copied = p;  // everything before it is in `out`
  const char* last = p;    // first byte of the code point before p
  while (p < end) {
    if (static_cast<uint8_t>(*p) < 0xCC || IsNfcStable(DecodeValidUtf8(p))) {  // 0xCC leads U+0300 and up
      last = p;
      p += Utf8Length(p);
      continue;
    }
    // A run that may change: it begins with the code point before it, which may be its base.
    out.append(copied, last);
    const char* run = last;
    while (p < end) {
      const char32_t c = DecodeValidUtf8(p);
      if (IsNfcStable(c)) break;
      const char* next = p + Utf8Length(p);
      if (IsNfcBarrier(c)) {
        AppendNfcOfRun({run, p}, out);
        out.append(p, next);
        run = next;
      }
      p = next;
    }
    AppendNfcOfRun({run, p}, out);
    copied = last = p;
  }
  out.append(copied, end);
}

}  // namespace attest
