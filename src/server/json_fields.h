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

// What a parser asked of one field. The parsers themselves are the source of the API's description
// (openapi.h): run once with a recorder, they tell every field they know, its type and its limits.
struct FieldRead {
  enum class Kind { kBool, kInt, kNumber, kString, kIds, kFixed, kOther };
  std::string name;  // with its prefix
  Kind kind = Kind::kOther;
  int64_t min = 0, max = 0;               // kInt: the value; kIds: each id
  size_t max_size = 0;                    // kIds
  double min_number = 0, max_number = 0;  // kNumber
  bool is_above_min = false;              // kNumber: min_number itself is refused
  std::vector<std::string> neutral = {};  // kFixed: the JSON texts it may be, beside null
};
using FieldReads = std::vector<FieldRead>;

class JsonFields {
 public:
  // `prefix` goes before names in messages ("stream_options."). `reads`, where there is one, gets an entry
  // for each name asked for. REQUIRES: `object` is an object that outlives this.
  explicit JsonFields(const nlohmann::json& object, std::string prefix = {}, FieldReads* reads = nullptr)
      : object_(object), prefix_(std::move(prefix)), reads_(reads) {}

  // The fields of an object found in this one.
  [[nodiscard]] JsonFields Inner(std::string_view name, const nlohmann::json& object) const {
    return JsonFields(object, Name(name) + ".", reads_);
  }

  // nullptr when missing or null.
  [[nodiscard]] const nlohmann::json* Find(std::string_view name) const;

  Expected<std::optional<bool>> Bool(std::string_view name) const;
  Expected<std::optional<std::string>> String(std::string_view name) const;
  // 16.0 is an integer too: JSON has one type of number, and some clients write all of them so.
  Expected<std::optional<int64_t>> Int(std::string_view name, int64_t min, int64_t max) const;
  Expected<std::optional<double>> Number(std::string_view name, double min, double max) const;
  // In (above, max].
  Expected<std::optional<double>> NumberAbove(std::string_view name, double above, double max) const;
  Expected<std::vector<int32_t>> Ids(std::string_view name, int64_t vocab_size, size_t max_size) const;

  // kUnsupported unless the field is missing, null or equal to one of `neutral` (JSON texts).
  Status RefuseUnless(std::string_view name, const std::vector<std::string_view>& neutral) const;

 private:
  [[nodiscard]] std::string Name(std::string_view name) const { return prefix_ + std::string(name); }
  [[nodiscard]] const nlohmann::json* Get(std::string_view name) const;
  void Record(FieldRead read) const;

  const nlohmann::json& object_;
  std::string prefix_;
  FieldReads* reads_;
};

// The value of a number without a fraction, however it is written, if it fits.
[[nodiscard]] std::optional<int64_t> WholeNumber(const nlohmann::json& value);
// The ids of a JSON list of at most `max_size`, each an integer in [0, vocab_size). `field` names the list in
// errors.
Expected<std::vector<int32_t>> IdsFromJson(const nlohmann::json& list, int64_t vocab_size, size_t max_size,
                                           const std::string& field);

}  // namespace attest
