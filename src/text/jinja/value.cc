#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace attest::jinja {
namespace {

void Add(Extent& extent, const Extent& part) {
  constexpr int64_t kMost = int64_t{1} << 60;
  extent.bytes = std::min(extent.bytes + part.bytes, kMost);
  extent.depth = std::max(extent.depth, part.depth + 1);
  extent.holds_objects |= part.holds_objects;
}

Measured<List> Measure(List list) {
  Extent extent{.depth = 1};
  for (const Value& item : list) Add(extent, item.extent());
  return {.items = std::move(list), .extent = extent};
}

Measured<Dict> Measure(Dict dict) {
  Extent extent{.depth = 1};
  for (const auto& [key, value] : dict) {
    extent.bytes += static_cast<int64_t>(key.size());
    Add(extent, value.extent());
  }
  return {.items = std::move(dict), .extent = extent};
}

}  // namespace

Value::Value(List list) : data_(std::make_shared<const Measured<List>>(Measure(std::move(list)))) {}
Value::Value(Dict dict) : data_(std::make_shared<const Measured<Dict>>(Measure(std::move(dict)))) {}

Extent Value::extent() const {
  Extent extent;
  if (const auto* text = string()) extent.bytes += static_cast<int64_t>(text->size());
  if (const auto* list = get_if<SharedList>()) return (*list)->extent;
  if (const auto* dict = get_if<SharedDict>()) return (*dict)->extent;
  if (const auto* method = get_if<BoundMethod>()) Add(extent, method->object->extent());
  extent.holds_objects |= is<Namespace>() || is<std::shared_ptr<const Macro>>();
  return extent;
}

const List* Value::list() const {
  const auto* shared = get_if<SharedList>();
  return shared == nullptr ? nullptr : &(*shared)->items;
}

const Dict* Value::dict() const {
  if (const auto* shared = get_if<SharedDict>()) return &(*shared)->items;
  if (const auto* space = get_if<Namespace>()) return space->fields.get();
  return nullptr;
}

double Value::number() const {
  if (const auto* real = get_if<double>()) return *real;
  return static_cast<double>(integer());
}

int64_t Value::integer() const {
  if (const auto* flag = get_if<bool>()) return *flag ? 1 : 0;
  return std::get<int64_t>(data_);
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const auto* text = string()) return !text->empty();
  if (const List* items = list()) return !items->empty();
  if (is_mapping()) return !dict()->empty();
  return true;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is<bool>()) return "bool";
  if (is<int64_t>()) return "int";
  if (is<double>()) return "float";
  if (is_string()) return "str";
  if (list() != nullptr) return "list";
  if (is<Namespace>()) return "Namespace";
  if (dict() != nullptr) return "dict";
  return "function";
}

const Value* FindKey(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict) {
    if (name == key) return &value;
  }
  return nullptr;
}

void SetKey(Dict& dict, std::string_view key, Value value) {
  for (auto& [name, old] : dict) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  dict.emplace_back(std::string(key), std::move(value));
}

bool Equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) return *a.string() == *b.string();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), Equals);
  }
  if (const auto* space = a.get_if<Namespace>()) {
    const auto* other = b.get_if<Namespace>();
    return other != nullptr && space->fields == other->fields;
  }
  if (a.is_mapping() && b.is_mapping()) {
    if (a.dict()->size() != b.dict()->size()) return false;
    return std::all_of(a.dict()->begin(), a.dict()->end(), [&](const auto& entry) {
      const Value* other = FindKey(*b.dict(), entry.first);
      return other != nullptr && Equals(entry.second, *other);
    });
  }
  return false;
}

int Compare(const Value& a, const Value& b, int line) {
  auto order = [](const auto& x, const auto& y) { return x < y ? -1 : (y < x ? 1 : 0); };
  if (a.is_integer() && b.is_integer()) return order(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return order(a.number(), b.number());
  if (a.is_string() && b.is_string()) return order(*a.string(), *b.string());  // UTF-8 keeps code point order
  if (a.list() != nullptr && b.list() != nullptr) {
    const List &x = *a.list(), &y = *b.list();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equals(x[i], y[i])) return Compare(x[i], y[i], line);
    }
    return order(x.size(), y.size());
  }
  throw RenderError(line, fmt::format("cannot order '{}' and '{}'", a.type_name(), b.type_name()));
}

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const int exponent = std::stoi(std::string(text.substr(text.find('e') + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

namespace {

std::string ReprString(const std::string& text) {
  const bool double_quoted = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + quote;
}

void AppendJsonString(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

struct JsonWriter {
  int indent;
  bool sort_keys;
  int line;
  std::string out;

  void NewLine(int depth) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent * depth), ' ');
  }

  void Write(const Value& value, int depth) {
    if (value.is_none()) {
      out += "null";
    } else if (const auto* flag = value.get_if<bool>()) {
      out += *flag ? "true" : "false";
    } else if (const auto* integer = value.get_if<int64_t>()) {
      out += std::to_string(*integer);
    } else if (const auto* real = value.get_if<double>()) {
      out += std::isnan(*real)   ? "NaN"
             : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity")
                                 : FormatFloat(*real);
    } else if (const auto* text = value.string()) {
      AppendJsonString(out, *text);
    } else if (const List* items = value.list()) {
      out += '[';
      for (size_t i = 0; i < items->size(); ++i) {
        if (i > 0) out += indent < 0 ? ", " : ",";
        NewLine(depth + 1);
        Write((*items)[i], depth + 1);
      }
      if (!items->empty()) NewLine(depth);
      out += ']';
    } else if (value.is_mapping()) {
      Dict entries = *value.dict();
      if (sort_keys)
        std::sort(entries.begin(), entries.end(),
                  [](const auto& a, const auto& b) { return a.first < b.first; });
      out += '{';
      for (size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) out += indent < 0 ? ", " : ",";
        NewLine(depth + 1);
        AppendJsonString(out, entries[i].first);
        out += ": ";
        Write(entries[i].second, depth + 1);
      }
      if (!entries.empty()) NewLine(depth);
      out += '}';
    } else {
      throw RenderError(line,
                        fmt::format("tojson: a value of type '{}' has no JSON form", value.type_name()));
    }
  }
};

}  // namespace

