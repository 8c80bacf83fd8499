#include "server/call_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace attest {

Expected<std::string> ServedModelName(const JsonFields& fields, const CallLimits& limits) {
  ATTEST_ASSIGN_OR_RETURN(const auto name, fields.String("model"));
  if (!name || name->empty()) return limits.model_names.front();  // vLLM takes "" for none, too
  if (std::ranges::find(limits.model_names, *name) != limits.model_names.end()) return *name;
  return Fail(ErrorCode::kNotFound,
              fmt::format("the model {} does not exist; served: {}", DescribeJson(*name),
                          fmt::join(limits.model_names, ", ")),
              "model");
}

size_t MaxTextBytes(const Tokenizer& tokenizer, int32_t max_model_len) {
  constexpr size_t kShortening = 4;
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  return kShortening * longest * static_cast<size_t>(max_model_len);
}

Status CheckTextSize(size_t bytes, const std::string& field, const CallLimits& limits) {
  if (bytes <= limits.max_text_bytes) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is a text of {} bytes, the limit of a context of {} tokens is {}", field, bytes,
                          limits.max_model_len, limits.max_text_bytes),
              field);
}

}  // namespace attest
