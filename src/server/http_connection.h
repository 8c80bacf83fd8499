// One TCP connection of the HTTP server: its socket, its buffers and the request it is at. Plain data of the
// I/O thread; http_server.cc is its only user, since it brings Boost along.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
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

// Requests sent ahead while one is answered, or its answer is not read, are kept up to here; beyond, the
// socket is not read.
inline constexpr size_t kMaxReadAhead = 64 << 10;
// After an answer that closes the connection, input is thrown away until this much silence: closing at once,
// with unread input, would reset the connection and could destroy the answer on its way.
inline constexpr std::chrono::seconds kLinger{1};
inline constexpr std::chrono::seconds kMaxLinger{30};

// Of a buffer that is empty: thousands of connections may idle.
inline constexpr size_t kKeptCapacity = 4 << 10;
// The kernel doubles it. 128 KiB are 600 events, and 2.5 MB/s to a client 100 ms away.
inline constexpr int kSendBufferBytes = 128 << 10;
// A reader that takes nothing is closed, and counted, by the server before the system does so.
inline constexpr std::chrono::seconds kSystemSlack{5};
// A peer that answers no probe is gone after 30 + 3 * 10 seconds.
inline constexpr int kProbeAfterSeconds = 30, kProbeSeconds = 10, kProbes = 3;

// Gives its memory back: neither = {} nor = std::string() does.
inline void FreeString(std::string& text) { std::string().swap(text); }

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
  // Of the stream: bytes queued since it was last flushed, and the most there ever were.
  size_t burst = 0, largest_burst = 0;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>>
      parser;  // engaged from a request's first byte
  bool header_seen = false;
  HttpRequest request;  // its head, from then on
  bool waiting_read = false, waiting_write = false;
  bool close_when_flushed = false;
  // Let in beyond max_connections: closed after one answer, and only GET and HEAD get theirs.
  bool is_spare = false;
  size_t body_bytes_held = 0;       // of the request being read
  Clock::time_point request_begin;  // first byte of the request
  Clock::time_point body_begin;     // end of its header
  Clock::time_point last_read = Clock::now();
  Clock::time_point last_write = Clock::now();  // progress of `out`
  Clock::time_point last_event;                 // queued in the stream
  Clock::time_point linger_begin;

  // Of the request being answered.
  ExchangeId exchange = 0;
  std::string request_id, log_line, cors;    // cors: header lines
  const char* why_closed = "by the client";  // in the log
  int status = 0;
  size_t body_bytes = 0;  // sent
  bool head = false, keep_alive = true, chunked = true;

  // The socket took the next n bytes. What is sent goes when it is half of the buffer: a reader that is
  // always a little behind must not make it grow.
  void DropSent(size_t n) {
    out_begin += n;
    if (out_begin < unread()) return;
    out.erase(0, std::exchange(out_begin, 0));
    if (out.empty() && out.capacity() > kKeptCapacity) FreeString(out);
  }
  [[nodiscard]] size_t unread() const { return out.size() - out_begin; }
  // Once the parser has the header. False: it was taken before.
  bool TakeHead();
  [[nodiscard]] bool answering() const {
    return state == ConnectionState::kHandling || state == ConnectionState::kStreaming;
  }
};

// Everything but the request id and the body, of a message whose header is complete and whose body is not:
// the parser adds a trailer's fields to the header's, and a key that came there would be none that a proxy
// saw.
inline HttpRequest HeadOf(const boost::beast::http::request<boost::beast::http::string_body>& message) {
  HttpRequest request;
  const auto view = [](boost::string_view text) { return std::string_view(text.data(), text.size()); };
  request.method = view(message.method_string());
  SplitTarget(view(message.target()), request);
  for (const auto& field : message) {
    request.headers.emplace_back(ToLowerAscii(view(field.name_string())), view(field.value()));
  }
  return request;
}

inline bool Connection::TakeHead() {
  if (std::exchange(header_seen, true)) return false;
  body_begin = Clock::now();
  request = HeadOf(parser->get());
  return true;
}

// What a connection has waited too long for.
enum class Overdue { kNothing, kClient, kReader, kHeader, kBody, kPing };

