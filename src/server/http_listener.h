// Where connections come from: the listening socket, and what happens when descriptors run out.
// http_server.cc is its only user, since it brings Boost along. I/O thread, except Open.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "server/http_server.h"

namespace attest {

class Listener {
 public:
  using tcp = boost::asio::ip::tcp;
  using OnSocket = std::function<void(tcp::socket socket)>;

  explicit Listener(boost::asio::io_context& io) : acceptor_(io), retry_(io) {}
  ~Listener() { GiveSpareUp(); }

  // Resolves the host, binds and listens; returns the port.
  Expected<uint16_t> Open(const HttpServerOptions& options) {
    boost::system::error_code ec;
    tcp::resolver resolver(acceptor_.get_executor());
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return Fail(ErrorCode::kIo, fmt::format("cannot resolve host {}: {}", options.host, ec.message()),
                  "host");
    }
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol(), ec);
    // A server that was killed may come back at once, while connections of its former life time out.
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec && endpoint.address().is_v6()) acceptor_.set_option(boost::asio::ip::v6_only(false), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(boost::asio::socket_base::max_listen_connections, ec);
    if (!ec) acceptor_.non_blocking(true, ec);
    if (ec) {
      return Fail(ErrorCode::kIo,
                  fmt::format("cannot listen on {}:{}: {}", options.host, options.port, ec.message()),
                  "port");
    }
    TakeSpare();
    return acceptor_.local_endpoint(ec).port();
  }

  // Hands sockets out until Pause or Close. Clients that come when the process has no descriptor left get the
  // answer that `turn_away` makes.
  void Start(OnSocket on_socket, std::function<std::string()> turn_away) {
    on_socket_ = std::move(on_socket);
    turn_away_ = std::move(turn_away);
    Resume();
  }
  void Pause() { is_paused_ = true; }  // the next ones wait in the kernel's backlog
  void Resume() {
    is_paused_ = false;
    if (!is_accepting_ && acceptor_.is_open()) Accept();
  }
  void Close() {
    boost::system::error_code ec;
    acceptor_.close(ec);
    retry_.cancel();
  }

 private:
  static constexpr std::chrono::milliseconds kRetry{100};

  void Accept() {
    is_accepting_ = true;
    acceptor_.async_accept([this](const boost::system::error_code& ec, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (!ec) {
        on_socket_(std::move(socket));
      } else if (!TurnOneAway()) {
        retry_.expires_after(kRetry);  // no descriptor at all, or the peer left already
        retry_.async_wait([this](const boost::system::error_code& cancelled) {
          if (!cancelled) AcceptNext();
        });
        return;
      }
      AcceptNext();
    });
  }
  void AcceptNext() {
    is_accepting_ = false;
    if (!is_paused_ && acceptor_.is_open()) Accept();
  }

  // Without a descriptor a client cannot even be told so. One is kept for that.
  bool TurnOneAway() {
    if (spare_ < 0) {
      TakeSpare();
      return false;
    }
    GiveSpareUp();
    boost::system::error_code ec;
    tcp::socket socket(acceptor_.get_executor());
    acceptor_.accept(socket, ec);
    const bool accepted = !ec;
    if (accepted) {
      // A request that is still on its way then resets the connection and may destroy the answer.
      socket.non_blocking(true, ec);
      socket.write_some(boost::asio::buffer(turn_away_()), ec);
      socket.shutdown(tcp::socket::shutdown_send, ec);
      std::array<char, 4096> ignored;
      while (socket.read_some(boost::asio::buffer(ignored), ec) > 0) {
      }
      socket.close(ec);
    }
    TakeSpare();
    return accepted;
  }
  void TakeSpare() { spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
  void GiveSpareUp() {
    if (spare_ >= 0) ::close(std::exchange(spare_, -1));
  }

  tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  OnSocket on_socket_;
  std::function<std::string()> turn_away_;
  int spare_ = -1;  // a descriptor to give up when there is no other
  bool is_paused_ = false, is_accepting_ = false;
};

}  // namespace attest
