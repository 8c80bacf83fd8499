#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <initializer_list>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"

namespace attest::jinja {
namespace {

constexpr int kMaxDepth =
    200;  // nested expressions or blocks: a guard for the stack, real templates stay below 20

ExprPtr MakeExpr(ExprKind kind, int line, std::string name = {}) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->name = std::move(name);
  return expr;
}

ExprPtr MakeLiteral(int line, Value value) {
  ExprPtr expr = MakeExpr(ExprKind::kLiteral, line);
  expr->literal = std::move(value);
  return expr;
}

NodePtr MakeNode(NodeKind kind, int line) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  return node;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Expected<Body> Run() {
    ATTEST_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    if (!At(TokenKind::kEnd)) return Unexpected("the end of the template");
    return body;
  }

 private:
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

  std::unexpected<Error> Unexpected(std::string_view wanted) const {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("chat template line {}: found '{}', expected {}",
                                                         Current().line, Current().text, wanted));
  }
  std::unexpected<Error> Unsupported(int line, std::string_view construct) const {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("chat template line {}: {} is not supported", line, construct));
  }
  Status ExpectOp(std::string_view op) {
    if (!TakeOp(op)) return Unexpected(fmt::format("'{}'", op));
    return {};
  }
  Status ExpectBlockEnd() {
    if (!At(TokenKind::kBlockEnd)) return Unexpected("'%}'");
    ++at_;
    return {};
  }
  Expected<std::string> ExpectName() {
    if (!At(TokenKind::kName)) return Unexpected("a name");
    return tokens_[at_++].text;
  }

  struct DepthGuard {
    explicit DepthGuard(int& depth) : depth_(++depth) {}
    ~DepthGuard() { --depth_; }
    int& depth_;
  };
  Status CheckDepth() const {
    if (depth_ <= kMaxDepth) return {};
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("chat template line {}: nested deeper than {}", Current().line, kMaxDepth));
  }

  // Reads until a block tag whose name is in `ends`; that tag's "{%" and name are left for the caller.
  Expected<Body> ParseBody(std::initializer_list<std::string_view> ends) {
    const DepthGuard guard(depth_);
    ATTEST_RETURN_IF_ERROR(CheckDepth());
    Body body;
    while (!At(TokenKind::kEnd)) {
      const int line = Current().line;
      if (At(TokenKind::kText)) {
        NodePtr node = MakeNode(NodeKind::kText, line);
        node->text = Current().text;
        body.push_back(std::move(node));
        ++at_;
      } else if (At(TokenKind::kVariableBegin)) {
        ++at_;
        NodePtr node = MakeNode(NodeKind::kOutput, line);
        ATTEST_ASSIGN_OR_RETURN(node->expr, ParseTuple());
        if (!At(TokenKind::kVariableEnd)) return Unexpected("'}}'");
        ++at_;
        body.push_back(std::move(node));
      } else {
        if (Peek().kind != TokenKind::kName) {
          ++at_;
          return Unexpected("a tag name");
        }
        for (const std::string_view end : ends) {
          if (Peek().text == end) return body;
        }
        ++at_;
        ATTEST_ASSIGN_OR_RETURN(NodePtr node, ParseStatement());
        body.push_back(std::move(node));
      }
    }
    return body;
  }

  // After ParseBody: "{% endX %}".
  Status ExpectEnd(std::string_view name) {
    if (!At(TokenKind::kBlockBegin) || Peek().text != name)
      return Unexpected(fmt::format("{{% {} %}}", name));
    at_ += 2;
    return ExpectBlockEnd();
  }

  Expected<NodePtr> ParseStatement() {
    const int line = Current().line;
    ATTEST_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (name == "if") return ParseIf(line);
    if (name == "for") return ParseFor(line);
    if (name == "set") return ParseSet(line);
    if (name == "macro") return ParseMacro(line);
    if (name == "call") return ParseCallBlock(line);
    if (name == "filter") return ParseFilterBlock(line);
    if (name == "with") return ParseWith(line);
    if (name == "generation") {  // marks assistant text for training; output is unchanged
      NodePtr node = MakeNode(NodeKind::kScope, line);
      ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
      ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"endgeneration"}));
      ATTEST_RETURN_IF_ERROR(ExpectEnd("endgeneration"));
      return node;
    }
    if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) {
        return Fail(ErrorCode::kInvalidArgument,
                    fmt::format("chat template line {}: {} outside a loop", line, name));
      }
      ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
      return MakeNode(name == "break" ? NodeKind::kBreak : NodeKind::kContinue, line);
    }
    return Unsupported(line, fmt::format("the tag '{}'", name));
  }

  Expected<NodePtr> ParseIf(int line) {
    NodePtr node = MakeNode(NodeKind::kIf, line);
    ATTEST_ASSIGN_OR_RETURN(node->expr, ParseTuple());
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"elif", "else", "endif"}));
    if (!At(TokenKind::kBlockBegin)) return Unexpected("{% endif %}");
    if (Peek().text == "elif") {
      at_ += 2;
      const DepthGuard guard(depth_);
      ATTEST_RETURN_IF_ERROR(CheckDepth());
      ATTEST_ASSIGN_OR_RETURN(NodePtr branch, ParseIf(Current().line));
      node->otherwise.push_back(std::move(branch));
      return node;
    }
    if (Peek().text == "else") {
      at_ += 2;
      ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
      ATTEST_ASSIGN_OR_RETURN(node->otherwise, ParseBody({"endif"}));
    }
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endif"));
    return node;
  }

  // "a", "a, b" or "(a, b)".
  Expected<std::vector<std::string>> ParseTargets() {
    std::vector<std::string> targets;
    const bool bracketed = TakeOp("(");
    do {
      ATTEST_ASSIGN_OR_RETURN(std::string name, ExpectName());
      targets.push_back(std::move(name));
    } while (TakeOp(","));
    if (bracketed) ATTEST_RETURN_IF_ERROR(ExpectOp(")"));
    return targets;
  }

  Expected<NodePtr> ParseFor(int line) {
    NodePtr node = MakeNode(NodeKind::kFor, line);
    ATTEST_ASSIGN_OR_RETURN(node->targets, ParseTargets());
    if (!TakeName("in")) return Unexpected("'in'");
    ATTEST_ASSIGN_OR_RETURN(node->expr, ParseTuple(/*with_condition=*/false));
    if (TakeName("if")) {
      ATTEST_ASSIGN_OR_RETURN(node->condition, ParseExpr());
    }
    if (AtName("recursive")) return Unsupported(line, "a recursive for loop");
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    ++loop_depth_;
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"else", "endfor"}));
    --loop_depth_;
    if (At(TokenKind::kBlockBegin) && Peek().text == "else") {
      at_ += 2;
      ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
      ATTEST_ASSIGN_OR_RETURN(node->otherwise, ParseBody({"endfor"}));
    }
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endfor"));
    return node;
  }

  Expected<NodePtr> ParseSet(int line) {
    NodePtr node = MakeNode(NodeKind::kSet, line);
    if (At(TokenKind::kName) && Peek().kind == TokenKind::kOperator && Peek().text == ".") {
      node->targets.push_back(Current().text);
      at_ += 2;
      ATTEST_ASSIGN_OR_RETURN(node->field, ExpectName());
    } else {
      ATTEST_ASSIGN_OR_RETURN(node->targets, ParseTargets());
    }
    if (TakeOp("=")) {
      ATTEST_ASSIGN_OR_RETURN(node->expr, ParseTuple());
      ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
      return node;
    }
    if (node->targets.size() != 1) return Unexpected("'='");
    node->kind = NodeKind::kSetBlock;
    if (AtOp("|")) {
      ATTEST_ASSIGN_OR_RETURN(node->expr, ParseFilters(MakeExpr(ExprKind::kName, line, kBlockValue)));
    }
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"endset"}));
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endset"));
    return node;
  }

  Status ParseParameters(Node& node) {
    while (!AtOp(")")) {
      MacroParameter parameter;
      ATTEST_ASSIGN_OR_RETURN(parameter.name, ExpectName());
      if (TakeOp("=")) {
        ATTEST_ASSIGN_OR_RETURN(parameter.fallback, ParseExpr());
      }
      node.parameters.push_back(std::move(parameter));
      if (!TakeOp(",")) break;
    }
    return ExpectOp(")");
  }

  Expected<NodePtr> ParseMacro(int line) {
    NodePtr node = MakeNode(NodeKind::kMacro, line);
    ATTEST_ASSIGN_OR_RETURN(node->text, ExpectName());
    ATTEST_RETURN_IF_ERROR(ExpectOp("("));
    ATTEST_RETURN_IF_ERROR(ParseParameters(*node));
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    const int outer_loops = std::exchange(loop_depth_, 0);
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"endmacro"}));
    loop_depth_ = outer_loops;
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endmacro"));
    return node;
  }

  Expected<NodePtr> ParseCallBlock(int line) {
    NodePtr node = MakeNode(NodeKind::kCallBlock, line);
    if (TakeOp("(")) ATTEST_RETURN_IF_ERROR(ParseParameters(*node));
    ATTEST_ASSIGN_OR_RETURN(node->expr, ParseExpr());
    if (node->expr->kind != ExprKind::kCall) return Unexpected("a macro call");
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    const int outer_loops = std::exchange(loop_depth_, 0);
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"endcall"}));
    loop_depth_ = outer_loops;
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endcall"));
    return node;
  }

  Expected<NodePtr> ParseFilterBlock(int line) {
    NodePtr node = MakeNode(NodeKind::kFilterBlock, line);
    ATTEST_ASSIGN_OR_RETURN(node->expr, ParseFilter(MakeExpr(ExprKind::kName, line, kBlockValue)));
    ATTEST_ASSIGN_OR_RETURN(node->expr, ParseFilters(std::move(node->expr)));
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"endfilter"}));
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endfilter"));
    return node;
  }

  Expected<NodePtr> ParseWith(int line) {
    NodePtr node = MakeNode(NodeKind::kScope, line);
    while (At(TokenKind::kName)) {
      ATTEST_ASSIGN_OR_RETURN(std::string name, ExpectName());
      ATTEST_RETURN_IF_ERROR(ExpectOp("="));
      ATTEST_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
      node->targets.push_back(std::move(name));
      node->values.push_back(std::move(value));
      if (!TakeOp(",")) break;
    }
    ATTEST_RETURN_IF_ERROR(ExpectBlockEnd());
    ATTEST_ASSIGN_OR_RETURN(node->body, ParseBody({"endwith"}));
    ATTEST_RETURN_IF_ERROR(ExpectEnd("endwith"));
    return node;
  }

  // One expression, or "a, b" as a list.
  Expected<ExprPtr> ParseTuple(bool with_condition = true) {
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

  Expected<ExprPtr> ParseExpr() {
    const DepthGuard guard(depth_);
    ATTEST_RETURN_IF_ERROR(CheckDepth());
    ATTEST_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
    while (AtName("if")) {
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

  static ExprPtr Binary(int line, std::string op, ExprPtr left, ExprPtr right) {
    ExprPtr expr = MakeExpr(ExprKind::kBinary, line, std::move(op));
    expr->args.push_back(std::move(left));
    expr->args.push_back(std::move(right));
    return expr;
  }

  Expected<ExprPtr> ParseOr() {
    ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
    while (AtName("or")) {
      const int line = tokens_[at_++].line;
      ATTEST_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
      left = Binary(line, "or", std::move(left), std::move(right));
    }
    return left;
  }

  Expected<ExprPtr> ParseAnd() {
    ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
    while (AtName("and")) {
      const int line = tokens_[at_++].line;
      ATTEST_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
      left = Binary(line, "and", std::move(left), std::move(right));
    }
    return left;
  }

  Expected<ExprPtr> ParseNot() {
    if (!AtName("not")) return ParseCompare();
    const DepthGuard guard(depth_);
    ATTEST_RETURN_IF_ERROR(CheckDepth());
    ExprPtr expr = MakeExpr(ExprKind::kUnary, Current().line, "not");
    ++at_;
    ATTEST_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
    expr->args.push_back(std::move(operand));
    return expr;
  }

  Expected<ExprPtr> ParseCompare() {
    ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseLevel(0));
    ExprPtr compare;
    for (;;) {
      std::string op;
      const int line = Current().line;
      if (At(TokenKind::kOperator) &&
          (Current().text == "==" || Current().text == "!=" || Current().text == "<" ||
           Current().text == ">" || Current().text == "<=" || Current().text == ">=")) {
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

  // Binary operators from loosest to tightest; all associate to the left.
  Expected<ExprPtr> ParseLevel(int level) {
    static const std::vector<std::vector<std::string_view>> kLevels = {
        {"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == static_cast<int>(kLevels.size())) return ParseUnary(/*with_filter=*/true);
    ATTEST_ASSIGN_OR_RETURN(ExprPtr left, ParseLevel(level + 1));
    for (;;) {
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

  Expected<ExprPtr> ParseUnary(bool with_filter) {
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

  Expected<ExprPtr> ParsePrimary() {
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

  Expected<ExprPtr> ParsePostfix(ExprPtr expr) {
    for (;;) {
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

  Expected<ExprPtr> ParseSubscript(ExprPtr object, int line) {
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

  // "(" args ")" appended to `expr`'s args and kwargs.
  Status ParseArguments(Expr& expr) {
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

  Expected<ExprPtr> ParseCall(ExprPtr callee) {
    if (callee->kind == ExprKind::kAttribute && !IsKnownMethod(callee->name)) {
      return Unsupported(callee->line, fmt::format("the method .{}()", callee->name));
    }
    ExprPtr call = MakeExpr(ExprKind::kCall, Current().line);
    call->args.push_back(std::move(callee));
    ATTEST_RETURN_IF_ERROR(ParseArguments(*call));
    return call;
  }

  // After "|": name and arguments, applied to `input`.
  Expected<ExprPtr> ParseFilter(ExprPtr input) {
    ExprPtr filter = MakeExpr(ExprKind::kFilter, Current().line);
    ATTEST_ASSIGN_OR_RETURN(filter->name, ExpectName());
    if (!IsKnownFilter(filter->name))
      return Unsupported(filter->line, fmt::format("the filter '{}'", filter->name));
    filter->args.push_back(std::move(input));
    if (AtOp("(")) ATTEST_RETURN_IF_ERROR(ParseArguments(*filter));
    return filter;
  }

  // Any number of "| filter" and "is test".
  Expected<ExprPtr> ParseFilters(ExprPtr expr) {
    for (;;) {
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

  Expected<ExprPtr> ParseTest(ExprPtr input) {
    const int line = tokens_[at_++].line;
    const bool negated = TakeName("not");
    ExprPtr test = MakeExpr(ExprKind::kTest, line);
    ATTEST_ASSIGN_OR_RETURN(test->name, ExpectName());
    if (!IsKnownTest(test->name)) return Unsupported(line, fmt::format("the test '{}'", test->name));
    test->args.push_back(std::move(input));
    const bool has_argument = At(TokenKind::kName)
                                  ? !AtAnyName({"else", "or", "and", "is", "if", "in", "not"})
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Expected<Body> Parse(std::string_view source) {
  ATTEST_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace attest::jinja
