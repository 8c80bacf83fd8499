// A raw HTTP/1.1 client over a blocking socket: it sends exactly the bytes it is given and shows what came
// back, chunk by chunk. Linux. Test only.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attest::testing {

struct HttpReply {
  int status = 0;                              // 0: no complete head came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;  // all of the body came
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer_bytes = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    const timeval timeout{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes with a reset, as a killed client may.
  void Reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void ShutdownSend() { ::shutdown(fd_, SHUT_WR); }

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Sends up to `bytes` zeros, as long as the peer and the kernel between take some every second. How many.
  size_t SendWhatIsTaken(size_t bytes) {
    const timeval patience{.tv_sec = 1, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const std::string zeros(64 << 10, '0');
    size_t sent = 0;
    while (sent < bytes) {
      const ssize_t n = ::send(fd_, zeros.data(), std::min(zeros.size(), bytes - sent), MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    return sent;
  }
  bool SendRequest(std::string_view method, std::string_view path, std::string_view body = {},
                   std::string_view extra_headers = {}) {
    std::string out;
    out.append(method).append(" ").append(path).append(" HTTP/1.1\r\nHost: test\r\n").append(extra_headers);
    if (!body.empty()) {
      out.append("Content-Type: application/json\r\nContent-Length: ").append(std::to_string(body.size()));
      out.append("\r\n");
    }
    return Send(out.append("\r\n").append(body));
  }

  // Returns once the head of the next reply is here, and leaves it to be read.
  void AwaitHead() {
    while (in_.find("\r\n\r\n") == std::string::npos && Fill()) {
    }
  }

  // Status line and headers of the next reply; the body is left to NextChunk or ReadBody.
  HttpReply ReadHead() {
    HttpReply reply;
    size_t end = 0;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return reply;
    }
    const std::string head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    reply.status = std::atoi(head.c_str() + head.find(' ') + 1);
    for (size_t begin = head.find("\r\n") + 2; begin < head.size();) {
      const size_t line_end = head.find("\r\n", begin);
      const size_t colon = head.find(": ", begin);
      std::string name = head.substr(begin, colon - begin);
      std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
      reply.headers[name] = head.substr(colon + 2, line_end - colon - 2);
      begin = line_end + 2;
    }
    return reply;
  }
  // The next chunk of a chunked body; "" at its end, nothing when the connection ended first.
  std::optional<std::string> NextChunk() {
    size_t end = 0;
    while ((end = in_.find("\r\n")) == std::string::npos) {
      if (!Fill()) return std::nullopt;
    }
    const size_t size = std::strtoul(in_.c_str(), nullptr, 16);
    while (in_.size() < end + 2 + size + 2) {
      if (!Fill()) return std::nullopt;
    }
    std::string chunk = in_.substr(end + 2, size);
    in_.erase(0, end + 2 + size + 2);
    return chunk;
  }
  HttpReply Read(bool is_head = false) {
    HttpReply reply = ReadHead();
    if (reply.status == 0 || is_head) {
      reply.complete = reply.status != 0;
      return reply;
    }
    if (reply.headers.contains("transfer-encoding")) {
      while (const auto chunk = NextChunk()) {
        if (chunk->empty()) reply.complete = true;
        if (chunk->empty()) break;
        reply.body += *chunk;
      }
    } else if (const auto length = reply.headers.find("content-length"); length != reply.headers.end()) {
      const size_t size = std::strtoul(length->second.c_str(), nullptr, 10);
      while (in_.size() < size && Fill()) {
      }
      reply.complete = in_.size() >= size;
      reply.body = in_.substr(0, size);
      in_.erase(0, size);
    } else {
      while (Fill()) {
      }
      reply.complete = true;
      reply.body = std::exchange(in_, {});
    }
    return reply;
  }
  // True when the server has closed and nothing is left to read.
  [[nodiscard]] bool AtEnd() { return in_.empty() && !Fill(); }

 private:
  bool Fill() {
    char buffer[64 << 10];
    const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    in_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int fd_;
  bool connected_ = false;
  std::string in_;
};

inline HttpReply Get(uint16_t port, std::string_view path, std::string_view headers = {}) {
  HttpClient client(port);
  client.SendRequest("GET", path, {}, headers);
  return client.Read();
}
inline HttpReply Post(uint16_t port, std::string_view path, std::string_view body,
                      std::string_view headers = {}) {
  HttpClient client(port);
  client.SendRequest("POST", path, body, headers);
  return client.Read();
}

}  // namespace attest::testing
