// Reads the fields of one JSON object of a request. A missing field and an explicit null are the same. Every
// error names the field, what was expected and what came. Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace attest {

// Parses a request body: an object, nested at most 64 deep.
Expected<nlohmann::json> ParseJsonObject(std::string_view text);
// "5", "\"abc...\"", "a list of 3": an offending value, short enough for an error message.
[[nodiscard]] std::string DescribeJson(const nlohmann::json& value);
[[nodiscard]] std::unexpected<Error> WrongType(const std::string& field, std::string_view expected,
                                               const nlohmann::json& value);

class JsonFields {
 public:
  // `prefix` goes before names in messages ("stream_options."). REQUIRES: `object` is an object that outlives
  // this.
  explicit JsonFields(const nlohmann::json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // nullptr when missing or null.
  [[nodiscard]] const nlohmann::json* Find(std::string_view name) const;

  Expected<std::optional<bool>> Bool(std::string_view name) const;
  Expected<std::optional<std::string>> String(std::string_view name) const;
  Expected<std::optional<int64_t>> Int(std::string_view name, int64_t min, int64_t max) const;
  Expected<std::optional<double>> Number(std::string_view name, double min, double max) const;
  Expected<std::vector<int32_t>> Ids(std::string_view name, int64_t vocab_size) const;

  // kUnsupported unless the field is missing, null or equal to one of `neutral` (JSON texts).
  Status RefuseUnless(std::string_view name, const std::vector<std::string_view>& neutral) const;

 private:
  [[nodiscard]] std::string Name(std::string_view name) const { return prefix_ + std::string(name); }

  const nlohmann::json& object_;
  std::string prefix_;
};

// The ids of a JSON list, each an integer in [0, vocab_size). `field` names the list in errors.
Expected<std::vector<int32_t>> IdsFromJson(const nlohmann::json& list, int64_t vocab_size,
                                           const std::string& field);

}  // namespace attest
