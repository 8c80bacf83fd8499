// A stream was closed as unread when one event of it (the echo of a long prompt) was larger than what a
// reader may leave unread, before the reader had a chance to take it.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class LargeEvent : public ServerFixture {};

TEST_F(LargeEvent, IsNoFaultOfItsReader) {
  options_.http.max_unread_bytes = 64 << 10;
  engine_options_.max_model_len = 8'000'000;
  engine_options_.num_blocks = 1'000'000;
  StartServer();
  const std::string prompt(4'000'000, 'x');  // more than the buffers of two sockets
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":")" + prompt + R"(","max_tokens":3,"stream":true,"echo":true})");
  const HttpReply reply = client.Read();
  ASSERT_EQ(reply.status, 200);
  ASSERT_TRUE(reply.complete);
  EXPECT_EQ(Joined(Events(reply)), prompt + "abc");
}

// Nor are several that are sent at once, which together passed the limit.
TEST_F(LargeEvent, NorAreSeveralAtOnce) {
  options_.http.max_unread_bytes = 64 << 10;
  engine_options_.max_model_len = 2'000'000;
  engine_options_.num_blocks = 1'000'000;
  StartServer();
  const std::string prompt(1'000'000, 'x');
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":")" + prompt + R"(","n":8,"max_tokens":3,"stream":true,"echo":true})");
  const HttpReply reply = client.Read();
  ASSERT_EQ(reply.status, 200);
  ASSERT_TRUE(reply.complete);
  const auto events = Events(reply);
  for (int index = 0; index < 8; ++index) EXPECT_EQ(Joined(events, index), prompt + "abc") << index;
}

}  // namespace
}  // namespace attest::testing
