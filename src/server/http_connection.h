// One TCP connection of the HTTP server: its socket, its buffers and the request it is at. Plain data of the
// I/O thread; http_server.cc is its only user, since it brings Boost along.
#pragma once

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "server/http_server.h"

namespace attest {

// Requests sent ahead while one is answered are kept up to here; beyond, the socket is not read.
inline constexpr size_t kMaxReadAhead = 64 << 10;
// After an answer that closes the connection, input is thrown away until this much silence: closing at once,
// with unread input, would reset the connection and could destroy the answer on its way.
inline constexpr std::chrono::seconds kLinger{1};
inline constexpr std::chrono::seconds kMaxLinger{30};

enum class ConnectionState {
  kReading,    // a request, or waiting for one
  kHandling,   // dispatched, not yet answered
  kStreaming,  // StartStream to EndStream
  kLingering,  // answered for good; input is thrown away until the peer closes
  kDoomed,     // failed; closed by the task that is already posted
};

struct Connection {
  using Clock = std::chrono::steady_clock;

  Connection(boost::asio::ip::tcp::socket s, uint64_t number) : socket(std::move(s)), id(number) {}

  boost::asio::ip::tcp::socket socket;
  uint64_t id;
  ConnectionState state = ConnectionState::kReading;
  std::string in;   // received, not parsed
  std::string out;  // not yet taken by the socket, from out_begin on
  size_t out_begin = 0;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>>
      parser;  // engaged from a request's first byte
  bool header_seen = false;
  bool waiting_read = false, waiting_write = false;
  bool processing = false;  // ProcessInput is on the stack
  bool close_when_flushed = false;
  Clock::time_point request_begin;  // first byte of the request
  Clock::time_point last_read = Clock::now();
  Clock::time_point last_write = Clock::now();  // progress of `out`
  Clock::time_point last_event;                 // queued in the stream
  Clock::time_point linger_begin;

  // Of the request being answered.
  ExchangeId exchange = 0;
  std::string request_id, log_line, cors;  // cors: header lines
  int status = 0;
  size_t body_bytes = 0;  // sent
  bool head = false, keep_alive = true, chunked = true;

  [[nodiscard]] size_t unread() const { return out.size() - out_begin; }
  [[nodiscard]] bool answering() const {
    return state == ConnectionState::kHandling || state == ConnectionState::kStreaming;
  }
};

// Resolves the host, binds and listens; returns the port.
inline Expected<uint16_t> OpenListener(const HttpServerOptions& options,
                                       boost::asio::ip::tcp::acceptor& acceptor) {
  using boost::asio::ip::tcp;
  boost::system::error_code ec;
  tcp::resolver resolver(acceptor.get_executor());
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) {
    return Fail(ErrorCode::kIo, fmt::format("cannot resolve host {}: {}", options.host, ec.message()),
                "host");
  }
  const tcp::endpoint endpoint = *found.begin();
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec && endpoint.address().is_v6()) acceptor.set_option(boost::asio::ip::v6_only(false), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(boost::asio::socket_base::max_listen_connections, ec);
  if (ec) {
    return Fail(ErrorCode::kIo,
                fmt::format("cannot listen on {}:{}: {}", options.host, options.port, ec.message()), "port");
  }
  return acceptor.local_endpoint(ec).port();
}

// Takes everything but the request id out of a complete message.
inline HttpRequest ToHttpRequest(boost::beast::http::request<boost::beast::http::string_body>& message) {
  HttpRequest request;
  const auto view = [](boost::string_view text) { return std::string_view(text.data(), text.size()); };
  request.method = view(message.method_string());
  SplitTarget(view(message.target()), request);
  for (const auto& field : message) {
    request.headers.emplace_back(ToLowerAscii(view(field.name_string())), view(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

}  // namespace attest
