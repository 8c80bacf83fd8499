// 32 KiB of the shortest fields took a megabyte on each connection that then let its body wait: 10 GB for
// 16,000.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class HeaderFields : public ServerFixture {};

TEST_F(HeaderFields, AreFew) {
  StartServer();
  const auto status = [&](int fields) {
    std::string bytes = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\n";
    for (int i = 2; i < fields; ++i) bytes += "a:\r\n";
    HttpClient client(port());
    client.Send(bytes + "\r\n{\"prompt\":\"a\"}\n");
    return client.Read().status;
  };
  EXPECT_EQ(status(128), 200);
  EXPECT_EQ(status(129), 431);
  EXPECT_EQ(status(6000), 431);
}

}  // namespace
}  // namespace attest::testing
