// Template source to tokens, with Jinja's whitespace rules (trim_blocks and lstrip_blocks on).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace attest::jinja {

enum class TokenKind {
  kText,           // template data, whitespace rules applied
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,   // text holds the unescaped value
  kInteger,  // text holds the digits
  kFloat,
  kOperator,  // text holds the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// kInvalidArgument: an unclosed tag, a bad string or an unknown character, with its line.
[[nodiscard]] Expected<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace attest::jinja
