#include "text/jinja/parser.h"

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/expression_parser.h"

namespace attest::jinja {
namespace {

NodePtr MakeNode(NodeKind kind, int line) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  return node;
}

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Expected<Body> Run() {
    ATTEST_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    if (!At(TokenKind::kEnd)) return Unexpected("the end of the template");
    return body;
  }

 private:
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

  int loop_depth_ = 0;
};

}  // namespace

Expected<Body> Parse(std::string_view source) {
  ATTEST_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace attest::jinja
