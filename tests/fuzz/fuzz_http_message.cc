// Bytes on a connection: parsed as the server parses them, in one piece and in pieces, which must agree; then
// through everything that reads the request's words. The first byte chooses how the message begins, since a
// million runs that begin with nothing find no request line.
#include <array>
#include <boost/asio/buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/cors.h"
#include "server/http_connection.h"
#include "server/json_writer.h"

namespace {

namespace http = boost::beast::http;

struct Outcome {
  std::string error;  // "": a whole request, or not yet one
  std::optional<attest::HttpRequest> request;
};

// As BoostHttpServer::ProcessInput, with `step` bytes arriving at a time.
Outcome Parse(std::string_view bytes, size_t step) {
  http::request_parser<http::string_body> parser;
  parser.header_limit(8 << 10);
  parser.body_limit(16 << 10);
  std::string in;
  std::optional<attest::HttpRequest> head;
  while (!bytes.empty()) {
    in.append(bytes.substr(0, step));
    bytes.remove_prefix(std::min(step, bytes.size()));
    for (bool wants_more = false; !wants_more && !in.empty();) {
      if (attest::IsTooShortToParse(parser, in.size())) break;
      const boost::system::error_code ec = attest::Feed(parser, in);
      if (ec == http::error::need_more) {
        wants_more = true;
      } else if (ec) {
        return {.error = ec.message(), .request = std::nullopt};
      }
      if (!head && parser.is_header_done()) {
        head = attest::HeadOf(parser.get());
        const std::string_view fault = attest::FindFault(*head, parser.get().version() < 11);
        if (!fault.empty()) return {.error = std::string(fault), .request = std::nullopt};
      }
      if (!ec && parser.is_done()) {
        head->body = parser.release().body();
        return {.error = "", .request = std::move(head)};
      }
    }
  }
  return {};
}

constexpr std::array<std::string_view, 4> kBeginnings = {"", "GET ", "GET / HTTP/1.1\r\n",
                                                         "POST /v1/completions HTTP/1.1\r\nX-Request-Id: "};

bool IsOneHeaderLine(std::string_view text) { return text.find_first_of("\r\n") == std::string_view::npos; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string bytes(kBeginnings[data[0] % kBeginnings.size()]);
  bytes.append(reinterpret_cast<const char*>(data + 1), size - 1);
  const Outcome whole = Parse(bytes, std::max<size_t>(bytes.size(), 1));
  const Outcome pieces = Parse(bytes, 1 + size % 7);
  if (whole.request.has_value() != pieces.request.has_value()) std::abort();
  if (!whole.request) return 0;
  const attest::HttpRequest& request = *whole.request;
  if (request.body != pieces.request->body || request.path != pieces.request->path ||
      request.headers != pieces.request->headers) {
    std::abort();
  }
  if (request.path.find('?') != std::string::npos) std::abort();
  if (attest::PercentDecode(request.path).size() > request.path.size()) std::abort();
  for (const auto& [name, value] : request.headers) {
    if (!IsOneHeaderLine(name) || attest::ToLowerAscii(name) != name) std::abort();
  }
  // What a client chose goes back only as a word that cannot end a header.
  const std::string_view id = request.Header("x-request-id");
  if (attest::IsSaneRequestId(id) && !IsOneHeaderLine(id)) std::abort();
  const std::string cors = attest::CorsHeaders({"https://a.example", "https://b.example"}, request);
  std::string head;
  attest::AppendResponseHead(
      head, {.body = {}, .headers = {{"Allow", "GET"}}},
      {.content_length = 0, .request_id = attest::IsSaneRequestId(id) ? id : "none", .more = cors});
  if (head.find("\r\n\r\n") != head.size() - 4) std::abort();
  std::string json;
  attest::AppendJsonString(json, request.path);
  return 0;
}
