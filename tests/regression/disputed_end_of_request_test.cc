// A request whose Transfer-Encoding was not exactly "chunked" was read as if it had none, and its body as the
// next request: behind a proxy that reads it otherwise, one client's bytes become another's request. And the
// fields of a trailer counted as the header's, a key among them.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class DisputedEnd : public ServerFixture {
 protected:
  // What is sent is one request or none, and never a second one.
  void ExpectRefused(const std::string& bytes) {
    HttpClient client(port());
    client.Send(bytes);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400) << bytes;
    EXPECT_EQ(reply.headers.at("connection"), "close") << bytes;
    EXPECT_TRUE(client.AtEnd()) << bytes;
  }
};

TEST_F(DisputedEnd, OfACodingThatIsNotChunkedIsRefused) {
  StartServer();
  const std::string hidden = "GET /version HTTP/1.1\r\nHost: t\r\n\r\n";
  for (const char* coding : {"identity", "chunked, identity", "chunked, chunked", "gzip, chunked", "xchunked",
                             "\"chunked\"", "chunked;q=1", "chunked\r\nTransfer-Encoding: identity", ""}) {
    const std::string head =
        std::string("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: ") + coding + "\r\n";
    ExpectRefused(head + "\r\n" + hidden);
    ExpectRefused(head + "Content-Length: " + std::to_string(hidden.size()) + "\r\n\r\n" + hidden);
  }
  ExpectRefused(
      "POST /tokenize HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
      "e\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n");
  ExpectRefused("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
}

TEST_F(DisputedEnd, OfChunksIsWhereTheySay) {
  StartServer();
  HttpClient client(port());
  client.Send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "e\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(Json(client.Read()).contains("count"));
  EXPECT_EQ(Json(client.Read())["object"], "list");
}

TEST_F(DisputedEnd, HoldsNoKeyAndNoName) {
  options_.api_keys = {"sesame"};
  StartServer();
  HttpClient client(port());
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n";
  const std::string chunks = "\r\ne\r\n{\"prompt\":\"a\"}\r\n0\r\n";
  client.Send(head + chunks + "Authorization: Bearer sesame\r\nX-Request-Id: other\r\n\r\n");
  const HttpReply refused = client.Read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_NE(refused.headers.at("x-request-id"), "other");
  client.Send(head + "Authorization: Bearer sesame\r\n" + chunks + "Authorization: Bearer none\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

}  // namespace
}  // namespace attest::testing
