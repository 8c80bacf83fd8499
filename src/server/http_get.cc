#include "server/http_get.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <string_view>

namespace attest {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

constexpr size_t kMaxBodyBytes = size_t{1} << 20;

struct Target {
  std::string host, port = "80", path = "/";
};

Expected<Target> ParseUrl(const std::string& url) {
  const auto bad = [&] {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no URL like http://127.0.0.1:8000", url),
                "url");
  };
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (!rest.starts_with(kScheme)) return bad();
  rest.remove_prefix(kScheme.size());
  Target target;
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (slash < rest.size()) target.path = rest.substr(slash);
  std::string_view authority = rest.substr(0, slash);
  if (authority.starts_with('[')) {  // an IPv6 address
    const size_t end = authority.find(']');
    if (end == authority.npos) return bad();
    target.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    target.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (authority.starts_with(':')) {
    target.port = authority.substr(1);
  } else if (!authority.empty()) {
    return bad();
  }
  const bool is_number = !target.port.empty() && target.port.size() <= 5 &&
                         target.port.find_first_not_of("0123456789") == std::string::npos;
  const bool is_clean = url.find_first_of(" \r\n\t") == std::string::npos;
  if (target.host.empty() || !is_number || !is_clean) return bad();
  return target;
}

}  // namespace

Expected<HttpReplyText> HttpGet(const std::string& url, std::chrono::milliseconds timeout) {
  ATTEST_ASSIGN_OR_RETURN(const Target target, ParseUrl(url));
  const auto unavailable = [&](const char* call, const beast::error_code& error) {
    return Fail(ErrorCode::kUnavailable, fmt::format("{}: {}: {}", url, call, error.message()), "url");
  };
  asio::io_context io;
  beast::error_code error;
  tcp::resolver resolver(io);
  const auto addresses = resolver.resolve(target.host, target.port, error);
  if (error) return unavailable("resolve", error);

  // Asynchronous calls, one at a time: only they keep the time limit of the stream.
  beast::tcp_stream stream(io);
  const auto run = [&](auto start) {
    stream.expires_after(timeout);
    start([&](const beast::error_code& result, auto&&...) { error = result; });
    io.restart();
    io.run();
  };
  run([&](auto done) { stream.async_connect(addresses, done); });
  if (error) return unavailable("connect", error);
  http::request<http::empty_body> request(http::verb::get, target.path, 11);
  request.set(http::field::host, target.host);
  request.set(http::field::connection, "close");
  run([&](auto done) { http::async_write(stream, request, done); });
  if (error) return unavailable("send", error);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBodyBytes);
  run([&](auto done) { http::async_read(stream, buffer, parser, done); });
  if (error) return unavailable("receive", error);
  return HttpReplyText{.status = static_cast<int>(parser.get().result_int()), .body = parser.get().body()};
}

}  // namespace attest
