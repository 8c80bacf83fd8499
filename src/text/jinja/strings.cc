#include "text/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/jinja/value.h"

namespace attest::jinja {
namespace {

utf8proc_int32_t Decode(std::string_view point) {
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(point.data()),
                   static_cast<utf8proc_ssize_t>(point.size()), &code);
  return code;
}

std::string Encode(utf8proc_int32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code, bytes);
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool IsLetter(utf8proc_int32_t code) {
  if (code < 0) return false;
  const utf8proc_category_t category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

}  // namespace

bool IsSpaceCodePoint(std::string_view point) {
  if (point.size() == 1) {
    const char c = point[0];
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
  }
  const utf8proc_int32_t code = Decode(point);
  if (code < 0) return false;
  return code == 0x85 || utf8proc_category(code) == UTF8PROC_CATEGORY_ZS ||
         utf8proc_category(code) == UTF8PROC_CATEGORY_ZL || utf8proc_category(code) == UTF8PROC_CATEGORY_ZP;
}

std::string MapCase(std::string_view text, Case to) {
  std::string out;
  bool in_word = false;
  bool first = true;
  for (const std::string_view point : CodePoints(text)) {
    const utf8proc_int32_t code = Decode(point);
    if (code < 0) {
      out += point;
      continue;
    }
    const bool upper =
        to == Case::kUpper || (to == Case::kCapitalize && first) || (to == Case::kTitle && !in_word);
    if (upper && code == 0xdf) {
      out += to == Case::kUpper ? "SS" : "Ss";  // the one common letter whose upper case has two letters
    } else {
      out += Encode(upper ? utf8proc_toupper(code) : utf8proc_tolower(code));
    }
    in_word = IsLetter(code);
    first = false;
  }
  return out;
}

std::string StripChars(std::string_view text, const std::string* chars, bool left, bool right) {
  const auto strips = [&](std::string_view point) {
    return chars == nullptr ? IsSpaceCodePoint(point) : chars->find(point) != std::string::npos;
  };
  while (left && !text.empty() && strips(FirstCodePoint(text))) {
    text.remove_prefix(FirstCodePoint(text).size());
  }
  while (right && !text.empty() && strips(LastCodePoint(text))) {
    text.remove_suffix(LastCodePoint(text).size());
  }
  return std::string(text);
}

std::string SliceText(std::string_view text, int64_t first, int64_t last, int64_t step) {
  std::string out;
  int64_t next = first;
  if (step > 0) {
    int64_t index = 0;
    for (const std::string_view point : CodePoints(text)) {
      if (next >= last) break;
      if (index++ != next) continue;
      out += point;
      if (__builtin_add_overflow(next, step, &next)) break;
    }
    return out;
  }
  for (int64_t index = NumCodePoints(text) - 1; index >= 0 && next > last; --index) {
    const std::string_view point = LastCodePoint(text);
    text.remove_suffix(point.size());
    if (index != next) continue;
    out += point;
    if (__builtin_add_overflow(next, step, &next)) break;
  }
  return out;
}

std::string ReplaceAll(std::string_view text, std::string_view old, std::string_view with, int64_t count) {
  std::string out;
  if (old.empty()) {  // Python inserts between all code points
    for (const std::string_view point : CodePoints(text)) {
      if (count != 0) out += with;
      if (count > 0) --count;
      out += point;
    }
    if (count != 0) out += with;
    return out;
  }
  size_t at = 0;
  for (size_t found; count != 0 && (found = text.find(old, at)) != std::string_view::npos;
       at = found + old.size()) {
    out += text.substr(at, found - at);
    out += with;
    if (count > 0) --count;
  }
  out += text.substr(at);
  return out;
}

std::vector<std::string> Split(std::string_view text, const std::string* separator, int64_t limit) {
  std::vector<std::string> parts;
  if (separator != nullptr) {
    size_t at = 0;
    for (size_t found; limit != 0 && (found = text.find(*separator, at)) != std::string_view::npos;
         at = found + separator->size()) {
      parts.emplace_back(text.substr(at, found - at));
      if (parts.size() > kMaxPieces) return parts;
      if (limit > 0) --limit;
    }
    parts.emplace_back(text.substr(at));
    return parts;
  }
  while (!text.empty() && parts.size() <= kMaxPieces) {
    const std::string_view point = FirstCodePoint(text);
    if (IsSpaceCodePoint(point)) {
      text.remove_prefix(point.size());
      continue;
    }
    if (limit == 0) {
      parts.push_back(StripChars(text, nullptr, false, true));
      break;
    }
    size_t end = 0;
    for (const std::string_view next : CodePoints(text)) {
      if (IsSpaceCodePoint(next)) break;
      end += next.size();
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    if (limit > 0) --limit;
  }
  return parts;
}

std::vector<std::string> SplitRight(std::string_view text, const std::string& separator, int64_t limit) {
  std::vector<std::string> parts;
  size_t end = text.size();
  while (limit != 0 && parts.size() <= kMaxPieces) {
    const size_t found =
        end < separator.size() ? std::string_view::npos : text.rfind(separator, end - separator.size());
    if (found == std::string_view::npos) break;
    parts.emplace_back(text.substr(found + separator.size(), end - found - separator.size()));
    end = found;
    if (limit > 0) --limit;
  }
  parts.emplace_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size() && lines.size() <= kMaxPieces;) {
    size_t end = begin;
    while (end < text.size() && text[end] != '\n' && text[end] != '\r') ++end;
    size_t next = end;
    if (next < text.size())
      next += text[next] == '\r' && next + 1 < text.size() && text[next + 1] == '\n' ? 2 : 1;
    lines.emplace_back(text.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return lines;
}

}  // namespace attest::jinja
