#include "server/call_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace attest {

Expected<std::string> ServedModelName(const JsonFields& fields, const CallLimits& limits) {
  ATTEST_ASSIGN_OR_RETURN(const auto name, fields.String("model"));
  if (!name) return limits.model_names.front();
  if (std::ranges::find(limits.model_names, *name) != limits.model_names.end()) return *name;
  return Fail(ErrorCode::kNotFound,
              fmt::format("the model {} does not exist; served: {}", DescribeJson(*name),
                          fmt::join(limits.model_names, ", ")),
              "model");
}

}  // namespace attest
