#include "server/json_writer.h"

#include <charconv>
#include <cmath>
#include <cstddef>

namespace attest {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; }

// Length of the well-formed UTF-8 sequence at the start of `text`, or 0 (overlong forms, surrogates and
// values above U+10FFFF are not well-formed).
size_t Utf8Length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (length < 2) return length;
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

void AppendEscape(std::string& out, char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
  }
}

}  // namespace

void AppendJsonString(std::string& out, std::string_view text) {
  out.push_back('"');
  size_t begin = 0;  // of the run not yet copied
  size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\') {
      ++i;
      continue;
    }
    if (byte >= 0x80) {
      if (const size_t length = Utf8Length(text.substr(i)); length != 0) {
        i += length;
        continue;
      }
    }
    out.append(text, begin, i - begin);
    if (byte >= 0x80) {
      out += kReplacement;
    } else {
      AppendEscape(out, c);
    }
    begin = ++i;
  }
  out.append(text, begin);
  out.push_back('"');
}

JsonWriter& JsonWriter::Open(char bracket) {
  Comma();
  out_.push_back(bracket);
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  out_.push_back(bracket);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Comma();
  AppendJsonString(out_, key);
  out_.push_back(':');
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Comma();
  AppendJsonString(out_, value);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return Raw({digits, static_cast<size_t>(end - digits)});
}

namespace {

template <class Float>
JsonWriter& WriteNumber(JsonWriter& json, Float value) {
  if (!std::isfinite(value)) return json.Null();
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return json.Raw({digits, static_cast<size_t>(end - digits)});
}

}  // namespace

JsonWriter& JsonWriter::Number(float value) { return WriteNumber(*this, value); }
JsonWriter& JsonWriter::Number(double value) { return WriteNumber(*this, value); }

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Comma();
  out_ += json;
  needs_comma_ = true;
  return *this;
}

}  // namespace attest
