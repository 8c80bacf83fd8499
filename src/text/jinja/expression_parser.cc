#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <cstdlib>

#include "text/jinja/builtins.h"

namespace attest::jinja {
namespace {

ExprPtr MakeLiteral(int line, Value value) {
  ExprPtr expr = MakeExpr(ExprKind::kLiteral, line);
  expr->literal = std::move(value);
  return expr;
}

}  // namespace

std::unexpected<Error> ExpressionParser::Unexpected(std::string_view wanted) const {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("chat template line {}: found '{}', expected {}",
                                                       Current().line, Current().text, wanted));
}

std::unexpected<Error> ExpressionParser::Unsupported(int line, std::string_view construct) const {
  return Fail(ErrorCode::kUnsupported,
              fmt::format("chat template line {}: {} is not supported", line, construct));
}

Status ExpressionParser::ExpectOp(std::string_view op) {
  if (!TakeOp(op)) return Unexpected(fmt::format("'{}'", op));
  return {};
}

Status ExpressionParser::ExpectBlockEnd() {
  if (!At(TokenKind::kBlockEnd)) return Unexpected("'%}'");
  ++at_;
  return {};
}

Expected<std::string> ExpressionParser::ExpectName() {
  if (!At(TokenKind::kName)) return Unexpected("a name");
  return tokens_[at_++].text;
}

std::unexpected<Error> ExpressionParser::TooDeep(int limit) const {
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("chat template line {}: nested deeper than {}", Current().line, limit));
}

Status ExpressionParser::CheckChain(int links, Expr& left) const {
  if (links > kMaxChain) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("chat template line {}: more than {} operators in one row", Current().line, kMaxChain));
  }
  if (Measure(left) > kMaxTree) return TooDeep(kMaxTree);
  return {};
}

// Few parts are not measured yet, since rows are at each of their links.
int ExpressionParser::Measure(Expr& expr) {
  if (expr.depth > 0) return expr.depth;
  int deepest = 0;
  for (const ExprPtr& part : expr.args) {
    if (part != nullptr) deepest = std::max(deepest, Measure(*part));
  }
  for (const auto& [name, part] : expr.kwargs) deepest = std::max(deepest, Measure(*part));
  return expr.depth = deepest + 1;
}

Status ExpressionParser::CheckDepth() const {
  if (depth_ <= kMaxDepth) return {};
  return TooDeep(kMaxDepth);
}

Expected<ExprPtr> ExpressionParser::ParseTuple(bool with_condition) {
  const int line = Current().line;
  ATTEST_ASSIGN_OR_RETURN(ExprPtr first, with_condition ? ParseExpr() : ParseOr());
  if (!AtOp(",")) return first;
  ExprPtr tuple = MakeExpr(ExprKind::kList, line);
  tuple->args.push_back(std::move(first));
  while (TakeOp(",")) {
    if (At(TokenKind::kBlockEnd) || At(TokenKind::kVariableEnd) || AtOp(")")) break;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr next, with_condition ? ParseExpr() : ParseOr());
    tuple->args.push_back(std::move(next));
  }
  return tuple;
}

Expected<ExprPtr> ExpressionParser::ParseExpr() {
  const DepthGuard guard(depth_);
  ATTEST_RETURN_IF_ERROR(CheckDepth());
  ATTEST_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  for (int links = 1; AtName("if"); ++links) {
    ATTEST_RETURN_IF_ERROR(CheckChain(links, *value));
    ExprPtr conditional = MakeExpr(ExprKind::kConditional, Current().line);
    ++at_;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (TakeName("else")) {
      ATTEST_ASSIGN_OR_RETURN(otherwise, ParseExpr());
    }
    conditional->args.push_back(std::move(value));
    conditional->args.push_back(std::move(condition));
    conditional->args.push_back(std::move(otherwise));
    value = std::move(conditional);
  }
  return value;
}

ExprPtr ExpressionParser::Binary(int line, std::string op, ExprPtr left, ExprPtr right) {
  ExprPtr expr = MakeExpr(ExprKind::kBinary, line, std::move(op));
  expr->args.push_back(std::move(left));
  expr->args.push_back(std::move(right));
  return expr;
}

Expected<ExprPtr> ExpressionParser::ParseOr() {
  ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  for (int links = 1; AtName("or"); ++links) {
    ATTEST_RETURN_IF_ERROR(CheckChain(links, *left));
    const int line = tokens_[at_++].line;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    left = Binary(line, "or", std::move(left), std::move(right));
  }
  return left;
}

Expected<ExprPtr> ExpressionParser::ParseAnd() {
  ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  for (int links = 1; AtName("and"); ++links) {
    ATTEST_RETURN_IF_ERROR(CheckChain(links, *left));
    const int line = tokens_[at_++].line;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    left = Binary(line, "and", std::move(left), std::move(right));
  }
  return left;
}

Expected<ExprPtr> ExpressionParser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const DepthGuard guard(depth_);
  ATTEST_RETURN_IF_ERROR(CheckDepth());
  ExprPtr expr = MakeExpr(ExprKind::kUnary, Current().line, "not");
  ++at_;
  ATTEST_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  expr->args.push_back(std::move(operand));
  return expr;
}

