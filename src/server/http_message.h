// HTTP requests and responses as plain values, and the bytes of a response. No sockets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attest {

struct HttpRequest {
  std::string method;      // "GET"
  std::string path;        // without the query, still percent-encoded
  std::string query;       // without the '?'
  std::string body;        // complete
  std::string request_id;  // the client's x-request-id when sane, else generated; also sent back
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case

  // The first value of a header, or "" when absent. `name` in lower case.
  [[nodiscard]] std::string_view Header(std::string_view name) const;
};

// Each takes some 200 bytes while its request's body is on its way, however short it is.
inline constexpr size_t kMaxHeaderFields = 128;
// Of a 503: clients such as the OpenAI SDK wait this long before they try again.
inline constexpr const char kRetryAfterSeconds[] = "1";

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // "": none
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // beyond content-type, length, x-request-id
  bool is_logged = true;                                     // false: pages ask for it every second
};

// What the connection adds to a response.
struct ResponseFraming {
  std::optional<size_t> content_length;  // unset: a stream
  bool chunked = true;                   // of a stream; an HTTP/1.0 client gets none and the end closes
  bool keep_alive = true;
  std::string_view request_id;
  std::string_view more = {};  // header lines, each ending in CR LF
};

void AppendResponseHead(std::string& out, const HttpResponse& response, const ResponseFraming& framing);
void AppendChunk(std::string& out, std::string_view data);  // one chunk of a chunked body

// Fills path and query from a request target; the absolute form (http://host/path) loses its host.
void SplitTarget(std::string_view target, HttpRequest& request);
// Why a request cannot be taken though it can be parsed: a proxy before this server may see its end, or whom
// it is for, elsewhere. Empty: nothing is wrong. The parser refuses lengths that contradict each other
// itself.
[[nodiscard]] std::string_view FindFault(const HttpRequest& request, bool is_http_1_0);
// Decodes %XX; a '%' that no two hex digits follow is kept as it is.
[[nodiscard]] std::string PercentDecode(std::string_view text);
[[nodiscard]] std::string ToLowerAscii(std::string_view text);
// 1 to 128 letters, digits, '-', '_', '.', ':': such an id may stand in a header and in a log line.
[[nodiscard]] bool IsSaneRequestId(std::string_view id);

}  // namespace attest