std::string Str(const Value& value) {
  if (value.is_undefined()) return "";
  if (const auto* text = value.string()) return *text;
  return Repr(value);
}

std::string Repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const auto* flag = value.get_if<bool>()) return *flag ? "True" : "False";
  if (const auto* integer = value.get_if<int64_t>()) return std::to_string(*integer);
  if (const auto* real = value.get_if<double>()) return FormatFloat(*real);
  if (const auto* text = value.string()) return ReprString(*text);
  std::string out;
  if (const List* items = value.list()) {
    for (const Value& item : *items) out += (out.empty() ? "" : ", ") + Repr(item);
    return "[" + out + "]";
  }
  if (value.is<Namespace>()) return "<Namespace>";  // it may hold itself
  if (const Dict* entries = value.dict()) {
    for (const auto& [key, item] : *entries)
      out += (out.empty() ? "" : ", ") + ReprString(key) + ": " + Repr(item);
    return "{" + out + "}";
  }
  return "<function>";
}

std::string ToJson(const Value& value, int indent, bool sort_keys, int line) {
  JsonWriter writer{.indent = indent, .sort_keys = sort_keys, .line = line, .out = {}};
  writer.Write(value, 0);
  return std::move(writer.out);
}

namespace {

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

void CheckPieces(size_t pieces, int line) {
  if (pieces > kMaxPieces) {
    throw RenderError(line, fmt::format("a string is made into a list of more than {} pieces", kMaxPieces));
  }
}

std::string_view FirstCodePoint(std::string_view text) {
  size_t end = 1;
  while (end < text.size() && Continues(text[end])) ++end;
  return text.substr(0, end);
}

std::string_view LastCodePoint(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && Continues(text[begin])) --begin;
  return text.substr(begin);
}

int64_t NumCodePoints(std::string_view text) {
  if (text.empty()) return 0;
  return 1 + std::count_if(text.begin() + 1, text.end(), [](char c) { return !Continues(c); });
}

List Iterate(const Value& value, int line) {
  if (value.is_undefined()) return {};
  if (const List* items = value.list()) return *items;
  List out;
  if (value.is_mapping()) {
    for (const auto& entry : *value.dict()) out.emplace_back(entry.first);
    return out;
  }
  if (const auto* text = value.string()) {
    CheckPieces(static_cast<size_t>(NumCodePoints(*text)), line);
    for (const std::string_view point : CodePoints(*text)) out.emplace_back(point);
    return out;
  }
  throw RenderError(line, fmt::format("'{}' is not iterable", value.type_name()));
}

int64_t Length(const Value& value, int line) {
  if (value.is_undefined()) return 0;
  if (const List* items = value.list()) return static_cast<int64_t>(items->size());
  if (value.is_mapping()) return static_cast<int64_t>(value.dict()->size());
  if (const auto* text = value.string()) return NumCodePoints(*text);
  throw RenderError(line, fmt::format("'{}' has no length", value.type_name()));
}

bool Contains(const Value& container, const Value& item, int line) {
  if (const auto* text = container.string()) {
    if (!item.is_string())
      throw RenderError(line, fmt::format("'in <str>' needs a str, not '{}'", item.type_name()));
    return text->find(*item.string()) != std::string::npos;
  }
  if (const List* items = container.list()) {
    return std::any_of(items->begin(), items->end(), [&](const Value& other) { return Equals(other, item); });
  }
  if (container.is_mapping())
    return item.is_string() && FindKey(*container.dict(), *item.string()) != nullptr;
  if (container.is_undefined()) return false;
  throw RenderError(line, fmt::format("'in' needs a str, list or dict, not '{}'", container.type_name()));
}

}  // namespace attest::jinja
