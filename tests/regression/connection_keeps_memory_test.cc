// The buffer of a connection kept what its largest answer had needed: `text = {}` frees nothing.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

size_t UsedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class ConnectionKeepsMemory : public ServerFixture {
 protected:
  // Connected, one answer of `bytes` asked for and read; nothing of it is kept here.
  int AskOnce(std::string_view request, size_t bytes) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
    for (char ignored[4096]; bytes > 0;) {
      const ssize_t n = ::recv(fd, ignored, std::min(bytes, sizeof(ignored)), 0);
      if (n <= 0) break;
      bytes -= static_cast<size_t>(n);
    }
    EXPECT_EQ(bytes, 0u);
    return fd;
  }
};

TEST_F(ConnectionKeepsMemory, AnIdleConnectionDoesNotHoldItsLastAnswer) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator does not say what is allocated";
  constexpr size_t kConnections = 64;
  StartServer();
  const size_t answer = Get(port(), "/openapi.json").body.size();
  ASSERT_GT(answer, 20'000u);
  const size_t before = UsedBytes();
  std::vector<int> open;
  for (size_t i = 0; i < kConnections; ++i) {
    open.push_back(AskOnce("GET /openapi.json HTTP/1.1\r\nHost: t\r\n\r\n", answer));
  }
  // The last bytes were read before the server had put their buffer away.
  EXPECT_EQ(Get(port(), "/health").status, 200);
  const size_t after = UsedBytes();
  EXPECT_LT(after - std::min(before, after), kConnections * answer / 4);
  for (const int fd : open) ::close(fd);
}

}  // namespace
}  // namespace attest::testing
