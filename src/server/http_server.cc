#include "server/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "server/api_error.h"
#include "server/cors.h"
#include "server/http_connection.h"
#include "server/http_connection_table.h"
#include "server/http_listener.h"

namespace attest {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using Clock = Connection::Clock;
using State = ConnectionState;

constexpr size_t kReadSize = 64 << 10;

class BoostHttpServer final : public HttpServer {
 public:
  explicit BoostHttpServer(const HttpServerOptions& options)
      : options_(options), listener_(io_), tick_(io_), random_(std::random_device{}()) {}
  ~BoostHttpServer() override {
    Stop();
    Join();
  }

  Status Open() {
    ATTEST_ASSIGN_OR_RETURN(port_, listener_.Open(options_));
    return {};
  }
  void Run(HttpHandler& handler) override;
  void Respond(ExchangeId id, HttpResponse response) override;
  void StartStream(ExchangeId id, HttpResponse head) override;
  void Send(ExchangeId id, std::string_view event) override;
  void Flush(ExchangeId id) override {
    if (Connection* c = connections_.FindExchange(id)) {
      c->burst = 0;
      FlushOut(*c);
    }
  }
  void EndStream(ExchangeId id) override;
  bool IsOpen(ExchangeId id) const override { return connections_.IsOpen(id); }
  HttpStats stats() const override;
  void Post(std::move_only_function<void()> task) override { asio::post(io_, std::move(task)); }
  void Shutdown() override;
  void Stop() override;
  void Join() override {
    if (thread_.joinable()) thread_.join();
  }
  uint16_t port() const override { return port_; }
  bool is_io_thread() const override { return std::this_thread::get_id() == io_thread_; }

 private:
  void AddConnection(tcp::socket socket);
  std::string TurnAway();  // the answer
  void WaitRead(Connection& c);
  void OnReadable(Connection& c);
  void ProcessInput(Connection& c);
  void TakeInput(Connection& c) {
    if (c.state == State::kDoomed) return;
    ProcessInput(c);
    connections_.HoldBody(c, c.parser ? c.parser->get().body().size() : 0);
    if (connections_.held_body_bytes() > options_.max_held_body_bytes && c.body_bytes_held > 0) {
      Refuse(c, 503, fmt::format("over {} bytes of bodies are under way", options_.max_held_body_bytes));
    }
  }
  void BeginAnswer(Connection& c, std::string request_id);
  void Dispatch(Connection& c);
  void Refuse(Connection& c, int status, std::string_view message);
  void WriteHead(Connection& c, const HttpResponse& response, std::optional<size_t> length);
  void QueueEvent(Connection& c, std::string_view event);
  void FlushOut(Connection& c);
  void FinishAnswer(Connection& c);
  void StartLinger(Connection& c);
  void Doom(Connection& c);
  void DoomReader(Connection& c) {
    ++slow_readers_closed_;
    c.why_closed = "because it was not read";
    Doom(c);
  }
  void Close(uint64_t id);
  void StopListening() {
    shutting_down_ = true;
    listener_.Close();
  }
  void Tick();
  void CheckTimeouts();
  void FinishIfIdle();
  std::string NewRequestId() { return fmt::format("{:016x}{:08x}", random_(), next_id_ & 0xffffffffu); }

  const HttpServerOptions options_;
  asio::io_context io_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  Listener listener_;
  asio::steady_timer tick_;
  std::mt19937_64 random_;
  HttpHandler* handler_ = nullptr;
  uint16_t port_ = 0;
  std::thread thread_;
  std::atomic<std::thread::id> io_thread_;  // set by itself; its id also while it is joined

