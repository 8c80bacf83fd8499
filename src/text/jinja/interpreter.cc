#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "text/jinja/budget.h"
#include "text/jinja/builtins.h"
#include "text/jinja/strings.h"

namespace attest::jinja {

namespace {

// Names of one level: the template, a loop's body, a macro call.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::unordered_map<std::string, Value> names;
};
using ScopePtr = std::shared_ptr<Scope>;

}  // namespace

// A macro, or the body of a call block (then `caller`): code plus the scope it was defined in.
struct Macro {
  const Node* node = nullptr;
  ScopePtr scope;
};

namespace {

enum class Flow { kNext, kBreak, kContinue };

class Interpreter final : public Environment {
 public:
  Interpreter(const Limits& limits, int64_t unix_time)
      : max_call_depth_(limits.max_call_depth), unix_time_(unix_time), budget_(limits) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  // A macro is a name of the scope it holds, and a namespace can hold itself: such rings free nothing by
  // themselves. Every ring passes through a captured scope or a namespace that was assigned to.
  ~Interpreter() override {
    // All are held while each is emptied: a row of them would else be freed one inside of the other.
    std::vector<ScopePtr> scopes;
    std::vector<std::shared_ptr<Dict>> fields;
    for (const auto& weak : captured_) scopes.push_back(weak.lock());
    for (const auto& weak : assigned_) fields.push_back(weak.lock());
    for (const ScopePtr& scope : scopes) {
      if (scope != nullptr) scope->names.clear();
    }
    for (const auto& entries : fields) {
      if (entries != nullptr) entries->clear();
    }
  }

  std::string Render(const Body& body, const Dict& variables) {
    auto root = std::make_shared<Scope>();
    for (const auto& [name, value] : variables) root->names[name] = value;
    std::string out;
    RunBody(body, root, out);
    return out;
  }

  void CheckSize(int64_t bytes, int line) override { budget_.CheckSize(bytes, line); }
  void CountLink(int line) override { budget_.CountLink(line); }
  [[nodiscard]] int64_t unix_time() const override { return unix_time_; }

 private:
  template <class T>
  static void Remember(std::vector<std::weak_ptr<T>>& seen, const std::shared_ptr<T>& object) {
    if (seen.empty() || seen.back().lock() != object) seen.push_back(object);
  }
  std::shared_ptr<const Macro> Capture(const Node& node, const ScopePtr& scope) {
    Remember(captured_, scope);
    return std::make_shared<const Macro>(Macro{&node, scope});
  }

