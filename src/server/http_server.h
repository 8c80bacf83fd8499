// HTTP/1.1 over TCP: one I/O thread, requests in, responses and event streams out. It knows nothing of models
// or of the routes it serves. Owned by Server (server.h). Boost is in its implementation, the http_*.h beside
// it, and http_get.cc alone.
//
// Threads: OnRequest and OnClosed run on the I/O thread, and so must every call marked so below. Other
// threads reach it through Post. A client that closes its side while its request is being answered counts as
// gone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/http_message.h"

namespace attest {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a name or an address; "0.0.0.0" and "::" listen on all interfaces
  uint16_t port = 8000;            // 0: the system picks one, see HttpServer::port()
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 16 << 20;  // a larger request body is a 413
  size_t max_connections = 16384;
  // So many more are let in for one answer each: GET and HEAD are served, for probes and metrics, and
  // anything else is a 503. The next one waits in the kernel's backlog until one leaves.
  size_t spare_connections = 64;
  // Of all request bodies that are being received, and again of all that wait to be read by a worker; the one
  // that passes it is a 503.
  size_t max_held_body_bytes = 256 << 20;
  // Bytes a stream may leave unread, beside the most that was ever sent between two calls of Flush (the
  // echoes of many long prompts), which no reader can have taken; one more and the connection is closed. 1
  // MiB is about 5,000 events.
  size_t max_unread_bytes = 1 << 20;
  std::chrono::milliseconds header_timeout{10'000};  // first byte of a request to the end of its header
  // Silence inside a body; and all of it, but for what its bytes earn.
  std::chrono::milliseconds body_timeout{30'000};
  int min_body_bytes_per_second = 500;
  std::chrono::milliseconds idle_timeout{75'000};   // silence between two requests
  std::chrono::milliseconds write_timeout{30'000};  // a reader that takes nothing
  std::chrono::milliseconds ping_interval{15'000};  // silence in a stream before a comment is sent
  bool log_requests = true;                         // one line per answered request
  // Web origins whose pages may read the answers, or "*"; none: no CORS headers, and OPTIONS is a 405.
  std::vector<std::string> allowed_origins = {};
};

// Names one request until its answer is complete or its client is gone; never reused.
using ExchangeId = uint64_t;

struct HttpStats {
  size_t connections = 0;
  size_t streams = 0;                // answers under way as event streams
  size_t unread_bytes = 0;           // waiting for slow readers
  uint64_t slow_readers_closed = 0;  // connections closed over max_unread_bytes or write_timeout, ever
  // Answers that no handler gave, ever, by status: what is no request, too large, too slow, or one connection
  // too many.
  std::map<int, uint64_t> refused = {};
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Must lead to exactly one Respond or StartStream, now or later, unless OnClosed comes first. HEAD arrives
  // as HEAD; the body of its answer is not sent.
  virtual void OnRequest(ExchangeId id, HttpRequest request) = 0;
  // The client left, or was closed for not reading, before the answer was complete. `id` is dead. Never
  // called from inside Respond, StartStream, Send, Flush or EndStream.
  virtual void OnClosed(ExchangeId id) = 0;
};

class HttpServer {
 public:
  // Binds and listens, so that port() is known; nothing is accepted before Run. An address that cannot be had
  // is kIo and names host:port and the system's reason.
  static Expected<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options);
  virtual ~HttpServer() = default;  // Stop and Join

  // Starts the I/O thread. `handler` must outlive Join.
  virtual void Run(HttpHandler& handler) = 0;

  // I/O thread. Calls with a dead id are ignored.
  virtual void Respond(ExchangeId id, HttpResponse response) = 0;
  virtual void StartStream(ExchangeId id, HttpResponse head) = 0;  // head.body is not used
  // Queues one event (framing included, e.g. "data: {}\n\n") as one HTTP chunk. Flush hands all queued chunks
  // to the socket in one send where it takes them.
  virtual void Send(ExchangeId id, std::string_view event) = 0;
  virtual void Flush(ExchangeId id) = 0;
  virtual void EndStream(ExchangeId id) = 0;
  [[nodiscard]] virtual bool IsOpen(ExchangeId id) const = 0;
  [[nodiscard]] virtual HttpStats stats() const = 0;

  // Any thread.
  virtual void Post(std::move_only_function<void()> task) = 0;  // runs on the I/O thread, in order
  virtual void Shutdown() = 0;  // stops listening, closes idle connections, lets the others finish
  virtual void Stop() = 0;      // closes everything
  virtual void Join() = 0;      // returns when the I/O thread ended after Shutdown or Stop
  [[nodiscard]] virtual uint16_t port() const = 0;
  [[nodiscard]] virtual bool is_io_thread() const = 0;  // the calling one
};

}  // namespace attest