Expected<ExprPtr> ExpressionParser::ParseCompare() {
  ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseLevel(0));
  ExprPtr compare;
  for (;;) {
    std::string op;
    const int line = Current().line;
    if (At(TokenKind::kOperator) &&
        (Current().text == "==" || Current().text == "!=" || Current().text == "<" || Current().text == ">" ||
         Current().text == "<=" || Current().text == ">=")) {
      op = tokens_[at_++].text;
    } else if (TakeName("in")) {
      op = "in";
    } else if (AtName("not") && Peek().kind == TokenKind::kName && Peek().text == "in") {
      at_ += 2;
      op = "not in";
    } else {
      return compare ? std::move(compare) : std::move(left);
    }
    if (!compare) {
      compare = MakeExpr(ExprKind::kCompare, line);
      compare->args.push_back(std::move(left));
    }
    ATTEST_ASSIGN_OR_RETURN(ExprPtr right, ParseLevel(0));
    compare->args.push_back(std::move(right));
    compare->ops.push_back(std::move(op));
  }
}

Expected<ExprPtr> ExpressionParser::ParseLevel(int level) {
  static const std::vector<std::vector<std::string_view>> kLevels = {
      {"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
  if (level == static_cast<int>(kLevels.size())) return ParseUnary(/*with_filter=*/true);
  ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseLevel(level + 1));
  for (int links = 0;; ++links) {
    ATTEST_RETURN_IF_ERROR(CheckChain(links, *left));
    std::string_view op;
    for (const std::string_view candidate : kLevels[static_cast<size_t>(level)]) {
      if (AtOp(candidate)) op = candidate;
    }
    if (op.empty()) return left;
    const int line = tokens_[at_++].line;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr right, ParseLevel(level + 1));
    left = Binary(line, std::string(op), std::move(left), std::move(right));
  }
}

Expected<ExprPtr> ExpressionParser::ParseUnary(bool with_filter) {
  const DepthGuard guard(depth_);
  ATTEST_RETURN_IF_ERROR(CheckDepth());
  ExprPtr expr;
  if (AtOp("-") || AtOp("+")) {
    expr = MakeExpr(ExprKind::kUnary, Current().line, Current().text);
    ++at_;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(/*with_filter=*/false));
    expr->args.push_back(std::move(operand));
  } else {
    ATTEST_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  ATTEST_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  if (with_filter) return ParseFilters(std::move(expr));
  return expr;
}

Expected<ExprPtr> ExpressionParser::ParsePrimary() {
  const Token token = Current();
  switch (token.kind) {
    case TokenKind::kName:
      ++at_;
      if (token.text == "true" || token.text == "True") return MakeLiteral(token.line, true);
      if (token.text == "false" || token.text == "False") return MakeLiteral(token.line, false);
      if (token.text == "none" || token.text == "None") return MakeLiteral(token.line, None{});
      return MakeExpr(ExprKind::kName, token.line, token.text);
    case TokenKind::kString: {
      std::string text;
      while (At(TokenKind::kString)) text += tokens_[at_++].text;  // adjacent strings join
      return MakeLiteral(token.line, std::move(text));
    }
    case TokenKind::kInteger:
      ++at_;
      if (token.text.size() > 18) return Unsupported(token.line, fmt::format("the integer {}", token.text));
      return MakeLiteral(token.line, static_cast<int64_t>(std::stoll(token.text)));
    case TokenKind::kFloat:
      ++at_;
      return MakeLiteral(token.line, std::strtod(token.text.c_str(), nullptr));
    default:
      break;
  }
  if (TakeOp("(")) {
    if (TakeOp(")")) return MakeExpr(ExprKind::kList, token.line);
    ATTEST_ASSIGN_OR_RETURN(ExprPtr inner, ParseTuple());
    ATTEST_RETURN_IF_ERROR(ExpectOp(")"));
    return inner;
  }
  if (TakeOp("[")) {
    ExprPtr list = MakeExpr(ExprKind::kList, token.line);
    while (!AtOp("]")) {
      ATTEST_ASSIGN_OR_RETURN(ExprPtr item, ParseExpr());
      list->args.push_back(std::move(item));
      if (!TakeOp(",")) break;
    }
    ATTEST_RETURN_IF_ERROR(ExpectOp("]"));
    return list;
  }
  if (TakeOp("{")) {
    ExprPtr dict = MakeExpr(ExprKind::kDict, token.line);
    while (!AtOp("}")) {
      ATTEST_ASSIGN_OR_RETURN(ExprPtr key, ParseExpr());
      ATTEST_RETURN_IF_ERROR(ExpectOp(":"));
      ATTEST_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
      dict->args.push_back(std::move(key));
      dict->args.push_back(std::move(value));
      if (!TakeOp(",")) break;
    }
    ATTEST_RETURN_IF_ERROR(ExpectOp("}"));
    return dict;
  }
  return Unexpected("an expression");
}

