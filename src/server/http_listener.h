// Where connections come from: the listening sockets, one for each address of the host, and what happens when
// descriptors run out. http_server.cc is its only user, since it brings Boost along. I/O thread, except Open.
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
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/http_server.h"

namespace attest {

class Listener {
 public:
  using tcp = boost::asio::ip::tcp;
  using OnSocket = std::function<void(tcp::socket socket)>;

  explicit Listener(boost::asio::io_context& io) : io_(io) {}
  ~Listener() { GiveSpareUp(); }

  // Resolves the host, binds all its addresses and listens; returns the port. Clients of "localhost" may try
  // ::1 first, or 127.0.0.1 alone.
  Expected<uint16_t> Open(const HttpServerOptions& options) {
    error_code ec;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return Fail(ErrorCode::kIo, fmt::format("cannot resolve host {}: {}", options.host, ec.message()),
                  "host");
    }
    std::set<tcp::endpoint> endpoints;  // a hosts file may name one twice
    for (const auto& entry : found) endpoints.insert(entry.endpoint());
    uint16_t port = options.port;
    for (tcp::endpoint endpoint : endpoints) {
      endpoint.port(port);
      auto door = std::make_unique<Door>(io_);
      ec = Bind(door->acceptor, endpoint, endpoints.size() > 1);
      if (!ec) {
        port = door->acceptor.local_endpoint(ec).port();  // one that the system chose holds for all
        doors_.push_back(std::move(door));
        continue;
      }
      // A name may have an address that this machine has not, such as ::1 without IPv6.
      const bool is_lacking = ec == boost::system::errc::address_not_available ||
                              ec == boost::system::errc::address_family_not_supported;
      if (!is_lacking || endpoints.size() == 1) return CannotListen(options, ec);
    }
    if (doors_.empty()) return CannotListen(options, ec);
    TakeSpare();
    return port;
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
    for (const auto& door : doors_) {
      if (!door->is_accepting && door->acceptor.is_open()) Accept(*door);
    }
  }
  void Close() {
    error_code ec;
    for (const auto& door : doors_) {
      door->acceptor.close(ec);
      door->retry.cancel();
    }
  }

 private:
  using error_code = boost::system::error_code;
  static constexpr std::chrono::milliseconds kRetry{100};

  struct Door {  // one address
    explicit Door(boost::asio::io_context& io) : acceptor(io), retry(io) {}
    tcp::acceptor acceptor;
    boost::asio::steady_timer retry;
    bool is_accepting = false;
  };

  static std::unexpected<Error> CannotListen(const HttpServerOptions& options, const error_code& ec) {
    return Fail(ErrorCode::kIo,
                fmt::format("cannot listen on {}:{}: {}", options.host, options.port, ec.message()), "port");
  }

  static error_code Bind(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, bool is_one_of_several) {
    error_code ec;
    acceptor.open(endpoint.protocol(), ec);
    // A server that was killed may come back at once, while connections of its former life time out.
    if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    // "::" alone takes IPv4 too.
    if (!ec && endpoint.address().is_v6())
      acceptor.set_option(boost::asio::ip::v6_only(is_one_of_several), ec);
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(boost::asio::socket_base::max_listen_connections, ec);
    if (!ec) acceptor.non_blocking(true, ec);
    return ec;
  }

  void Accept(Door& door) {
    door.is_accepting = true;
    door.acceptor.async_accept([this, &door](const error_code& ec, tcp::socket socket) {
      if (!door.acceptor.is_open()) return;
      if (!ec) {
        on_socket_(std::move(socket));
      } else if (!TurnOneAway(door)) {
        door.retry.expires_after(kRetry);  // no descriptor at all, or the peer left already
        door.retry.async_wait([this, &door](const error_code& cancelled) {
          if (!cancelled) AcceptNext(door);
        });
        return;
      }
      AcceptNext(door);
    });
  }
  void AcceptNext(Door& door) {
    door.is_accepting = false;
    if (!is_paused_ && door.acceptor.is_open()) Accept(door);
  }

  // Without a descriptor a client cannot even be told so. One is kept for that.
  bool TurnOneAway(Door& door) {
    if (spare_ < 0) {
      TakeSpare();
      return false;
    }
    GiveSpareUp();
    error_code ec;
    tcp::socket socket(io_);
    door.acceptor.accept(socket, ec);
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

  boost::asio::io_context& io_;
  std::vector<std::unique_ptr<Door>> doors_;
  OnSocket on_socket_;
  std::function<std::string()> turn_away_;
  int spare_ = -1;  // a descriptor to give up when there is no other
  bool is_paused_ = false;
};

}  // namespace attest
