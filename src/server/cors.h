// What tells browsers that a page of another origin may read the answers. Pure; only with
// HttpServerOptions::allowed_origins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace attest {

// The header lines that every answer to this request gets, each ending in CR LF; "" where the request names
// no origin or one that is not allowed.
[[nodiscard]] std::string CorsHeaders(const std::vector<std::string>& allowed, const HttpRequest& request);

// Whether this is a browser's question before the request itself.
[[nodiscard]] bool IsPreflight(const HttpRequest& request);
// Its answer: which methods and headers may follow.
[[nodiscard]] HttpResponse PreflightResponse(const HttpRequest& request);

}  // namespace attest
