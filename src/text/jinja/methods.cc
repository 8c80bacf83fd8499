// Methods of strings, lists and dicts, attribute access, and the global functions.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/strings.h"

namespace attest::jinja {
namespace {

constexpr std::array<std::string_view, 23> kStringMethods = {
    "capitalize", "count", "endswith",   "find",       "index", "isdigit",      "isspace",      "isalpha",
    "join",       "lower", "lstrip",     "replace",    "rfind", "removeprefix", "removesuffix", "rsplit",
    "rstrip",     "split", "splitlines", "startswith", "strip", "title",        "upper"};
constexpr std::array<std::string_view, 2> kListMethods = {"count", "index"};
constexpr std::array<std::string_view, 4> kDictMethods = {"get", "items", "keys", "values"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"cycle",
                                                          "changed"};  // of `loop`, run by the interpreter
constexpr std::array<std::string_view, 5> kGlobals = {"dict", "namespace", "raise_exception", "range",
                                                      "strftime_now"};
constexpr int64_t kMaxRange = 100000;  // Jinja's sandbox has the same limit

[[noreturn]] void Bad(int line, const std::string& what) { throw RenderError(line, what); }

const std::string& RequireString(const Arguments& arguments, size_t index, std::string_view method) {
  const Value* value = arguments.Find(index, "");
  if (value == nullptr || !value->is_string()) {
    Bad(arguments.line, fmt::format(".{}(): argument {} is a '{}', expected a str", method, index + 1,
                                    value == nullptr ? "nothing" : value->type_name()));
  }
  return *value->string();
}

int64_t OptionalInteger(const Arguments& arguments, size_t index, std::string_view name, int64_t fallback) {
  const Value* value = arguments.Find(index, name);
  if (value == nullptr) return fallback;
  if (!value->is_integer())
    Bad(arguments.line, fmt::format("'{}' is a '{}', expected an int", name, value->type_name()));
  return value->integer();
}

// startswith and endswith take one string or a tuple of them.
bool MatchesEdge(const std::string& text, const Arguments& arguments, bool start) {
  const Value* pattern = arguments.Find(0, "prefix");
  auto matches = [&](const std::string& edge) {
    return start ? text.starts_with(edge) : text.ends_with(edge);
  };
  if (pattern != nullptr && pattern->list() != nullptr) {
    return std::any_of(pattern->list()->begin(), pattern->list()->end(),
                       [&](const Value& edge) { return edge.is_string() && matches(*edge.string()); });
  }
  return matches(RequireString(arguments, 0, start ? "startswith" : "endswith"));
}

int64_t CodePointIndex(std::string_view text, size_t byte_offset) {
  return NumCodePoints(text.substr(0, byte_offset));
}

bool AllCodePoints(const std::string& text, std::string_view what) {
  const auto is = [&](std::string_view point) {
    if (what == "isspace") return IsSpaceCodePoint(point);
    if (what == "isdigit") return point.size() == 1 && point[0] >= '0' && point[0] <= '9';
    return MapCase(point, Case::kLower) != MapCase(point, Case::kUpper);  // isalpha, for letters with case
  };
  for (const std::string_view point : CodePoints(text)) {
    if (!is(point)) return false;
  }
  return !text.empty();
}

Value StringList(const std::vector<std::string>& parts, int line) {
  CheckPieces(parts.size(), line);
  List out;
  for (const std::string& part : parts) out.emplace_back(part);
  return out;
}

Value CallStringMethod(const std::string& text, std::string_view name, const Arguments& arguments,
                       Environment& environment) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* chars = arguments.Find(0, "chars");
    return StripChars(text,
                      chars == nullptr || chars->is_none() ? nullptr : &RequireString(arguments, 0, name),
                      name != "rstrip", name != "lstrip");
  }
  if (name == "split" || name == "rsplit") {
    const Value* separator = arguments.Find(0, "sep");
    const bool by_space = separator == nullptr || separator->is_none();
    const int64_t limit = OptionalInteger(arguments, 1, "maxsplit", -1);
    if (!by_space && (!separator->is_string() || separator->string()->empty()))
      Bad(arguments.line, "split: empty separator");
    if (by_space && name == "rsplit" && limit >= 0)
      Bad(arguments.line, "rsplit without a separator but with a limit is not supported");
    if (name == "rsplit" && !by_space) {
      return StringList(SplitRight(text, *separator->string(), limit), arguments.line);
    }
    return StringList(Split(text, by_space ? nullptr : separator->string(), limit), arguments.line);
  }
  if (name == "splitlines")
    return StringList(
        SplitLines(text, arguments.Find(0, "keepends") != nullptr && arguments.Find(0, "keepends")->truthy()),
        arguments.line);
  if (name == "startswith") return MatchesEdge(text, arguments, true);
  if (name == "endswith") return MatchesEdge(text, arguments, false);
  if (name == "replace") {
    return Replaced(text, RequireString(arguments, 0, name), RequireString(arguments, 1, name),
                    OptionalInteger(arguments, 2, "count", -1), arguments.line, environment);
  }
  if (name == "upper") return MapCase(text, Case::kUpper);
  if (name == "lower") return MapCase(text, Case::kLower);
  if (name == "title") return MapCase(text, Case::kTitle);
  if (name == "capitalize") return MapCase(text, Case::kCapitalize);
  if (name == "find" || name == "rfind" || name == "index") {
    const std::string& needle = RequireString(arguments, 0, name);
    const size_t found = name == "rfind" ? text.rfind(needle) : text.find(needle);
    if (found == std::string::npos && name == "index") Bad(arguments.line, "index: substring not found");
    return found == std::string::npos ? int64_t{-1} : CodePointIndex(text, found);
  }
  if (name == "count") {
    const std::string& needle = RequireString(arguments, 0, name);
    if (needle.empty()) return NumCodePoints(text) + 1;
    int64_t count = 0;
    for (size_t at = 0; (at = text.find(needle, at)) != std::string::npos; at += needle.size()) ++count;
    return count;
  }
  if (name == "removeprefix") {
    const std::string& edge = RequireString(arguments, 0, name);
    return text.starts_with(edge) ? text.substr(edge.size()) : text;
  }
  if (name == "removesuffix") {
    const std::string& edge = RequireString(arguments, 0, name);
    return text.ends_with(edge) ? text.substr(0, text.size() - edge.size()) : text;
  }
  if (name == "join") {
    const Value* items = arguments.Find(0, "iterable");
    if (items == nullptr) Bad(arguments.line, "join needs a list");
    std::string out;
    bool first = true;
    for (const Value& item : Iterate(*items, arguments.line)) {
      if (!item.is_string())
        Bad(arguments.line, fmt::format("join: item is a '{}', expected a str", item.type_name()));
      if (!first) out += text;
      first = false;
      out += *item.string();
      environment.CheckSize(static_cast<int64_t>(out.size()), arguments.line);
    }
    return out;
  }
  if (name == "isdigit" || name == "isspace" || name == "isalpha") return AllCodePoints(text, name);
  Bad(arguments.line, fmt::format("a str has no method '{}' here", name));
}

