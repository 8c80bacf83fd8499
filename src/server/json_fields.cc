#include "server/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/request_limits.h"

namespace attest {
namespace {

using nlohmann::json;

// Deep enough for tool schemas; a parser that recurses on the client's nesting runs out of stack at about
// 100,000.
constexpr size_t kMaxDepth = 64;

// What a parsed body takes, measured: 16 bytes for each item, a little more than twice while its list grows,
// and more for what an item owns. A body of 16 MiB can ask for 600 MiB.
constexpr size_t kItemBytes = 40, kListBytes = 48, kObjectBytes = 80, kStringBytes = 64;
constexpr size_t kMaxParsedBytes = kMaxListedIds * kItemBytes;  // the longest list of ids fits

struct JsonShape {
  size_t depth = 0;         // the deepest level of lists and objects, whether they end or not
  size_t parsed_bytes = 0;  // about
};

JsonShape ShapeOf(std::string_view text) {
  JsonShape shape;
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        shape.parsed_bytes += kStringBytes;
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '{':
      case '[':
        shape.parsed_bytes += text[i] == '{' ? kObjectBytes : kListBytes;
        shape.depth = std::max(shape.depth, ++depth);
        break;
      case '}':
      case ']':
        if (depth > 0) --depth;
        break;
      case ',':
        shape.parsed_bytes += kItemBytes;
        break;
      default:
        break;
    }
  }
  return shape;
}

}  // namespace

Expected<json> ParseJsonObject(std::string_view text) {
  const JsonShape shape = ShapeOf(text);
  if (shape.depth > kMaxDepth) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the request body nests {} levels deep, the limit is {}", shape.depth, kMaxDepth));
  }
  if (shape.parsed_bytes > kMaxParsedBytes) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the lists, objects and strings of the request body would take {} bytes, the limit is {}",
                    shape.parsed_bytes, kMaxParsedBytes));
  }
  json parsed;
  try {
    parsed = json::parse(text);
  } catch (const json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 1, ...": what follows the bracket, without the
    // tail that quotes what was read, which may be megabytes.
    std::string_view what = e.what();
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the request body is not valid JSON: {}", what.substr(0, 160)));
  }
  if (!parsed.is_object()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the request body must be a JSON object, not {}", DescribeJson(parsed)));
  }
  return parsed;
}

std::string DescribeJson(const json& value) {
  constexpr size_t kShown = 40;
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

std::unexpected<Error> WrongType(const std::string& field, std::string_view expected, const json& value) {
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{} must be {}, not {}", field, expected, DescribeJson(value)), field);
}

std::optional<int64_t> WholeNumber(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= static_cast<uint64_t>(INT64_MAX) ? std::optional(static_cast<int64_t>(number))
                                                      : std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  // The parser makes a double of an integer that overflows: -2^63 may have been less.
  if (!(number > -kEnd && number < kEnd) || std::trunc(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

const json* JsonFields::Get(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

// A name read twice keeps the more telling entry.
void JsonFields::Record(FieldRead read) const {
  if (reads_ == nullptr) return;
  read.name = Name(read.name);
  const auto known = std::ranges::find(*reads_, read.name, &FieldRead::name);
  if (known == reads_->end()) {
    reads_->push_back(std::move(read));
  } else if (known->kind == FieldRead::Kind::kOther) {
    *known = std::move(read);
  }
}

const json* JsonFields::Find(std::string_view name) const {
  Record({.name = std::string(name)});
  return Get(name);
}

Expected<std::optional<bool>> JsonFields::Bool(std::string_view name) const {
  Record({.name = std::string(name), .kind = FieldRead::Kind::kBool});
  const json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return WrongType(Name(name), "true or false", *value);
  return value->get<bool>();
}

Expected<std::optional<std::string>> JsonFields::String(std::string_view name) const {
  Record({.name = std::string(name), .kind = FieldRead::Kind::kString});
  const json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return WrongType(Name(name), "a string", *value);
  return value->get_ref<const std::string&>();
}

Expected<std::optional<int64_t>> JsonFields::Int(std::string_view name, int64_t min, int64_t max) const {
  Record({.name = std::string(name), .kind = FieldRead::Kind::kInt, .min = min, .max = max});
  const json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*value);
  if (!number || *number < min || *number > max) {
    return WrongType(Name(name), fmt::format("an integer in [{}, {}]", min, max), *value);
  }
  return number;
}

Expected<std::optional<double>> JsonFields::Number(std::string_view name, double min, double max) const {
  Record({.name = std::string(name), .kind = FieldRead::Kind::kNumber, .min_number = min, .max_number = max});
  const json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= min && number <= max)) {
    return WrongType(Name(name), fmt::format("a number in [{}, {}]", min, max), *value);
  }
  return number;
}

Expected<std::optional<double>> JsonFields::NumberAbove(std::string_view name, double above,
                                                        double max) const {
  Record({.name = std::string(name),
          .kind = FieldRead::Kind::kNumber,
          .min_number = above,
          .max_number = max,
          .is_above_min = true});
  const json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number > above && number <= max)) {
    return WrongType(Name(name), fmt::format("a number in ({}, {}]", above, max), *value);
  }
  return number;
}

Expected<std::vector<int32_t>> JsonFields::Ids(std::string_view name, int64_t vocab_size,
                                               size_t max_size) const {
  Record({.name = std::string(name),
          .kind = FieldRead::Kind::kIds,
          .max = vocab_size - 1,
          .max_size = max_size});
  const json* value = Get(name);
  if (value == nullptr) return std::vector<int32_t>();
  return IdsFromJson(*value, vocab_size, max_size, Name(name));
}

Status JsonFields::RefuseUnless(std::string_view name, const std::vector<std::string_view>& neutral) const {
  Record({.name = std::string(name),
          .kind = FieldRead::Kind::kFixed,
          .neutral = std::vector<std::string>(neutral.begin(), neutral.end())});
  const json* value = Get(name);
  if (value == nullptr) return {};
  std::string allowed = "null";
  for (const std::string_view text : neutral) {
    if (*value == json::parse(text)) return {};  // 1 equals 1.0, but false is not 0
    allowed += fmt::format(" or {}", text);
  }
  return Fail(ErrorCode::kUnsupported,
              fmt::format("{} is not supported yet: only {} is accepted, not {}", Name(name), allowed,
                          DescribeJson(*value)),
              Name(name));
}

Expected<std::vector<int32_t>> IdsFromJson(const json& list, int64_t vocab_size, size_t max_size,
                                           const std::string& field) {
  if (!list.is_array()) return WrongType(field, "a list of token ids", list);
  if (list.size() > max_size) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} may hold at most {} token ids, not {}", field, max_size, list.size()), field);
  }
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const json& item : list) {
    const std::optional<int64_t> id = WholeNumber(item);
    if (!id || *id < 0 || *id >= vocab_size) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} must hold token ids, integers in [0, {}), not {}", field, vocab_size,
                              DescribeJson(item)),
                  field);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace attest
