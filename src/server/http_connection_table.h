// The open connections of the HTTP server, by their own numbers and by the exchange they are at, and what
// they hold together. Owns them; I/O thread only. http_server.cc is its only user, since it brings Boost
// along.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/http_connection.h"

namespace attest {

class ConnectionTable {
 public:
  Connection& Add(boost::asio::ip::tcp::socket socket, uint64_t id) {
    return *(by_id_[id] = std::make_unique<Connection>(std::move(socket), id));
  }
  // Out of the table, with what it held; its exchange stays until EndExchange. Null: there is none.
  std::unique_ptr<Connection> Take(uint64_t id) {
    auto node = by_id_.extract(id);
    if (node.empty()) return nullptr;
    HoldBody(*node.mapped(), 0);
    return std::move(node.mapped());
  }
  [[nodiscard]] Connection* Find(uint64_t id) {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : it->second.get();
  }
  [[nodiscard]] size_t size() const { return by_id_.size(); }
  template <class Visit>
  void ForEach(Visit visit) {
    for (auto& [id, connection] : by_id_) visit(*connection);
  }
  [[nodiscard]] std::vector<uint64_t> ids() const {
    std::vector<uint64_t> ids;
    ids.reserve(by_id_.size());
    for (const auto& [id, connection] : by_id_) ids.push_back(id);
    return ids;
  }

  void BeginExchange(Connection& c, ExchangeId exchange) {
    c.exchange = exchange;
    by_exchange_.emplace(exchange, &c);
  }
  // False: it had ended.
  bool EndExchange(ExchangeId exchange) { return by_exchange_.erase(exchange) != 0; }
  [[nodiscard]] bool IsOpen(ExchangeId exchange) const { return by_exchange_.contains(exchange); }
  // Null: it has ended, or its connection is about to be closed.
  [[nodiscard]] Connection* FindExchange(ExchangeId exchange) {
    const auto it = by_exchange_.find(exchange);
    const bool is_live = it != by_exchange_.end() && it->second->state != ConnectionState::kDoomed;
    return is_live ? it->second : nullptr;
  }

  // The connection has `bytes` of the body of its request by now; their sum is held_body_bytes().
  void HoldBody(Connection& c, size_t bytes) {
    held_body_bytes_ += bytes - std::exchange(c.body_bytes_held, bytes);
  }
  [[nodiscard]] size_t held_body_bytes() const { return held_body_bytes_; }

  // Fills in connections, streams and unread_bytes.
  void Count(HttpStats& stats) const {
    stats.connections = by_id_.size();
    for (const auto& [id, connection] : by_id_) {
      stats.unread_bytes += connection->unread();
      if (connection->state == ConnectionState::kStreaming) ++stats.streams;
    }
  }

 private:
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> by_id_;
  std::unordered_map<ExchangeId, Connection*> by_exchange_;
  size_t held_body_bytes_ = 0;
};

}  // namespace attest
