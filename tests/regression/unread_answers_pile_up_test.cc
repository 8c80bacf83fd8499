// Requests sent ahead were answered one after the other while their client read nothing: the answers, a page
// of 75 KB for a request of 30 bytes, piled up in memory without a bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class UnreadAnswers : public ServerFixture {
 protected:
  static constexpr int kRequests = 300;
  [[nodiscard]] size_t Unread() const {
    const std::string text = Get(port(), "/metrics").body;
    const size_t at = text.find("attest:http_unread_bytes{");
    return at == std::string::npos ? 0 : std::strtoul(text.c_str() + text.find("} ", at) + 2, nullptr, 10);
  }
};

TEST_F(UnreadAnswers, OfRequestsSentAheadWaitForTheirReader) {
  StartServer();
  HttpClient deaf(port(), /*receive_buffer_bytes=*/4096);
  std::string ahead;
  for (int i = 0; i < kRequests; ++i) ahead += "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
  ASSERT_TRUE(deaf.Send(ahead));
  while (Unread() == 0) {  // the sockets are full now
  }
  // Each turn of the I/O thread took one more of them.
  size_t most = 0;
  for (int i = 0; i < 200; ++i) most = std::max(most, Unread());
  EXPECT_LT(most, size_t{1} << 20);
  // Nothing of them is lost.
  for (int i = 0; i < kRequests; ++i) {
    const HttpReply reply = deaf.Read();
    ASSERT_EQ(reply.status, 200) << i;
    ASSERT_TRUE(reply.complete) << i;
  }
}

TEST_F(UnreadAnswers, DoNotLetWhatFollowsTheLastRequestPileUp) {
  engine_options_.max_model_len = 4096;
  Says({std::string(1000, 'x')}, std::string(1000, 'x'));
  StartServer();
  // An answer of 10 MB that closes the connection, and bytes behind it that nobody will look at.
  HttpClient deaf(port(), 4096);
  ASSERT_TRUE(deaf.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","n":10,"max_tokens":1000})",
                               "Connection: close\r\n"));
  while (Unread() == 0) {
  }
  // Far more than the kernel's buffers hold: a server that went on reading would take all of it.
  EXPECT_LT(deaf.SendWhatIsTaken(size_t{256} << 20), size_t{64} << 20);
}

}  // namespace
}  // namespace attest::testing