  // I/O thread only.
  ConnectionTable connections_;
  uint64_t next_id_ = 0, slow_readers_closed_ = 0;
  std::map<int, uint64_t> refused_;
  bool shutting_down_ = false;
  std::array<char, kReadSize> scratch_;
};

void BoostHttpServer::Run(HttpHandler& handler) {
  handler_ = &handler;
  work_.emplace(io_.get_executor());
  thread_ = std::thread([this] {
    io_thread_ = std::this_thread::get_id();
    listener_.Start([this](tcp::socket socket) { AddConnection(std::move(socket)); },
                    [this] { return TurnAway(); });
    Tick();
    io_.run();
  });
}

void BoostHttpServer::AddConnection(tcp::socket socket) {
  SetSocketOptions(socket, options_);
  const uint64_t id = ++next_id_;
  Connection& c = connections_.Add(std::move(socket), id);
  c.is_spare = connections_.size() > options_.max_connections;
  if (connections_.size() >= options_.max_connections + options_.spare_connections) listener_.Pause();
  WaitRead(c);
}

std::string BoostHttpServer::TurnAway() {
  ++refused_[503];
  const std::string body = ErrorBody(503, "the server has no descriptor left for this connection; try again");
  std::string out;
  AppendResponseHead(out, {.status = 503, .body = {}, .headers = {{"Retry-After", kRetryAfterSeconds}}},
                     {.content_length = body.size(), .keep_alive = false, .request_id = NewRequestId()});
  return out + body;
}

void BoostHttpServer::WaitRead(Connection& c) {
  if (c.waiting_read || c.state == State::kDoomed) return;
  if ((c.answering() || c.unread() > 0) && c.in.size() >= kMaxReadAhead) return;
  c.waiting_read = true;
  c.socket.async_wait(tcp::socket::wait_read, [this, id = c.id](const error_code& ec) {
    Connection* connection = connections_.Find(id);
    if (connection == nullptr) return;
    connection->waiting_read = false;
    if (ec) return Close(id);
    OnReadable(*connection);
  });
}

void BoostHttpServer::OnReadable(Connection& c) {
  if (c.state == State::kDoomed) return;
  error_code ec;
  const size_t n = c.socket.read_some(asio::buffer(scratch_), ec);
  if (ec == asio::error::would_block) return WaitRead(c);
  if (ec) {
    // The peer has closed. An answer that is complete but not yet taken by the socket is still delivered.
    if (ec != asio::error::eof || c.answering() || c.unread() == 0) return Close(c.id);
    c.close_when_flushed = true;
    return;
  }
  c.last_read = Clock::now();
  if (c.state != State::kLingering) {
    c.in.append(scratch_.data(), n);
    TakeInput(c);
  }
  WaitRead(c);
}

// Up to one request: those sent ahead wait for tasks of their own, so that 64 KiB of them hold nobody up, and
// for the reader of the answers before, so that those do not pile up.
void BoostHttpServer::ProcessInput(Connection& c) {
  while (c.state == State::kReading && !c.close_when_flushed && c.unread() == 0 && !c.in.empty()) {
    if (!c.parser) {
      const size_t start =
          std::min(c.in.find_first_not_of("\r\n"), c.in.size());  // blank lines between requests
      c.in.erase(0, start);
      if (c.in.empty()) return;
      c.parser.emplace();
      c.parser->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
      c.parser->body_limit(options_.max_body_bytes);
      c.request_begin = Clock::now();
      c.header_seen = false;
    }
    if (IsTooShortToParse(*c.parser, c.in.size())) return;
    const error_code ec = Feed(*c.parser, c.in);
    if (ec == http::error::need_more) {
      // The parser bounds the header and the body; extensions and trailers of chunks it leaves to us.
      if (c.header_seen && c.in.size() > options_.max_header_bytes) {
        Refuse(c, 431,
               fmt::format("a chunk's header or trailer is larger than {} bytes", options_.max_header_bytes));
      }
      return;
    }
    const bool begins_body = !ec && c.TakeHead();
    if (ec == http::error::body_limit) {
      Refuse(c, 413, fmt::format("the request body is larger than {} bytes", options_.max_body_bytes));
    } else if (ec == http::error::header_limit) {
      Refuse(c, 431, fmt::format("the request header is larger than {} bytes", options_.max_header_bytes));
    } else if (ec) {
      Refuse(c, 400, fmt::format("not a valid HTTP request: {}", ec.message()));
    } else if (begins_body && c.request.headers.size() > kMaxHeaderFields) {
      Refuse(c, 431, fmt::format("the request header has more than {} fields", kMaxHeaderFields));
    } else if (const auto fault = begins_body ? FindFault(c.request, c.parser->get().version() < 11) : "";
               !fault.empty()) {
      Refuse(c, 400, fmt::format("not a request that can be taken: {}", fault));
    } else if (c.is_spare && c.parser->get().method() != http::verb::get &&
               c.parser->get().method() != http::verb::head) {
      Refuse(c, 503, fmt::format("all {} connections are taken; try again", options_.max_connections));
    } else if (c.parser->is_done()) {
      return Dispatch(c);
    } else if (begins_body && ToLowerAscii(c.request.Header("expect")) == "100-continue") {
      c.out += "HTTP/1.1 100 Continue\r\n\r\n";
      FlushOut(c);
    }
  }
}

// Starts the bookkeeping of one answer.
void BoostHttpServer::BeginAnswer(Connection& c, std::string request_id) {
  connections_.BeginExchange(c, ++next_id_);
  c.request_id = std::move(request_id);
  c.body_bytes = 0;
  c.state = State::kHandling;
}

void BoostHttpServer::Dispatch(Connection& c) {
  auto message = c.parser->release();
  c.parser.reset();
  HttpRequest request = std::exchange(c.request, {});
  request.body = std::move(message.body());
  const std::string_view sent_id = request.Header("x-request-id");
  request.request_id = IsSaneRequestId(sent_id) ? std::string(sent_id) : NewRequestId();
  c.cors = CorsHeaders(options_.allowed_origins, request);
  c.head = request.method == "HEAD";
  c.keep_alive = message.keep_alive() && !shutting_down_ && !c.is_spare;
  c.chunked = message.version() >= 11;
  if (options_.log_requests)
    c.log_line = fmt::format("{} {}", request.method.substr(0, 16), request.path.substr(0, 256));
  if (c.in.empty() && c.in.capacity() > kKeptCapacity) FreeString(c.in);
  BeginAnswer(c, request.request_id);
  handler_->OnRequest(c.exchange, std::move(request));
}

// Answers what no handler sees, and closes.
void BoostHttpServer::Refuse(Connection& c, int status, std::string_view message) {
  c.parser.reset();
  c.request = {};
  connections_.HoldBody(c, 0);
  ++refused_[status];
  c.head = c.keep_alive = false;
  c.log_line = options_.log_requests ? "refused" : "";
  c.cors.clear();
  BeginAnswer(c, NewRequestId());
  HttpResponse response{.status = status, .body = ErrorBody(status, message), .headers = {}};
  if (status == 503) response.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  Respond(c.exchange, std::move(response));
}

void BoostHttpServer::WriteHead(Connection& c, const HttpResponse& response, std::optional<size_t> length) {
  if (!length && !c.chunked) c.keep_alive = false;  // HTTP/1.0: the end of the stream is the connection's
  AppendResponseHead(c.out, response,
                     {.content_length = length,
                      .chunked = c.chunked,
                      .keep_alive = c.keep_alive,
                      .request_id = c.request_id,
                      .more = c.cors});
  c.status = response.status;
}

void BoostHttpServer::Respond(ExchangeId id, HttpResponse response) {
  Connection* c = connections_.FindExchange(id);
  if (c == nullptr) return;
  ATTEST_CHECK(c->state == State::kHandling);
  if (!response.is_logged) c->log_line.clear();
  WriteHead(*c, response, response.body.size());
  if (!c->head) {
    c->out += response.body;
    c->body_bytes = response.body.size();
  }
  FinishAnswer(*c);
}

void BoostHttpServer::StartStream(ExchangeId id, HttpResponse head) {
  Connection* c = connections_.FindExchange(id);
  if (c == nullptr) return;
  ATTEST_CHECK(c->state == State::kHandling);
  c->state = State::kStreaming;
  c->burst = c->largest_burst = 0;
  c->last_event = Clock::now();
  WriteHead(*c, head, std::nullopt);
  FlushOut(*c);
}

void BoostHttpServer::QueueEvent(Connection& c, std::string_view event) {
  if (c.chunked) {
    AppendChunk(c.out, event);
  } else {
    c.out += event;
  }
  c.body_bytes += event.size();
  c.burst += event.size();
  c.largest_burst = std::max(c.largest_burst, c.burst);
  c.last_event = Clock::now();
}

void BoostHttpServer::Send(ExchangeId id, std::string_view event) {
  Connection* c = connections_.FindExchange(id);
  if (c == nullptr || event.empty()) return;  // an empty chunk would end the stream
  ATTEST_CHECK(c->state == State::kStreaming);
  QueueEvent(*c, event);
  const size_t most = options_.max_unread_bytes + c->largest_burst;
  if (c->unread() > most) FlushOut(*c);
  if (c->unread() <= most || c->state == State::kDoomed) return;
  DoomReader(*c);
}

void BoostHttpServer::EndStream(ExchangeId id) {
  Connection* c = connections_.FindExchange(id);
  if (c == nullptr) return;
  ATTEST_CHECK(c->state == State::kStreaming);
  if (c->chunked) c->out += "0\r\n\r\n";
  FinishAnswer(*c);
}

void BoostHttpServer::FlushOut(Connection& c) {
  if (c.waiting_write || c.state == State::kDoomed) return;
  while (c.unread() > 0) {
    error_code ec;
    const size_t n = c.socket.write_some(asio::buffer(c.out.data() + c.out_begin, c.unread()), ec);
    if (ec == asio::error::would_block) {
      c.waiting_write = true;
      c.last_write = Clock::now();
      c.socket.async_wait(tcp::socket::wait_write, [this, id = c.id](const error_code& failed) {
        Connection* connection = connections_.Find(id);
        if (connection == nullptr) return;
        connection->waiting_write = false;
        if (failed) return Close(id);
        FlushOut(*connection);
        TakeInput(*connection);  // what waited for the reader
        WaitRead(*connection);
      });
      return;
    }
    if (ec) return Doom(c);
    c.DropSent(n);
    c.last_write = Clock::now();
  }
  if (c.close_when_flushed) StartLinger(c);
}

void BoostHttpServer::FinishAnswer(Connection& c) {
  connections_.EndExchange(c.exchange);
  c.exchange = 0;
  c.state = State::kReading;
  c.close_when_flushed = !c.keep_alive || shutting_down_;
  if (!c.log_line.empty()) {
    const std::chrono::duration<double, std::milli> took = Clock::now() - c.request_begin;
    LogInfo(fmt::format("{} {} {} bytes {:.1f} ms {}", c.log_line, c.status, c.body_bytes, took.count(),
                        c.request_id));
  }
  FlushOut(c);
  if (c.state != State::kReading) return;
  Post([this, id = c.id] {  // what was sent ahead
    Connection* connection = connections_.Find(id);
    if (connection == nullptr) return;
    TakeInput(*connection);
    WaitRead(*connection);
  });
}

void BoostHttpServer::StartLinger(Connection& c) {
  error_code ec;
  c.socket.shutdown(tcp::socket::shutdown_send, ec);
  c.state = State::kLingering;
  c.linger_begin = Clock::now();
  FreeString(c.in);
  WaitRead(c);
}

void BoostHttpServer::Doom(Connection& c) {
  if (c.state == State::kDoomed) return;
  c.state = State::kDoomed;
  Post([this, id = c.id] { Close(id); });
}

// Destroys the connection: only ever the last act of a task of the I/O thread.
void BoostHttpServer::Close(uint64_t id) {
  const std::unique_ptr<Connection> closed = connections_.Take(id);
  if (!closed) return;
  Connection& c = *closed;
  error_code ec;
  c.socket.close(ec);
  if (connections_.EndExchange(c.exchange)) {
    if (!c.log_line.empty()) LogInfo(fmt::format("{} closed {} {}", c.log_line, c.why_closed, c.request_id));
    handler_->OnClosed(c.exchange);
  }
  listener_.Resume();
  FinishIfIdle();
}

void BoostHttpServer::Tick() {
  tick_.expires_after(TickInterval(options_));
  tick_.async_wait([this](const error_code& ec) {
    if (ec || !work_) return;  // without work_, the cancel came too late for a timer that had fired
    CheckTimeouts();
    Tick();
  });
}

void BoostHttpServer::CheckTimeouts() {
  const auto now = Clock::now();
  connections_.ForEach([&](Connection& c) {
    switch (FindOverdue(c, options_, now)) {
      case Overdue::kNothing:
        break;
      case Overdue::kClient:
        Doom(c);
        break;
      case Overdue::kReader:
        DoomReader(c);
        break;
      case Overdue::kHeader:
        Refuse(c, 408, "the request header did not arrive in time");
        break;
      case Overdue::kBody:
        Refuse(c, 408, "the request body did not arrive in time");
        break;
      case Overdue::kPing:
        QueueEvent(c, ": ping\n\n");
        FlushOut(c);
        break;
    }
  });
}

HttpStats BoostHttpServer::stats() const {
  HttpStats stats{.slow_readers_closed = slow_readers_closed_, .refused = refused_};
  connections_.Count(stats);
  return stats;
}

void BoostHttpServer::FinishIfIdle() {
  if (!shutting_down_ || connections_.size() > 0) return;
  tick_.cancel();
  work_.reset();
}

void BoostHttpServer::Shutdown() {
  Post([this] {
    StopListening();
    connections_.ForEach([this](Connection& c) {
      const bool between_requests = c.state == State::kReading && !c.parser;
      if (!between_requests) return;  // closed after its answer
      if (c.unread() == 0) {
        Doom(c);
      } else {
        c.close_when_flushed = true;
      }
    });
    FinishIfIdle();
  });
}

void BoostHttpServer::Stop() {
  Post([this] {
    StopListening();
    connections_.ForEach([](Connection& c) { c.why_closed = "because the server stopped"; });
    for (const uint64_t id : connections_.ids()) Close(id);
    FinishIfIdle();
  });
}

}  // namespace

Expected<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options) {
  auto server = std::make_unique<BoostHttpServer>(options);
  ATTEST_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace attest
