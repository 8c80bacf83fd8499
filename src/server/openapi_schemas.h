// The schemas of the API's description: of requests from what the parsers read, of answers by hand. Pure.
#pragma once

#include <string>
#include <string_view>

#include "server/call_limits.h"
#include "server/json_writer.h"

namespace attest {

// Writes every schema as keys of the open object `json`: the request bodies (CompletionRequest, ...) and the
// answers (Error, Completion, ...).
void AppendSchemas(JsonWriter& json, const CallLimits& limits, bool has_priorities);

// What each parser asks of a body, by the name of its schema. REQUIRES: as OpenApiJson.
[[nodiscard]] FieldReads ReadsOf(std::string_view schema, const CallLimits& limits);
// What a field means, in a few words; "" for one that nobody described, which a test refuses.
[[nodiscard]] std::string_view MeaningOf(std::string_view field);

// A regular expression of the decimal integers 0 to `max`. REQUIRES: max >= 0.
[[nodiscard]] std::string IntegerPattern(int64_t max);

}  // namespace attest
