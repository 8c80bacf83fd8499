// Filters and tests.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/escape_markup.h"
#include "text/jinja/builtins.h"
#include "text/jinja/strings.h"

namespace attest::jinja {
namespace {

constexpr std::array<std::string_view, 39> kFilters = {
    "abs",        "attr",    "capitalize", "count",       "d",      "default", "dictsort",   "e",
    "escape",     "first",   "float",      "forceescape", "indent", "int",     "items",      "join",
    "last",       "length",  "list",       "lower",       "map",    "max",     "min",        "reject",
    "rejectattr", "replace", "reverse",    "round",       "safe",   "select",  "selectattr", "sort",
    "string",     "sum",     "title",      "tojson",      "trim",   "unique",  "upper"};
constexpr std::array<std::string_view, 32> kTests = {
    "boolean",  "callable", "defined", "divisibleby", "eq",        "equalto", "even",        "false",
    "filter",   "float",    "ge",      "gt",          "in",        "integer", "iterable",    "le",
    "lower",    "lt",       "mapping", "ne",          "none",      "number",  "odd",         "sameas",
    "sequence", "string",   "test",    "true",        "undefined", "upper",   "greaterthan", "lessthan"};

constexpr std::array<std::string_view, 7> kShallowFilters = {"count", "d",      "default", "first",
                                                             "last",  "length", "safe"};

constexpr int64_t kMaxIndent = 64;  // of tojson

[[noreturn]] void Bad(const Arguments& arguments, const std::string& what) {
  throw RenderError(arguments.line, what);
}

const Value& Require(const Arguments& arguments, size_t index, std::string_view name,
                     std::string_view owner) {
  const Value* value = arguments.Find(index, name);
  if (value == nullptr) Bad(arguments, fmt::format("{} needs the argument '{}'", owner, name));
  return *value;
}

bool Flag(const Arguments& arguments, size_t index, std::string_view name, bool fallback) {
  const Value* value = arguments.Find(index, name);
  return value == nullptr ? fallback : value->truthy();
}

int64_t Integer(const Arguments& arguments, size_t index, std::string_view name, int64_t fallback) {
  const Value* value = arguments.Find(index, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->is_integer())
    Bad(arguments, fmt::format("'{}' is a '{}', expected an int", name, value->type_name()));
  return value->integer();
}

// attribute="a.b" of each item.
Value Dotted(const Value& item, const std::string& path, int line) {
  Value at = item;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, dot - begin);
    const bool is_index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    at = is_index ? GetItem(at, Value(static_cast<int64_t>(std::stoll(part))), line)
                  : GetItem(at, Value(part), line);
    begin = dot + 1;
  }
  return at;
}

Value MapFilter(const Value& input, const Arguments& arguments, Environment& environment) {
  List out;
  if (!input.truthy()) return out;  // as in Jinja: none and false map to nothing
  if (const Value* attribute = arguments.Find(~size_t{0}, "attribute")) {
    const Value* fallback = arguments.Find(~size_t{0}, "default");
    for (const Value& item : Iterate(input, arguments.line)) {
      Value value = Dotted(item, Str(*attribute), arguments.line);
      if (value.is_undefined() && fallback != nullptr) value = *fallback;
      out.push_back(std::move(value));
    }
    return out;
  }
  const std::string name = Str(Require(arguments, 0, "filter", "map"));
  if (!IsKnownFilter(name)) Bad(arguments, fmt::format("the filter '{}' is not supported", name));
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : Iterate(input, arguments.line))
    out.push_back(ApplyFilter(name, item, rest, environment));
  return out;
}

// select, reject, selectattr, rejectattr.
Value SelectFilter(std::string_view name, const Value& input, const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  Arguments rest = arguments;
  std::string attribute, test;
  if (by_attribute) {
    attribute = Str(Require(arguments, 0, "attribute", name));
    rest.positional.erase(rest.positional.begin());
  }
  if (!rest.positional.empty()) {
    test = Str(rest.positional.front());
    if (!IsKnownTest(test)) Bad(arguments, fmt::format("the test '{}' is not supported", test));
    rest.positional.erase(rest.positional.begin());
  }
  List out;
  if (!input.truthy()) return out;  // as in Jinja
  for (const Value& item : Iterate(input, arguments.line)) {
    const Value subject = by_attribute ? Dotted(item, attribute, arguments.line) : item;
    const bool holds = test.empty() ? subject.truthy() : ApplyTest(test, subject, rest);
    if (holds == wanted) out.push_back(item);
  }
  return out;
}