Expected<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr expr) {
  for (int links = 0;; ++links) {
    ATTEST_RETURN_IF_ERROR(CheckChain(links, *expr));
    const int line = Current().line;
    if (TakeOp(".")) {
      ExprPtr attribute = MakeExpr(ExprKind::kAttribute, line);
      if (At(TokenKind::kInteger)) {
        attribute->kind = ExprKind::kSubscript;
        attribute->args.push_back(std::move(expr));
        attribute->args.push_back(
            MakeLiteral(line, static_cast<int64_t>(std::stoll(tokens_[at_++].text.substr(0, 18)))));
      } else {
        ATTEST_ASSIGN_OR_RETURN(attribute->name, ExpectName());
        attribute->args.push_back(std::move(expr));
      }
      expr = std::move(attribute);
    } else if (TakeOp("[")) {
      ATTEST_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr), line));
    } else if (AtOp("(")) {
      ATTEST_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Expected<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object, int line) {
  std::vector<ExprPtr> parts(1);
  int colons = 0;
  while (!AtOp("]")) {
    if (TakeOp(":")) {
      ++colons;
      parts.emplace_back();
      if (colons > 2) return Unexpected("']'");
    } else {
      if (parts.back()) return Unexpected("']'");
      ATTEST_ASSIGN_OR_RETURN(parts.back(), ParseExpr());
    }
  }
  ATTEST_RETURN_IF_ERROR(ExpectOp("]"));
  ExprPtr expr = MakeExpr(colons > 0 ? ExprKind::kSlice : ExprKind::kSubscript, line);
  expr->args.push_back(std::move(object));
  if (colons == 0 && !parts[0]) return Unexpected("an index");
  if (colons > 0) parts.resize(3);
  for (ExprPtr& part : parts) expr->args.push_back(std::move(part));
  return expr;
}

Status ExpressionParser::ParseArguments(Expr& expr) {
  ATTEST_RETURN_IF_ERROR(ExpectOp("("));
  while (!AtOp(")")) {
    if (AtOp("*") || AtOp("**"))
      return Unsupported(Current().line, "unpacking arguments with " + Current().text);
    if (At(TokenKind::kName) && Peek().kind == TokenKind::kOperator && Peek().text == "=") {
      std::string name = Current().text;
      at_ += 2;
      ATTEST_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
      expr.kwargs.emplace_back(std::move(name), std::move(value));
    } else {
      if (!expr.kwargs.empty()) return Unexpected("a named argument");
      ATTEST_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
      expr.args.push_back(std::move(value));
    }
    if (!TakeOp(",")) break;
  }
  return ExpectOp(")");
}

Expected<ExprPtr> ExpressionParser::ParseCall(ExprPtr callee) {
  if (callee->kind == ExprKind::kAttribute && !IsKnownMethod(callee->name)) {
    return Unsupported(callee->line, fmt::format("the method .{}()", callee->name));
  }
  ExprPtr call = MakeExpr(ExprKind::kCall, Current().line);
  call->args.push_back(std::move(callee));
  ATTEST_RETURN_IF_ERROR(ParseArguments(*call));
  return call;
}

Expected<ExprPtr> ExpressionParser::ParseFilter(ExprPtr input) {
  ExprPtr filter = MakeExpr(ExprKind::kFilter, Current().line);
  ATTEST_ASSIGN_OR_RETURN(filter->name, ExpectName());
  if (!IsKnownFilter(filter->name))
    return Unsupported(filter->line, fmt::format("the filter '{}'", filter->name));
  filter->args.push_back(std::move(input));
  if (AtOp("(")) ATTEST_RETURN_IF_ERROR(ParseArguments(*filter));
  return filter;
}

Expected<ExprPtr> ExpressionParser::ParseFilters(ExprPtr expr) {
  for (int links = 0;; ++links) {
    ATTEST_RETURN_IF_ERROR(CheckChain(links, *expr));
    if (TakeOp("|")) {
      ATTEST_ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
    } else if (AtName("is")) {
      ATTEST_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (AtOp("(")) {
      ATTEST_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Expected<ExprPtr> ExpressionParser::ParseTest(ExprPtr input) {
  const int line = tokens_[at_++].line;
  const bool negated = TakeName("not");
  ExprPtr test = MakeExpr(ExprKind::kTest, line);
  ATTEST_ASSIGN_OR_RETURN(test->name, ExpectName());
  if (!IsKnownTest(test->name)) return Unsupported(line, fmt::format("the test '{}'", test->name));
  test->args.push_back(std::move(input));
  const bool has_argument = At(TokenKind::kName) ? !AtAnyName({"else", "or", "and", "is", "if", "in", "not"})
                                                 : At(TokenKind::kString) || At(TokenKind::kInteger) ||
                                                       At(TokenKind::kFloat) || AtOp("[") || AtOp("{");
  if (AtOp("(")) {
    ATTEST_RETURN_IF_ERROR(ParseArguments(*test));
  } else if (has_argument) {
    ATTEST_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    ATTEST_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->args.push_back(std::move(argument));
  }
  if (!negated) return test;
  ExprPtr inverse = MakeExpr(ExprKind::kUnary, line, "not");
  inverse->args.push_back(std::move(test));
  return inverse;
}

}  // namespace attest::jinja
