#include "server/cors.h"

#include <algorithm>

namespace attest {
namespace {

// Names of headers with commas between them, and nothing that could end a header line.
bool IsNameList(std::string_view text) {
  constexpr std::string_view kBetweenWords = "!#$%&'*+-.^_`|~, ";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kBetweenWords.contains(c);
  });
}

}  // namespace

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

HttpResponse PreflightResponse(const HttpRequest& request) {
  HttpResponse response{.status = 200,
                        .content_type = "",
                        .body = {},
                        .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
                                    {"Access-Control-Max-Age", "600"}}};
  // SDKs and chat pages send headers of their own, which do no harm: pages of an allowed origin may send any.
  if (const std::string_view wanted = request.Header("access-control-request-headers"); IsNameList(wanted)) {
    response.headers.emplace_back("Access-Control-Allow-Headers", wanted);
  }
  return response;
}

}  // namespace attest
