// The API's own description, OpenAPI 3.1: what GET /openapi.json answers. Types and limits of request fields
// come from the parsers, which are run once with a recorder (FieldReads); only words and shapes that a parser
// reads by hand stand in openapi_schemas.cc. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/call_limits.h"

namespace attest {

struct RouteEntry {
  std::string_view method, path;  // "/v1/models/{model_id}": a part in braces is a parameter
  bool wants_key = false;
};

struct ApiDescriptionInputs {
  std::vector<RouteEntry> routes;  // those that exist
  std::string_view version;        // of this program
  bool has_keys = false;
  bool has_health_details = false;  // GET /health has a body
  bool has_priorities = false;      // the policy knows them
};

// REQUIRES: limits.model_names is not empty, and the vocabulary neither.
[[nodiscard]] std::string OpenApiJson(const ApiDescriptionInputs& inputs, const CallLimits& limits);

// What each operation does, in a few words; "" for one that nobody described, which a test refuses.
[[nodiscard]] std::string_view SummaryOf(const RouteEntry& route);

}  // namespace attest
