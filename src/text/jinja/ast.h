// A parsed template: expressions and statements. Immutable after parsing; each node knows its line.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace attest::jinja {

struct Expr;
struct Node;
using ExprPtr = std::unique_ptr<Expr>;
using NodePtr = std::unique_ptr<Node>;
using Body = std::vector<NodePtr>;

enum class ExprKind {
  kLiteral,      // literal
  kName,         // name
  kList,         // args (also a tuple)
  kDict,         // args: key, value, key, value, ...
  kAttribute,    // args[0].name
  kSubscript,    // args[0][args[1]]
  kSlice,        // args[0][args[1]:args[2]:args[3]], absent parts are nullptr
  kCall,         // args[0](args[1..], kwargs)
  kFilter,       // args[0] | name(args[1..], kwargs)
  kTest,         // args[0] is name(args[1..])
  kUnary,        // name: "-", "+", "not"
  kBinary,       // name: operator; "and" and "or" stop early
  kCompare,      // args[0] ops[0] args[1] ops[1] args[2] ...
  kConditional,  // args[0] if args[1] else args[2] (nullptr: undefined)
};

struct Expr {
  ExprKind kind = ExprKind::kLiteral;
  int line = 0;
  int depth = 0;  // 1 + the deepest of its parts; 0 until the parser has measured it
  std::string name;
  Value literal;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> kwargs;
  std::vector<std::string> ops;
};

[[nodiscard]] inline ExprPtr MakeExpr(ExprKind kind, int line, std::string name = {}) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->name = std::move(name);
  return expr;
}

enum class NodeKind {
  kText,         // text
  kOutput,       // {{ expr }}
  kIf,           // expr, body, otherwise (an elif is an if in `otherwise`)
  kFor,          // targets in expr [if condition]: body, otherwise
  kSet,          // targets = expr, or name.field = expr
  kSetBlock,     // {% set name %} body {% endset %}, filters applied through `expr` (nullptr: none)
  kMacro,        // text is the name
  kCallBlock,    // {% call(params) expr %} body
  kFilterBlock,  // body through `expr`
  kScope,        // {% with targets = values %} body, {% generation %} body
  kBreak,
  kContinue,
};

struct MacroParameter {
  std::string name;
  ExprPtr fallback;  // nullptr: required (undefined when left out, as in Jinja)
};

struct Node {
  NodeKind kind = NodeKind::kText;
  int line = 0;
  std::string text;
  std::string field;  // of a namespace: {% set ns.field = x %}
  ExprPtr expr;
  ExprPtr condition;
  std::vector<std::string> targets;
  std::vector<ExprPtr> values;
  std::vector<MacroParameter> parameters;
  Body body;
  Body otherwise;
};

}  // namespace attest::jinja
