#include "server/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace attest {
namespace {

using nlohmann::json;

// Deep enough for tool schemas; a parser that recurses on the client's nesting runs out of stack at about
// 100,000.
constexpr int kMaxDepth = 64;

bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '{':
      case '[':
        if (++depth > kMaxDepth) return true;
        break;
      case '}':
      case ']':
        --depth;
        break;
      default:
        break;
    }
  }
  return false;
}

}  // namespace

Expected<json> ParseJsonObject(std::string_view text) {
  if (NestsTooDeep(text)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the request body nests deeper than {} levels", kMaxDepth));
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

const json* JsonFields::Find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Expected<std::optional<bool>> JsonFields::Bool(std::string_view name) const {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return WrongType(Name(name), "true or false", *value);
  return value->get<bool>();
}

Expected<std::optional<std::string>> JsonFields::String(std::string_view name) const {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return WrongType(Name(name), "a string", *value);
  return value->get_ref<const std::string&>();
}

Expected<std::optional<int64_t>> JsonFields::Int(std::string_view name, int64_t min, int64_t max) const {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string expected = fmt::format("an integer in [{}, {}]", min, max);
  if (!value->is_number_integer()) return WrongType(Name(name), expected, *value);
  const bool over_int64 =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (over_int64 || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return WrongType(Name(name), expected, *value);
  }
  return value->get<int64_t>();
}

Expected<std::optional<double>> JsonFields::Number(std::string_view name, double min, double max) const {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string expected = fmt::format("a number in [{}, {}]", min, max);
  if (!value->is_number()) return WrongType(Name(name), expected, *value);
  const auto number = value->get<double>();
  if (!(number >= min && number <= max)) return WrongType(Name(name), expected, *value);
  return number;
}

Expected<std::vector<int32_t>> JsonFields::Ids(std::string_view name, int64_t vocab_size) const {
  const json* value = Find(name);
  if (value == nullptr) return std::vector<int32_t>();
  return IdsFromJson(*value, vocab_size, Name(name));
}

Status JsonFields::RefuseUnless(std::string_view name, const std::vector<std::string_view>& neutral) const {
  const json* value = Find(name);
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

Expected<std::vector<int32_t>> IdsFromJson(const json& list, int64_t vocab_size, const std::string& field) {
  if (!list.is_array()) return WrongType(field, "a list of token ids", list);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const json& item : list) {
    const bool in_range =
        item.is_number_integer() &&
        (item.is_number_unsigned() ? item.get<uint64_t>() < static_cast<uint64_t>(vocab_size)
                                   : item.get<int64_t>() >= 0 && item.get<int64_t>() < vocab_size);
    if (!in_range) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} must hold token ids, integers in [0, {}), not {}", field, vocab_size,
                              DescribeJson(item)),
                  field);
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace attest