Value CallListMethod(const List& list, std::string_view name, const Arguments& arguments) {
  const Value* item = arguments.Find(0, "value");
  if (item == nullptr) Bad(arguments.line, fmt::format(".{}() needs a value", name));
  if (name == "count") {
    return static_cast<int64_t>(
        std::count_if(list.begin(), list.end(), [&](const Value& other) { return Equals(other, *item); }));
  }
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const Value& other) { return Equals(other, *item); });
  if (found == list.end()) Bad(arguments.line, fmt::format("index: {} is not in the list", Repr(*item)));
  return static_cast<int64_t>(found - list.begin());
}

Value CallDictMethod(const Dict& dict, std::string_view name, const Arguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.Find(0, "key");
    if (key == nullptr) Bad(arguments.line, ".get() needs a key");
    const Value* found = key->is_string() ? FindKey(dict, *key->string()) : nullptr;
    if (found != nullptr) return *found;
    const Value* fallback = arguments.Find(1, "default");
    return fallback == nullptr ? Value(None{}) : *fallback;
  }
  List out;
  for (const auto& [key, value] : dict) {
    if (name == "keys") {
      out.emplace_back(key);
    } else if (name == "values") {
      out.push_back(value);
    } else {
      out.emplace_back(List{Value(key), value});
    }
  }
  return out;
}

Value Range(const Arguments& arguments) {
  int64_t begin = 0, end = 0, step = 1;
  auto integer = [&](size_t index) { return OptionalInteger(arguments, index, "range", 0); };
  if (arguments.positional.size() == 1) {
    end = integer(0);
  } else if (arguments.positional.size() == 2 || arguments.positional.size() == 3) {
    begin = integer(0);
    end = integer(1);
    if (arguments.positional.size() == 3) step = integer(2);
  } else {
    Bad(arguments.line, fmt::format("range takes 1 to 3 arguments, not {}", arguments.positional.size()));
  }
  if (step == 0) Bad(arguments.line, "range: step is 0");
  List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(out.size()) >= kMaxRange)
      Bad(arguments.line, fmt::format("range is longer than {}", kMaxRange));
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;  // past the last integer, and so past the end
  }
  return out;
}