Value SortKey(const Value& item, const Value* attribute, bool case_sensitive, int line) {
  const Value key = attribute == nullptr || attribute->is_none() ? item : Dotted(item, Str(*attribute), line);
  return !case_sensitive && key.is_string() ? Value(MapCase(*key.string(), Case::kLower)) : key;
}

Value SortFilter(const Value& input, const Arguments& arguments) {
  List items = Iterate(input, arguments.line);
  const bool case_sensitive = Flag(arguments, 1, "case_sensitive", false);
  const Value* attribute = arguments.Find(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items)
    keyed.emplace_back(SortKey(item, attribute, case_sensitive, arguments.line), std::move(item));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return Compare(a.first, b.first, arguments.line) < 0;
  });
  List out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  // Python's reverse sort keeps the order of equal items: reverse groups, not the whole.
  if (Flag(arguments, 0, "reverse", false)) {
    std::reverse(out.begin(), out.end());
    auto key_of = [&](const Value& item) { return SortKey(item, attribute, case_sensitive, arguments.line); };
    for (size_t begin = 0; begin < out.size();) {
      size_t end = begin + 1;
      while (end < out.size() && Compare(key_of(out[begin]), key_of(out[end]), arguments.line) == 0) ++end;
      std::reverse(out.begin() + static_cast<std::ptrdiff_t>(begin),
                   out.begin() + static_cast<std::ptrdiff_t>(end));
      begin = end;
    }
  }
  return out;
}

Value DictSort(const Value& input, const Arguments& arguments) {
  if (input.dict() == nullptr)
    Bad(arguments, fmt::format("dictsort needs a dict, not '{}'", input.type_name()));
  const bool case_sensitive = Flag(arguments, 0, "case_sensitive", false);
  const Value* by = arguments.Find(1, "by");
  const bool by_value = by != nullptr && Str(*by) == "value";
  Dict entries = *input.dict();
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    const Value x = SortKey(by_value ? a.second : Value(a.first), nullptr, case_sensitive, arguments.line);
    const Value y = SortKey(by_value ? b.second : Value(b.first), nullptr, case_sensitive, arguments.line);
    return Compare(x, y, arguments.line) < 0;
  });
  if (Flag(arguments, 2, "reverse", false)) std::reverse(entries.begin(), entries.end());
  List out;
  for (auto& [key, value] : entries) out.emplace_back(List{Value(key), std::move(value)});
  return out;
}

Value UniqueFilter(const Value& input, const Arguments& arguments) {
  const bool case_sensitive = Flag(arguments, 0, "case_sensitive", false);
  const Value* attribute = arguments.Find(1, "attribute");
  List out, keys;
  for (const Value& item : Iterate(input, arguments.line)) {
    Value key = SortKey(item, attribute, case_sensitive, arguments.line);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& other) { return Equals(other, key); }))
      continue;
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return out;
}

Value MinMaxFilter(bool largest, const Value& input, const Arguments& arguments) {
  const bool case_sensitive = Flag(arguments, 0, "case_sensitive", false);
  const Value* attribute = arguments.Find(1, "attribute");
  const List items = Iterate(input, arguments.line);
  if (items.empty()) return Undefined{"empty sequence"};
  const Value* best = &items[0];
  for (const Value& item : items) {
    const int order = Compare(SortKey(item, attribute, case_sensitive, arguments.line),
                              SortKey(*best, attribute, case_sensitive, arguments.line), arguments.line);
    if (largest ? order > 0 : order < 0) best = &item;
  }
  return *best;
}

Value SumFilter(const Value& input, const Arguments& arguments) {
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* start = arguments.Find(1, "start");
  Value sum = 0;
  const auto add = [&](const Value& value) {
    if (!value.is_number()) Bad(arguments, fmt::format("sum of a '{}'", value.type_name()));
    sum = Arithmetic("+", sum, value, arguments.line);
  };
  if (start != nullptr) add(*start);
  for (const Value& item : Iterate(input, arguments.line)) {
    add(attribute == nullptr ? item : Dotted(item, Str(*attribute), arguments.line));
  }
  return sum;
}

Value JoinFilter(const Value& input, const Arguments& arguments, Environment& environment) {
  const Value* separator = arguments.Find(0, "d");
  const Value* attribute = arguments.Find(1, "attribute");
  const std::string between = separator == nullptr ? "" : Str(*separator);
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(input, arguments.line)) {
    if (!first) out += between;
    first = false;
    out += Str(attribute == nullptr ? item : Dotted(item, Str(*attribute), arguments.line));
    environment.CheckSize(static_cast<int64_t>(out.size()), arguments.line);
  }
  return out;
}

