// The token cursor and the expression half of the parser; statements are in parser.cc.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace attest::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  // Guards of the stack, here and in the interpreter; real templates stay below 20 and 50.
  static constexpr int kMaxDepth = 200;  // nested expressions or blocks
  static constexpr int kMaxChain = 500;  // operators, filters or subscripts in one row
  static constexpr int kMaxTree = 1000;  // of both: a row in brackets may begin another row

  const Token& Current() const { return tokens_[at_]; }
  const Token& Peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool At(TokenKind kind) const { return Current().kind == kind; }
  bool AtOp(std::string_view op) const { return At(TokenKind::kOperator) && Current().text == op; }
  bool AtName(std::string_view name) const { return At(TokenKind::kName) && Current().text == name; }
  bool AtAnyName(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (AtName(name)) return true;
    }
    return false;
  }
  bool TakeOp(std::string_view op) {
    if (!AtOp(op)) return false;
    ++at_;
    return true;
  }
  bool TakeName(std::string_view name) {
    if (!AtName(name)) return false;
    ++at_;
    return true;
  }

  std::unexpected<Error> Unexpected(std::string_view wanted) const;
  std::unexpected<Error> Unsupported(int line, std::string_view construct) const;
  std::unexpected<Error> TooDeep(int limit) const;
  Status ExpectOp(std::string_view op);
  Status ExpectBlockEnd();
  Expected<std::string> ExpectName();

  struct DepthGuard {
    explicit DepthGuard(int& depth) : depth_(++depth) {}
    ~DepthGuard() { --depth_; }
    int& depth_;
  };
  Status CheckDepth() const;
  // `left`: what the row has come to.
  Status CheckChain(int links, Expr& left) const;
  static int Measure(Expr& expr);

  // One expression, or "a, b" as a list.
  Expected<ExprPtr> ParseTuple(bool with_condition = true);
  Expected<ExprPtr> ParseExpr();
  static ExprPtr Binary(int line, std::string op, ExprPtr left, ExprPtr right);
  Expected<ExprPtr> ParseOr();
  Expected<ExprPtr> ParseAnd();
  Expected<ExprPtr> ParseNot();
  Expected<ExprPtr> ParseCompare();
  // Binary operators from loosest to tightest; all associate to the left.
  Expected<ExprPtr> ParseLevel(int level);
  Expected<ExprPtr> ParseUnary(bool with_filter);
  Expected<ExprPtr> ParsePrimary();
  Expected<ExprPtr> ParsePostfix(ExprPtr expr);
  Expected<ExprPtr> ParseSubscript(ExprPtr object, int line);
  // "(" args ")" appended to `expr`'s args and kwargs.
  Status ParseArguments(Expr& expr);
  Expected<ExprPtr> ParseCall(ExprPtr callee);
  // After "|": name and arguments, applied to `input`.
  Expected<ExprPtr> ParseFilter(ExprPtr input);
  // Any number of "| filter" and "is test".
  Expected<ExprPtr> ParseFilters(ExprPtr expr);
  Expected<ExprPtr> ParseTest(ExprPtr input);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace attest::jinja
