#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/unicode.h"

namespace attest::jinja {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    // Line ends become "\n" and one at the very end is dropped, as Jinja does.
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        if (i + 1 < source.size() && source[i + 1] == '\n') continue;
        text_ += '\n';
      } else {
        text_ += source[i];
      }
    }
    if (!text_.empty() && text_.back() == '\n') text_.pop_back();
    source_ = text_;
  }

  Expected<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag();
      std::string_view data = source_.substr(at_, tag - at_);
      if (tag == source_.size()) {
        EmitText(data);
        break;
      }
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const bool is_variable = source_[tag + 1] == '{';
      std::string_view trimmed = data;
      if (sign == '-') {
        while (!trimmed.empty() && IsSpace(trimmed.back())) trimmed.remove_suffix(1);
      } else if (!is_variable && sign != '+') {
        trimmed = StripIndent(data);
      }
      EmitText(trimmed);
      CountLines(data);
      at_ = tag;
      if (source_[tag + 1] == '#') {
        ATTEST_RETURN_IF_ERROR(SkipComment());
      } else {
        ATTEST_RETURN_IF_ERROR(LexTag(is_variable));
      }
    }
    tokens_.push_back({TokenKind::kEnd, "end of template", line_});
    return std::move(tokens_);
  }

 private:
  size_t NextTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  // lstrip_blocks: spaces and tabs between a line's start and a block tag go.
  std::string_view StripIndent(std::string_view data) const {
    size_t end = data.size();
    while (end > 0 && (data[end - 1] == ' ' || data[end - 1] == '\t')) --end;
    const bool at_line_start = end > 0 ? data[end - 1] == '\n' : (at_ == 0 || line_start_);
    return at_line_start ? data.substr(0, end) : data;
  }

  void EmitText(std::string_view data) {
    if (!data.empty()) tokens_.push_back({TokenKind::kText, std::string(data), line_});
  }

  void CountLines(std::string_view data) {
    line_ += static_cast<int>(std::count(data.begin(), data.end(), '\n'));
  }

  // After a tag's end: trim_blocks drops one newline, "-" drops all whitespace.
  void AfterTag(bool strip, bool trim_newline) {
    line_start_ = false;
    if (strip) {
      while (at_ < source_.size() && IsSpace(source_[at_])) {
        if (source_[at_] == '\n') ++line_;
        ++at_;
      }
    } else if (trim_newline && at_ < source_.size() && source_[at_] == '\n') {
      ++line_;
      ++at_;
      line_start_ = true;
    }
  }

  Status SkipComment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == std::string_view::npos) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("chat template line {}: comment is not closed", line_));
    }
    CountLines(source_.substr(at_, end - at_));
    const bool strip = source_[end - 1] == '-';
    const bool keep = source_[end - 1] == '+';
    at_ = end + 2;
    AfterTag(strip, !keep);
    return {};
  }

  Status LexTag(bool is_variable) {
    const int opened = line_;
    tokens_.push_back(
        {is_variable ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, is_variable ? "{{" : "{%", line_});
    at_ += 2;
    if (at_ < source_.size() && (source_[at_] == '-' || (source_[at_] == '+' && !is_variable))) ++at_;
    const size_t first = tokens_.size();
    const std::string_view close = is_variable ? "}}" : "%}";
    int depth = 0;  // inside brackets "}}" may be two dict ends
    for (;;) {
      while (at_ < source_.size() && IsSpace(source_[at_])) {
        if (source_[at_] == '\n') ++line_;
        ++at_;
      }
      if (at_ >= source_.size()) {
        return Fail(ErrorCode::kInvalidArgument, fmt::format("chat template line {}: {} is not closed",
                                                             opened, is_variable ? "{{" : "{%"));
      }
      const std::string_view rest = source_.substr(at_);
      if (depth == 0) {
        const bool strip = rest.starts_with('-') && rest.substr(1).starts_with(close);
        const bool keep = !is_variable && rest.starts_with('+') && rest.substr(1).starts_with(close);
        if (strip || keep || rest.starts_with(close)) {
          at_ += close.size() + (strip || keep ? 1 : 0);
          tokens_.push_back(
              {is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, std::string(close), line_});
          if (!is_variable && tokens_.size() == first + 2 && tokens_[first].text == "raw")
            return LexRaw(strip);
          AfterTag(strip, !is_variable && !keep);
          return {};
        }
      }
      ATTEST_RETURN_IF_ERROR(LexToken(depth));
    }
  }

  // {% raw %} ... {% endraw %}: the three tokens of the tag become one text token.
  Status LexRaw(bool strip) {
    tokens_.resize(tokens_.size() - 3);
    AfterTag(strip, true);
    for (size_t i = at_; (i = source_.find("{%", i)) != std::string_view::npos; i += 2) {
      size_t word = i + 2;
      const bool strip_before = word < source_.size() && source_[word] == '-';
      if (strip_before || (word < source_.size() && source_[word] == '+')) ++word;
      while (word < source_.size() && IsSpace(source_[word])) ++word;
      if (!source_.substr(word).starts_with("endraw")) continue;
      word += 6;
      while (word < source_.size() && IsSpace(source_[word])) ++word;
      const bool strip_after = source_.substr(word).starts_with("-%}");
      if (!strip_after && !source_.substr(word).starts_with("%}")) continue;
      std::string_view data = source_.substr(at_, i - at_);
      std::string_view kept = data;
      if (strip_before) {
        while (!kept.empty() && IsSpace(kept.back())) kept.remove_suffix(1);
      } else {
        kept = StripIndent(data);
      }
      EmitText(kept);
      CountLines(data);
      at_ = word + (strip_after ? 3 : 2);
      AfterTag(strip_after, true);
      return {};
    }
    return Fail(ErrorCode::kInvalidArgument, fmt::format("chat template line {}: raw is not closed", line_));
  }

  Status LexToken(int& depth) {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      const size_t begin = at_;
      while (at_ < source_.size() && (IsNameStart(source_[at_]) || IsDigit(source_[at_]))) ++at_;
      tokens_.push_back({TokenKind::kName, std::string(source_.substr(begin, at_ - begin)), line_});
      return {};
    }
    if (IsDigit(c)) return LexNumber();
    if (c == '\'' || c == '"') return LexString(c);
    static constexpr std::array<std::string_view, 30> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=",
        "(",  ")",  "[",  "]",  "{",  "}",  ",", ":", ".", "|", ";", "&", "^", "@", "!"};
    for (const std::string_view op : kOperators) {
      if (!source_.substr(at_).starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") ++depth;
      if (op == ")" || op == "]" || op == "}") depth = std::max(0, depth - 1);
      tokens_.push_back({TokenKind::kOperator, std::string(op), line_});
      at_ += op.size();
      return {};
    }
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("chat template line {}: unexpected character '{}'", line_, c));
  }

  Status LexNumber() {
    std::string digits;
    bool is_float = false;
    while (at_ < source_.size()) {
      const char c = source_[at_];
      const char next = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
      if (IsDigit(c)) {
        digits += c;
      } else if (c == '.' && !is_float && IsDigit(next)) {
        is_float = true;
        digits += c;
      } else if ((c == 'e' || c == 'E') &&
                 (IsDigit(next) ||
                  ((next == '-' || next == '+') && at_ + 2 < source_.size() && IsDigit(source_[at_ + 2])))) {
        is_float = true;
        digits += c;
        digits += next;
        ++at_;
      } else if (c != '_') {
        break;
      }
      ++at_;
    }
    tokens_.push_back({is_float ? TokenKind::kFloat : TokenKind::kInteger, digits, line_});
    return {};
  }

  Status LexString(char quote) {
    const int opened = line_;
    std::string value;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      char c = source_[at_];
      if (c == '\n') ++line_;
      if (c != '\\' || at_ + 1 >= source_.size()) {
        value += c;
        continue;
      }
      c = source_[++at_];
      switch (c) {
        case 'n':
          value += '\n';
          break;
        case 't':
          value += '\t';
          break;
        case 'r':
          value += '\r';
          break;
        case 'b':
          value += '\b';
          break;
        case 'f':
          value += '\f';
          break;
        case '0':
          value += '\0';
          break;
        case '\\':
        case '\'':
        case '"':
          value += c;
          break;
        case '\n':
          ++line_;
          break;  // a continued line
        case 'x':
        case 'u':
        case 'U': {
          const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
          const std::string hex(source_.substr(at_ + 1, count));
          if (hex.size() != count || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
            return Fail(ErrorCode::kInvalidArgument,
                        fmt::format("chat template line {}: bad \\{} escape", line_, c));
          }
          const auto code_point = static_cast<char32_t>(std::stoul(hex, nullptr, 16));
          if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
            return Fail(ErrorCode::kInvalidArgument,
                        fmt::format("chat template line {}: \\{}{} is no character", line_, c, hex));
          }
          AppendUtf8(code_point, value);
          at_ += count;
          break;
        }
        default:
          value += '\\';
          value += c;
      }
    }
    if (at_ >= source_.size()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("chat template line {}: string is not closed", opened));
    }
    ++at_;
    tokens_.push_back({TokenKind::kString, std::move(value), opened});
    return {};
  }

  std::string text_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // the position at_ starts a line although the newline was already eaten
  std::vector<Token> tokens_;
};

}  // namespace

Expected<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace attest::jinja