inline Overdue FindOverdue(const Connection& c, const HttpServerOptions& options,
                           Connection::Clock::time_point now) {
  using std::chrono::seconds;
  if (c.state == ConnectionState::kDoomed) return Overdue::kNothing;
  if (c.unread() > 0)
    return now - c.last_write > options.write_timeout ? Overdue::kReader : Overdue::kNothing;
  switch (c.state) {
    case ConnectionState::kStreaming:
      return now - c.last_event >= options.ping_interval ? Overdue::kPing : Overdue::kNothing;
    case ConnectionState::kLingering: {
      const bool is_over =
          now - std::max(c.last_read, c.linger_begin) > kLinger || now - c.linger_begin > kMaxLinger;
      return is_over ? Overdue::kClient : Overdue::kNothing;
    }
    case ConnectionState::kReading: {
      if (!c.parser) {
        const auto limit = c.is_spare ? options.header_timeout : options.idle_timeout;
        return now - std::max(c.last_read, c.last_write) > limit ? Overdue::kClient : Overdue::kNothing;
      }
      if (!c.header_seen)
        return now - c.request_begin > options.header_timeout ? Overdue::kHeader : Overdue::kNothing;
      // A body that drips is never silent, but it earns little time.
      const auto earned =
          std::chrono::milliseconds(1000 * c.body_bytes_held / options.min_body_bytes_per_second);
      const bool is_late =
          now - c.last_read > options.body_timeout || now - c.body_begin > options.body_timeout + earned;
      return is_late ? Overdue::kBody : Overdue::kNothing;
    }
    case ConnectionState::kHandling:
    case ConnectionState::kDoomed:
      return Overdue::kNothing;
  }
  return Overdue::kNothing;
}

// How often to look for what is overdue.
inline std::chrono::milliseconds TickInterval(const HttpServerOptions& options) {
  using std::chrono::milliseconds;
  const milliseconds shortest = std::min({options.header_timeout, options.body_timeout, options.idle_timeout,
                                          options.write_timeout, options.ping_interval});
  return std::clamp(shortest / 4, milliseconds{5}, milliseconds{250});
}

// An event must not wait for the acknowledgement of the last one; a peer that is no more, without a word,
// must be noticed, also while nothing is sent to it; and what a slow reader leaves waits where it is counted,
// not in megabytes of kernel memory.
inline void SetSocketOptions(boost::asio::ip::tcp::socket& socket, const HttpServerOptions& options) {
  using boost::asio::ip::tcp;
  boost::system::error_code ec;  // a socket without one of these still serves
  socket.non_blocking(true, ec);
  socket.set_option(tcp::no_delay(true), ec);
  socket.set_option(boost::asio::socket_base::keep_alive(true), ec);
  socket.set_option(boost::asio::socket_base::send_buffer_size(kSendBufferBytes), ec);
  const int fd = socket.native_handle();
  const auto set = [fd](int option, int value) {
    ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, kProbeAfterSeconds);
  set(TCP_KEEPINTVL, kProbeSeconds);
  set(TCP_KEEPCNT, kProbes);
  set(TCP_USER_TIMEOUT, static_cast<int>((options.write_timeout + kSystemSlack).count()));
}

// What is left of a chunked body has at least five bytes, and Beast asserts that it sees them behind a last
// chunk. True: `in` is to be parsed when more has come.
template <class Parser>
bool IsTooShortToParse(const Parser& parser, size_t in_bytes) {
  constexpr size_t kShortestEnd = 5;  // "0\r\n\r\n"
  return parser.is_header_done() && parser.chunked() && in_bytes < kShortestEnd;
}

// Hands `in` to the parser: up to the end of the header, or as many pieces of the body as have come. The
// parser takes one chunk at a time, and erasing each from the front would move all that follow: bodies in
// chunks of one byte would cost their square.
template <class Parser>
boost::system::error_code Feed(Parser& parser, std::string& in) {
  const bool is_in_body = parser.is_header_done();
  boost::system::error_code ec;
  size_t taken = 0, n = 0;
  do {
    n = parser.put(boost::asio::buffer(in.data() + taken, in.size() - taken), ec);
    taken += n;
  } while (is_in_body && !ec && n > 0 && taken < in.size() && !parser.is_done() &&
           !IsTooShortToParse(parser, in.size() - taken));
  in.erase(0, taken);
  return ec;
}

}  // namespace attest