Value IndentFilter(const Value& input, const Arguments& arguments, Environment& environment) {
  const Value* width = arguments.Find(0, "width");
  const int64_t count = width == nullptr || width->is_string() ? 4 : Integer(arguments, 0, "width", 4);
  environment.CheckSize(count, arguments.line);
  const std::string pad = width != nullptr && width->is_string()
                              ? *width->string()
                              : std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' ');
  const bool first = Flag(arguments, 1, "first", false);
  const bool blank = Flag(arguments, 2, "blank", false);
  const std::string text = Str(input);
  std::string out;
  size_t begin = 0;
  for (bool first_line = true; begin <= text.size(); first_line = false) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (!first_line) out += '\n';
    if ((first_line ? first : true) && (blank || !line.empty())) out += pad;
    out += line;
    begin = end + 1;
    environment.CheckSize(static_cast<int64_t>(out.size()), arguments.line);
  }
  return out;
}

Value RoundFilter(const Value& input, const Arguments& arguments) {
  if (!input.is_number()) Bad(arguments, fmt::format("round of a '{}'", input.type_name()));
  const int64_t precision = Integer(arguments, 0, "precision", 0);
  const Value* method_value = arguments.Find(1, "method");
  const std::string method = method_value == nullptr ? "common" : Str(*method_value);
  const double power = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.number() * power;
  const double rounded = method == "ceil"    ? std::ceil(scaled)
                         : method == "floor" ? std::floor(scaled)
                                             : std::nearbyint(scaled);
  return rounded / power;
}

Value ToInteger(const Value& input, const Arguments& arguments) {
  const Value* fallback = arguments.Find(0, "default");
  const Value otherwise = fallback == nullptr ? Value(0) : *fallback;
  if (input.is_integer()) return input.integer();
  double real = 0;
  if (input.is_number()) {
    real = input.number();
  } else if (input.is_string()) {
    const std::string text = StripChars(*input.string(), nullptr, true, true);
    char* end = nullptr;
    real = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::fabs(real) < 9.2e18)) return otherwise;
  return static_cast<int64_t>(real);
}

Value ToFloatValue(const Value& input, const Arguments& arguments) {
  const Value* fallback = arguments.Find(0, "default");
  if (input.is_number()) return input.number();
  if (input.is_string()) {
    const std::string text = StripChars(*input.string(), nullptr, true, true);
    char* end = nullptr;
    const double real = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0') return real;
  }
  return fallback == nullptr ? Value(0.0) : *fallback;
}

Value FirstOrLast(bool first, const Value& input, const Arguments& arguments) {
  if (Length(input, arguments.line) == 0)
    return Undefined{first ? "first item of an empty sequence" : "last item of an empty sequence"};
  if (const auto* text = input.string()) return first ? FirstCodePoint(*text) : LastCodePoint(*text);
  if (const List* items = input.list()) return first ? items->front() : items->back();
  return first ? input.dict()->front().first : input.dict()->back().first;
}

Value ReplaceFilter(const Value& input, const Arguments& arguments, Environment& environment) {
  return Replaced(Str(input), Str(Require(arguments, 0, "old", "replace")),
                  Str(Require(arguments, 1, "new", "replace")), Integer(arguments, 2, "count", -1),
                  arguments.line, environment);
}

}  // namespace

const Value* Arguments::Find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool IsKnownFilter(std::string_view name) { return Has(kFilters, name); }
bool GoesThroughList(std::string_view filter) { return !Has(kShallowFilters, filter); }
bool IsKnownTest(std::string_view name) { return Has(kTests, name); }