Value StrftimeNow(const Arguments& arguments, const Environment& environment) {
  const std::string& format = RequireString(arguments, 0, "strftime_now");
  const std::time_t now = environment.unix_time();
  std::tm parts{};
  localtime_r(&now, &parts);
  if (format.empty()) return "";
  std::string out(format.size() * 8 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &parts));
  return out;
}

}  // namespace

bool IsKnownMethod(std::string_view name) {
  return Has(kStringMethods, name) || Has(kListMethods, name) || Has(kDictMethods, name) ||
         Has(kLoopMethods, name);
}

bool IsGlobalFunction(std::string_view name) { return Has(kGlobals, name); }

bool HasMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return Has(kStringMethods, name);
  if (object.list() != nullptr) return Has(kListMethods, name);
  if (object.is_mapping()) return Has(kDictMethods, name);
  return false;
}

Value CallMethod(const Value& object, std::string_view name, const Arguments& arguments,
                 Environment& environment) {
  if (HasMethod(object, name)) {
    if (const auto* text = object.string()) return CallStringMethod(*text, name, arguments, environment);
    if (const List* list = object.list()) return CallListMethod(*list, name, arguments);
    return CallDictMethod(*object.dict(), name, arguments);
  }
  if (const auto* undefined = object.get_if<Undefined>())
    Bad(arguments.line, fmt::format("'{}' is undefined", undefined->name));
  Bad(arguments.line, fmt::format("'{}' has no method '{}'", object.type_name(), name));
}

Value CallGlobal(std::string_view name, const Arguments& arguments, Environment& environment) {
  if (name == "range") return Range(arguments);
  if (name == "raise_exception")
    Bad(arguments.line, arguments.positional.empty() ? "" : Str(arguments.positional[0]));
  if (name == "strftime_now") return StrftimeNow(arguments, environment);
  Dict fields;
  if (!arguments.positional.empty()) {
    if (arguments.positional[0].dict() == nullptr)
      Bad(arguments.line, fmt::format("{}() takes a dict or named arguments", name));
    fields = *arguments.positional[0].dict();
  }
  for (const auto& [key, value] : arguments.named) SetKey(fields, key, value);
  if (name == "namespace") {
    const bool links =
        std::ranges::any_of(fields, [](const auto& field) { return field.second.extent().holds_objects; });
    if (links) environment.CountLink(arguments.line);
    return Namespace{std::make_shared<Dict>(std::move(fields))};
  }
  return fields;
}

std::string Replaced(std::string_view text, std::string_view old, std::string_view with, int64_t count,
                     int line, Environment& environment) {
  int64_t places = 0;
  if (old.empty()) {
    places = static_cast<int64_t>(text.size()) + 1;
  } else {
    for (size_t at = 0; (at = text.find(old, at)) != std::string_view::npos; at += old.size()) ++places;
  }
  if (count >= 0) places = std::min(places, count);
  const auto grows = static_cast<int64_t>(with.size()) - static_cast<int64_t>(old.size());
  if (grows > 0) environment.CheckSize(static_cast<int64_t>(text.size()) + places * grows, line);
  return ReplaceAll(text, old, with, count);
}

Value GetAttribute(const Value& object, const std::string& name, int line) {
  if (const auto* undefined = object.get_if<Undefined>())
    Bad(line, fmt::format("'{}' is undefined", undefined->name));
  if (HasMethod(object, name)) return BoundMethod{std::make_shared<Value>(object), name};
  if (const Dict* dict = object.dict()) {
    if (const Value* found = FindKey(*dict, name)) return *found;
  }
  return Undefined{name};
}

Value GetItem(const Value& object, const Value& key, int line) {
  if (const auto* undefined = object.get_if<Undefined>())
    Bad(line, fmt::format("'{}' is undefined", undefined->name));
  if (object.dict() != nullptr) {
    if (key.is_string()) {
      if (const Value* found = FindKey(*object.dict(), *key.string())) return *found;
      return GetAttribute(object, *key.string(), line);
    }
    return Undefined{Str(key)};
  }
  if (key.is_integer()) {
    int64_t index = key.integer();
    if (const List* list = object.list()) {
      if (index < 0) index += static_cast<int64_t>(list->size());
      if (index >= 0 && index < static_cast<int64_t>(list->size()))
        return (*list)[static_cast<size_t>(index)];
    } else if (const auto* text = object.string()) {
      const int64_t size = NumCodePoints(*text);
      if (index < 0) index += size;
      if (index >= 0 && index < size) return SliceText(*text, index, index + 1, 1);
    }
  } else if (key.is_string()) {
    return GetAttribute(object, *key.string(), line);
  }
  return Undefined{Str(key)};
}

}  // namespace attest::jinja
