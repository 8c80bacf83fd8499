#include "server/cors.h"

#include <algorithm>

namespace attest {

std::string CorsHeaders(const std::vector<std::string>& allowed, const HttpRequest& request) {
  if (allowed.empty()) return {};
  const std::string_view origin = request.Header("origin");
  if (origin.empty()) return {};
  constexpr std::string_view kExpose = "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n";
  if (std::ranges::find(allowed, "*") != allowed.end()) {
    return std::string("Access-Control-Allow-Origin: *\r\n").append(kExpose);
  }
  // An answer for one origin must not be taken from a cache for another.
  std::string out = "Vary: Origin\r\n";
  const auto found = std::ranges::find(allowed, origin);
  if (found == allowed.end()) return out;
  // The configured text, not the client's.
  return out.append("Access-Control-Allow-Origin: ").append(*found).append("\r\n").append(kExpose);
}

bool IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.Header("origin").empty() &&
         !request.Header("access-control-request-method").empty();
}

HttpResponse PreflightResponse() {
  return {.status = 200,
          .content_type = "",
          .body = {},
          .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
                      {"Access-Control-Allow-Headers",
                       "Authorization, Content-Type, X-Request-Id, X-Stainless-Arch, X-Stainless-Lang, "
                       "X-Stainless-OS, X-Stainless-Package-Version, X-Stainless-Retry-Count, "
                       "X-Stainless-Runtime, X-Stainless-Runtime-Version, X-Stainless-Timeout"},
                      {"Access-Control-Max-Age", "600"}}};
}

}  // namespace attest