Value ApplyFilter(std::string_view name, const Value& input, const Arguments& arguments,
                  Environment& environment) {
  const int line = arguments.line;
  if (name == "trim") {
    const Value* chars = arguments.Find(0, "chars");
    return StripChars(Str(input), chars == nullptr || chars->is_none() ? nullptr : chars->string(), true,
                      true);
  }
  if (name == "tojson") {
    const int64_t indent = Integer(arguments, 0, "indent", -1);
    if (indent > kMaxIndent)
      Bad(arguments, fmt::format("'indent' is {}, the limit is {}", indent, kMaxIndent));
    return ToJson(input, static_cast<int>(std::max<int64_t>(indent, -1)),
                  Flag(arguments, ~size_t{0}, "sort_keys", false), line);
  }
  if (name == "length" || name == "count") return Length(input, line);
  if (name == "default" || name == "d") {
    const Value* fallback = arguments.Find(0, "default_value");
    const bool use = input.is_undefined() || (Flag(arguments, 1, "boolean", false) && !input.truthy());
    return use ? (fallback == nullptr ? Value("") : *fallback) : input;
  }
  if (name == "map") return MapFilter(input, arguments, environment);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return SelectFilter(name, input, arguments);
  }
  if (name == "join") return JoinFilter(input, arguments, environment);
  if (name == "list") return Iterate(input, line);
  if (name == "first") return FirstOrLast(true, input, arguments);
  if (name == "last") return FirstOrLast(false, input, arguments);
  if (name == "string") return Str(input);
  if (name == "safe") return input;
  if (name == "upper") return MapCase(Str(input), Case::kUpper);
  if (name == "lower") return MapCase(Str(input), Case::kLower);
  if (name == "title") return MapCase(Str(input), Case::kTitle);
  if (name == "capitalize") return MapCase(Str(input), Case::kCapitalize);
  if (name == "replace") return ReplaceFilter(input, arguments, environment);
  if (name == "items") {
    if (input.is_undefined()) return List{};
    if (input.dict() == nullptr) Bad(arguments, fmt::format("items of a '{}'", input.type_name()));
    return CallMethod(input, "items", Arguments{.line = line, .positional = {}, .named = {}}, environment);
  }
  if (name == "indent") return IndentFilter(input, arguments, environment);
  if (name == "dictsort") return DictSort(input, arguments);
  if (name == "sort") return SortFilter(input, arguments);
  if (name == "unique") return UniqueFilter(input, arguments);
  if (name == "reverse") {
    if (const auto* text = input.string()) return SliceText(*text, NumCodePoints(*text) - 1, -1, -1);
    List items = Iterate(input, line);
    std::reverse(items.begin(), items.end());
    return items;
  }
  if (name == "min" || name == "max") return MinMaxFilter(name == "max", input, arguments);
  if (name == "sum") return SumFilter(input, arguments);
  if (name == "int") return ToInteger(input, arguments);
  if (name == "float") return ToFloatValue(input, arguments);
  if (name == "round") return RoundFilter(input, arguments);
  if (name == "abs") {
    if (!input.is_number()) Bad(arguments, fmt::format("abs of a '{}'", input.type_name()));
    if (!input.is_integer()) return std::fabs(input.number());
    return input.integer() < 0 ? Arithmetic("-", Value(0), input, line) : Value(input.integer());
  }
  if (name == "attr") return GetAttribute(input, Str(Require(arguments, 0, "name", "attr")), line);
  if (name == "e" || name == "escape" || name == "forceescape") return EscapeMarkup(Str(input));
  Bad(arguments, fmt::format("the filter '{}' is not supported", name));
}

bool ApplyTest(std::string_view name, const Value& input, const Arguments& arguments) {
  const int line = arguments.line;
  auto other = [&]() -> const Value& { return Require(arguments, 0, "other", name); };
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "string") return input.is_string();
  if (name == "mapping") return input.is_mapping();
  if (name == "sequence") return input.is_string() || input.list() != nullptr || input.is_mapping();
  if (name == "iterable") {
    return input.is_undefined() || input.is_string() || input.list() != nullptr || input.is_mapping();
  }
  if (name == "number") return input.is_number();
  if (name == "integer") return input.is<int64_t>();
  if (name == "float") return input.is<double>();
  if (name == "boolean") return input.is<bool>();
  if (name == "true") return input.is<bool>() && input.truthy();
  if (name == "false") return input.is<bool>() && !input.truthy();
  if (name == "callable") return input.is_callable();
  if (name == "eq" || name == "equalto") return Equals(input, other());
  if (name == "ne") return !Equals(input, other());
  if (name == "lt" || name == "lessthan") return Compare(input, other(), line) < 0;
  if (name == "le") return Compare(input, other(), line) <= 0;
  if (name == "gt" || name == "greaterthan") return Compare(input, other(), line) > 0;
  if (name == "ge") return Compare(input, other(), line) >= 0;
  if (name == "in") return Contains(other(), input, line);
  if (name == "sameas") return Equals(input, other()) && input.type_name() == other().type_name();
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const Value divisor = name == "divisibleby" ? other() : Value(2);
    if (!input.is_integer() || !divisor.is_integer() || divisor.integer() == 0) {
      Bad(arguments, fmt::format("'{}' needs integers", name));
    }
    const bool divides = Arithmetic("%", input, divisor, line).integer() == 0;
    return name == "odd" ? !divides : divides;
  }
  if (name == "lower") return input.is_string() && MapCase(*input.string(), Case::kLower) == *input.string();
  if (name == "upper") return input.is_string() && MapCase(*input.string(), Case::kUpper) == *input.string();
  if (name == "filter") return IsKnownFilter(Str(input));
  if (name == "test") return IsKnownTest(Str(input));
  Bad(arguments, fmt::format("the test '{}' is not supported", name));
}

}  // namespace attest::jinja
