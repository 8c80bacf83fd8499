// The end of a chunked body failed an assertion of the parser where it came in two pieces, and what stood
// there instead of an end was kept without a limit.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

constexpr std::string_view kHead =
    "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";

class ChunkedEnd : public ServerFixture {};

TEST_F(ChunkedEnd, MayArriveByteByByte) {
  StartServer();
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  const std::string one_chunk = "1d\r\n" + body + "\r\n0\r\n\r\n";
  ASSERT_EQ(body.size(), 0x1du);
  HttpClient client(port());
  for (const auto& [chunks, status] :
       {std::pair<std::string, int>("0\r\n\r\n", 400), {one_chunk, 200}, {"0;a=b\r\nX: y\r\n\r\n", 400}}) {
    client.Send(kHead);
    for (const char c : chunks) {
      client.Send(std::string_view(&c, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(client.Read().status, status) << chunks;
  }
}

TEST_F(ChunkedEnd, IsBoundedInWhatItSays) {
  StartServer();
  for (const char* begin : {"0\r\nX: ", "1;", "0;"}) {
    HttpClient client(port());
    client.Send(kHead);
    client.Send(begin + std::string(1 << 20, 'a'));
    EXPECT_EQ(client.Read().status, 431) << begin;
  }
}

}  // namespace
}  // namespace attest::testing