  Flow RunBody(const Body& body, const ScopePtr& scope, std::string& out) {
    for (const NodePtr& node : body) {
      const Flow flow = RunNode(*node, scope, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow RunNode(const Node& node, const ScopePtr& scope, std::string& out) {
    const Budget::Nested nested(budget_, node.line);
    budget_.Step(node.line);
    switch (node.kind) {
      case NodeKind::kText:
        out += node.text;
        break;
      case NodeKind::kOutput:
        out += Str(Evaluate(*node.expr, scope));
        break;
      case NodeKind::kIf:
        return RunBody(Evaluate(*node.expr, scope).truthy() ? node.body : node.otherwise, scope, out);
      case NodeKind::kFor:
        return RunFor(node, scope, out);
      case NodeKind::kSet:
        RunSet(node, Evaluate(*node.expr, scope), scope);
        break;
      case NodeKind::kSetBlock:
        RunSet(node, FilteredBody(node, scope), scope);
        break;
      case NodeKind::kFilterBlock:
        out += Str(FilteredBody(node, scope));
        break;
      case NodeKind::kMacro:
        scope->names[node.text] = Capture(node, scope);
        break;
      case NodeKind::kCallBlock: {
        auto inner = std::make_shared<Scope>(Scope{scope, {}});
        const Value caller = Capture(node, scope);
        out += Str(EvaluateCall(*node.expr, inner, &caller));
        break;
      }
      case NodeKind::kScope: {
        auto inner = std::make_shared<Scope>(Scope{scope, {}});
        for (size_t i = 0; i < node.targets.size(); ++i)
          inner->names[node.targets[i]] = Evaluate(*node.values[i], scope);
        return RunBody(node.body, inner, out);
      }
      case NodeKind::kBreak:
        return Flow::kBreak;
      case NodeKind::kContinue:
        return Flow::kContinue;
    }
    CheckSize(static_cast<int64_t>(out.size()), node.line);
    return Flow::kNext;
  }

  void Assign(const std::vector<std::string>& targets, const Value& value, Scope& scope, int line) {
    if (targets.size() == 1) {
      scope.names[targets[0]] = value;
      return;
    }
    const List items = Iterate(value, line);
    if (items.size() != targets.size()) {
      throw RenderError(line,
                        fmt::format("cannot unpack {} values into {} names", items.size(), targets.size()));
    }
    for (size_t i = 0; i < targets.size(); ++i) scope.names[targets[i]] = items[i];
  }

  void RunSet(const Node& node, Value value, const ScopePtr& scope) {
    if (node.field.empty()) {
      Assign(node.targets, value, *scope, node.line);
      return;
    }
    const Value object = Lookup(node.targets[0], scope);
    const auto* space = object.get_if<Namespace>();
    if (space == nullptr) {
      throw RenderError(node.line, fmt::format("'{}' is a '{}'; only a namespace's fields can be set",
                                               node.targets[0], object.type_name()));
    }
    if (value.extent().holds_objects) budget_.CountLink(node.line);
    Remember(assigned_, space->fields);
    SetKey(*space->fields, node.field, std::move(value));
  }

  Value FilteredBody(const Node& node, const ScopePtr& scope) {
    auto inner = std::make_shared<Scope>(Scope{scope, {}});
    std::string text;
    RunBody(node.body, inner, text);
    if (!node.expr) return text;
    inner->names[kBlockValue] = std::move(text);
    return Evaluate(*node.expr, inner);
  }

  Flow RunFor(const Node& node, const ScopePtr& scope, std::string& out) {
    List items = Iterate(Evaluate(*node.expr, scope), node.line);
    if (node.condition) {
      List kept;
      for (const Value& item : items) {
        auto inner = std::make_shared<Scope>(Scope{scope, {}});
        Assign(node.targets, item, *inner, node.line);
        if (Evaluate(*node.condition, inner).truthy()) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty()) return RunBody(node.otherwise, scope, out);
    const auto count = static_cast<int64_t>(items.size());
    const auto changed = std::make_shared<Dict>();  // what loop.changed() saw last
    for (int64_t i = 0; i < count; ++i) {
      budget_.Step(node.line);
      auto inner = std::make_shared<Scope>(Scope{scope, {}});
      Assign(node.targets, items[static_cast<size_t>(i)], *inner, node.line);
      Dict loop = {{"index", i + 1},
                   {"index0", i},
                   {"revindex", count - i},
                   {"revindex0", count - i - 1},
                   {"first", i == 0},
                   {"last", i == count - 1},
                   {"length", count},
                   {"depth", 1},
                   {"depth0", 0}};
      loop.emplace_back("previtem", i > 0 ? items[static_cast<size_t>(i) - 1] : Value(Undefined{"previtem"}));
      loop.emplace_back("nextitem",
                        i + 1 < count ? items[static_cast<size_t>(i) + 1] : Value(Undefined{"nextitem"}));
      loop.emplace_back(" seen", Namespace{changed});
      inner->names["loop"] = Namespace{std::make_shared<Dict>(std::move(loop))};
      const Flow flow = RunBody(node.body, inner, out);
      CheckSize(static_cast<int64_t>(out.size()), node.line);
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Value Lookup(const std::string& name, const ScopePtr& scope) const {
    for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
      if (const auto found = at->names.find(name); found != at->names.end()) return found->second;
    }
    if (IsGlobalFunction(name)) return GlobalFunction{name};
    return Undefined{name};
  }

  Value Evaluate(const Expr& expr, const ScopePtr& scope) {
    const Budget::Nested nested(budget_, expr.line);
    Value value = EvaluateUncounted(expr, scope);
    const std::string* const text = value.string();
    budget_.Step(expr.line, text == nullptr ? 0 : static_cast<int64_t>(text->size()));
    budget_.CheckExtent(value.extent(), expr.line);
    return value;
  }

  Value EvaluateUncounted(const Expr& expr, const ScopePtr& scope) {
    switch (expr.kind) {
      case ExprKind::kLiteral:
        return expr.literal;
      case ExprKind::kName:
        return Lookup(expr.name, scope);
      case ExprKind::kList: {
        List list;
        for (const ExprPtr& item : expr.args) list.push_back(Evaluate(*item, scope));
        return list;
      }
      case ExprKind::kDict: {
        Dict dict;
        for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
          const Value key = Evaluate(*expr.args[i], scope);
          if (!key.is_string())
            throw RenderError(expr.line,
                              fmt::format("a dict key is a '{}', expected a str", key.type_name()));
          SetKey(dict, *key.string(), Evaluate(*expr.args[i + 1], scope));
        }
        return dict;
      }
      case ExprKind::kAttribute:
        return GetAttribute(Evaluate(*expr.args[0], scope), expr.name, expr.line);
      case ExprKind::kSubscript:
        return GetItem(Evaluate(*expr.args[0], scope), Evaluate(*expr.args[1], scope), expr.line);
      case ExprKind::kSlice:
        return Slice(expr, scope);
      case ExprKind::kCall:
        return EvaluateCall(expr, scope, nullptr);
      case ExprKind::kFilter: {
        const Value input = Evaluate(*expr.args[0], scope);
        if (GoesThroughList(expr.name)) budget_.LookAtItems(input, expr.line);
        return ApplyFilter(expr.name, input, EvaluateArguments(expr, scope), *this);
      }
      case ExprKind::kTest: {
        const Value input = Evaluate(*expr.args[0], scope);
        return ApplyTest(expr.name, input, EvaluateArguments(expr, scope));
      }
      case ExprKind::kUnary:
        return Unary(expr, scope);
      case ExprKind::kBinary:
        return Binary(expr, scope);
      case ExprKind::kCompare:
        return CompareChain(expr, scope);
      case ExprKind::kConditional:
        if (Evaluate(*expr.args[1], scope).truthy()) return Evaluate(*expr.args[0], scope);
        return expr.args[2] ? Evaluate(*expr.args[2], scope)
                            : Value(Undefined{"the value of an if without else"});
    }
    return Undefined{};
  }

  Arguments EvaluateArguments(const Expr& expr, const ScopePtr& scope) {
    Arguments arguments;
    arguments.line = expr.line;
    for (size_t i = 1; i < expr.args.size(); ++i)
      arguments.positional.push_back(Evaluate(*expr.args[i], scope));
    for (const auto& [name, value] : expr.kwargs) arguments.named.emplace_back(name, Evaluate(*value, scope));
    return arguments;
  }

  Value EvaluateCall(const Expr& expr, const ScopePtr& scope, const Value* caller) {
    const Expr& callee_expr = *expr.args[0];
    if (callee_expr.kind == ExprKind::kAttribute) {
      const Value object = Evaluate(*callee_expr.args[0], scope);
      if (HasMethod(object, callee_expr.name)) {
        return CallMethod(object, callee_expr.name, EvaluateArguments(expr, scope), *this);
      }
      if (const auto* space = object.get_if<Namespace>();
          space != nullptr && FindKey(*space->fields, " seen") != nullptr) {
        return CallLoop(*space->fields, callee_expr.name, EvaluateArguments(expr, scope));
      }
      const Value callee = GetAttribute(object, callee_expr.name, callee_expr.line);
      if (!callee.is_callable())
        return CallMethod(object, callee_expr.name, EvaluateArguments(expr, scope), *this);
      return Call(callee, EvaluateArguments(expr, scope), caller);
    }
    const Value callee = Evaluate(callee_expr, scope);
    return Call(callee, EvaluateArguments(expr, scope), caller);
  }

  Value Call(const Value& callee, const Arguments& arguments, const Value* caller) {
    if (const auto* function = callee.get_if<GlobalFunction>())
      return CallGlobal(function->name, arguments, *this);
    if (const auto* method = callee.get_if<BoundMethod>())
      return CallMethod(*method->object, method->name, arguments, *this);
    if (const auto* macro = callee.get_if<std::shared_ptr<const Macro>>())
      return CallMacro(**macro, arguments, caller);
    if (const auto* undefined = callee.get_if<Undefined>())
      throw RenderError(arguments.line, fmt::format("'{}' is undefined", undefined->name));
    throw RenderError(arguments.line, fmt::format("a '{}' cannot be called", callee.type_name()));
  }

  Value CallMacro(const Macro& macro, const Arguments& arguments, const Value* caller) {
    if (call_depth_ >= max_call_depth_) {
      throw RenderError(arguments.line, fmt::format("macros nest deeper than {}", max_call_depth_));
    }
    const std::vector<MacroParameter>& parameters = macro.node->parameters;
    if (arguments.positional.size() > parameters.size()) {
      throw RenderError(arguments.line, fmt::format("macro '{}' takes {} arguments, not {}", macro.node->text,
                                                    parameters.size(), arguments.positional.size()));
    }
    auto scope = std::make_shared<Scope>(Scope{macro.scope, {}});
    for (size_t i = 0; i < parameters.size(); ++i) {
      const MacroParameter& parameter = parameters[i];
      if (const Value* given = arguments.Find(i, parameter.name)) {
        scope->names[parameter.name] = *given;
      } else {
        scope->names[parameter.name] =
            parameter.fallback ? Evaluate(*parameter.fallback, scope) : Value(Undefined{parameter.name});
      }
    }
    for (const auto& [name, value] : arguments.named) {
      const bool known = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const MacroParameter& p) { return p.name == name; });
      if (!known)
        throw RenderError(arguments.line,
                          fmt::format("macro '{}' has no argument '{}'", macro.node->text, name));
    }
    if (caller != nullptr) scope->names["caller"] = *caller;
    std::string out;
    ++call_depth_;
    RunBody(macro.node->body, scope, out);
    --call_depth_;
    return out;
  }

  Value CallLoop(Dict& loop, const std::string& name, const Arguments& arguments) {
    if (name == "cycle" && !arguments.positional.empty()) {
      const auto index = static_cast<size_t>(FindKey(loop, "index0")->integer());
      return arguments.positional[index % arguments.positional.size()];
    }
    if (name == "changed") {
      const std::shared_ptr<Dict>& seen = FindKey(loop, " seen")->get_if<Namespace>()->fields;
      const Value now = arguments.positional;
      const Value* before = FindKey(*seen, "last");
      const bool is_new = before == nullptr || !Equals(*before, now);
      Remember(assigned_, seen);
      SetKey(*seen, "last", now);
      return is_new;
    }
    throw RenderError(arguments.line, fmt::format("loop.{}() cannot be called", name));
  }

  Value Slice(const Expr& expr, const ScopePtr& scope) {
    const Value object = Evaluate(*expr.args[0], scope);
    auto bound = [&](size_t index) -> std::optional<int64_t> {
      if (!expr.args[index]) return std::nullopt;
      const Value value = Evaluate(*expr.args[index], scope);
      if (value.is_none()) return std::nullopt;
      if (!value.is_integer())
        throw RenderError(expr.line,
                          fmt::format("a slice bound is a '{}', expected an int", value.type_name()));
      return value.integer();
    };
    const std::optional<int64_t> begin = bound(1), end = bound(2);
    const int64_t step = bound(3).value_or(1);
    if (step == 0) throw RenderError(expr.line, "slice step is 0");
    if (!object.is_string() && object.list() == nullptr) {
      throw RenderError(expr.line, fmt::format("a '{}' cannot be sliced", object.type_name()));
    }
    budget_.LookAtItems(object, expr.line);
    const int64_t size = Length(object, expr.line);
    auto clamp = [&](std::optional<int64_t> at, int64_t fallback) {
      if (!at) return fallback;
      const int64_t absolute = *at < 0 ? *at + size : *at;
      return step > 0 ? std::clamp<int64_t>(absolute, 0, size) : std::clamp<int64_t>(absolute, -1, size - 1);
    };
    const int64_t first = clamp(begin, step > 0 ? 0 : size - 1);
    const int64_t last = clamp(end, step > 0 ? size : -1);
    if (object.is_string()) return SliceText(*object.string(), first, last, step);
    List out;
    for (int64_t i = first; step > 0 ? i < last : i > last;) {
      out.push_back((*object.list())[static_cast<size_t>(i)]);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return out;
  }

  Value Unary(const Expr& expr, const ScopePtr& scope) {
    const Value operand = Evaluate(*expr.args[0], scope);
    if (expr.name == "not") return !operand.truthy();
    if (!operand.is_number())
      throw RenderError(expr.line, fmt::format("unary {} of a '{}'", expr.name, operand.type_name()));
    if (!operand.is_integer()) return expr.name == "-" ? -operand.number() : operand.number();
    return expr.name == "-" ? Arithmetic("-", Value(0), operand, expr.line) : Value(operand.integer());
  }

  Value CompareChain(const Expr& expr, const ScopePtr& scope) {
    Value left = Evaluate(*expr.args[0], scope);
    for (size_t i = 0; i < expr.ops.size(); ++i) {
      const std::string& op = expr.ops[i];
      Value right = Evaluate(*expr.args[i + 1], scope);
      if (left.list() != nullptr || left.is_mapping()) {
        budget_.Step(expr.line, std::min(left.extent().bytes, right.extent().bytes));
      }
      const bool holds = op == "=="       ? Equals(left, right)
                         : op == "!="     ? !Equals(left, right)
                         : op == "in"     ? Contains(right, left, expr.line)
                         : op == "not in" ? !Contains(right, left, expr.line)
                         : op == "<"      ? Compare(left, right, expr.line) < 0
                         : op == "<="     ? Compare(left, right, expr.line) <= 0
                         : op == ">"      ? Compare(left, right, expr.line) > 0
                                          : Compare(left, right, expr.line) >= 0;
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  Value Binary(const Expr& expr, const ScopePtr& scope) {
    const std::string& op = expr.name;
    Value left = Evaluate(*expr.args[0], scope);
    if (op == "and") return left.truthy() ? Evaluate(*expr.args[1], scope) : left;
    if (op == "or") return left.truthy() ? left : Evaluate(*expr.args[1], scope);
    const Value right = Evaluate(*expr.args[1], scope);
    if (op == "~") {
      std::string text = Str(left) + Str(right);
      CheckSize(static_cast<int64_t>(text.size()), expr.line);
      return text;
    }
    if (left.is_number() && right.is_number()) return Arithmetic(op, left, right, expr.line);
    if (op == "+" && left.is_string() && right.is_string()) {
      std::string text = *left.string() + *right.string();
      CheckSize(static_cast<int64_t>(text.size()), expr.line);
      return text;
    }
    if (op == "+" && left.list() != nullptr && right.list() != nullptr) {
      List joined = *left.list();
      joined.insert(joined.end(), right.list()->begin(), right.list()->end());
      CheckSize(static_cast<int64_t>(joined.size()), expr.line);
      return joined;
    }
    if (op == "*" && left.is_string() && right.is_integer()) {
      const int64_t times = std::max<int64_t>(right.integer(), 0);
      int64_t bytes = 0;
      if (__builtin_mul_overflow(static_cast<int64_t>(left.string()->size()), times, &bytes)) {
        bytes = std::numeric_limits<int64_t>::max();
      }
      CheckSize(bytes, expr.line);
      std::string text;
      for (int64_t i = 0; i < times; ++i) text += *left.string();
      return text;
    }
    for (const Value* side : {&std::as_const(left), &right}) {
      if (const auto* undefined = side->get_if<Undefined>())
        throw RenderError(expr.line, fmt::format("'{}' is undefined", undefined->name));
    }
    throw RenderError(expr.line,
                      fmt::format("'{}' {} '{}' is not defined", left.type_name(), op, right.type_name()));
  }

  const int max_call_depth_;
  const int64_t unix_time_;
  Budget budget_;
  int call_depth_ = 0;
  std::vector<std::weak_ptr<Scope>> captured_;
  std::vector<std::weak_ptr<Dict>> assigned_;
};

}  // namespace

std::string Run(const Body& body, const Dict& variables, int64_t unix_time, const Limits& limits) {
  return Interpreter(limits, unix_time).Render(body, variables);
}

}  // namespace attest::jinja
