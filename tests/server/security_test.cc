// What a client can do to the server by what it sends: nothing it says reaches the log raw, the log holds no
// key, names are never paths, and pages of other origins learn nothing unless they were allowed to.
#include <gtest/gtest.h>

#include <sstream>

#include "base/log.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class Security : public ServerFixture {};

TEST_F(Security, LogLinesHoldNoKeyAndNoControlCharacter) {
  options_.http.log_requests = true;
  options_.api_keys = {"sesame-0123456789"};
  ::testing::internal::CaptureStderr();
  StartServer();
  const char* const key = "Authorization: Bearer sesame-0123456789\r\n";
  EXPECT_EQ(Get(port(), "/v1/models?key=sesame-0123456789", key).status, 200);
  EXPECT_EQ(Get(port(), "/v1/models", "Authorization: Bearer wrong-sesame\r\n").status, 401);
  EXPECT_EQ(Get(port(), "/%0aforged%1b[2J", key).status, 404);
  (void)Get(port(), "/\x9b\x32J\xff", key);  // a parser may refuse it
  (void)Get(port(), "/health", "X-Request-Id: a\x1b[2J\r\n");
  EXPECT_EQ(Post(port(), "/v1/completions", "{\"prompt\":\"\\n\",\"model\":\"a\\nb\\u001b\"}", key).status,
            404);
  server_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("GET /v1/models 200"), std::string::npos) << log;
  EXPECT_EQ(log.find("sesame"), std::string::npos) << log;
  std::istringstream lines(log);
  int requests = 0;
  for (std::string line; std::getline(lines, line);) {
    for (const char c : line) {
      EXPECT_GE(static_cast<unsigned char>(c), 0x20u) << line;
      EXPECT_LT(static_cast<unsigned char>(c), 0x7Fu) << line;
    }
    if (line.find("bytes") != std::string::npos) ++requests;
  }
  EXPECT_GE(requests, 4);
}

TEST_F(Security, NamesOfRequestsAreNeverPaths) {
  StartServer();
  for (const char* path :
       {"/../../../../etc/passwd", "/v1/models/..%2F..%2F..%2Fetc%2Fpasswd", "/v1/models//etc/passwd",
        "//etc/passwd", "/docs/../../etc/passwd", "/docs/etc/passwd"}) {
    const HttpReply reply = Get(port(), path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(reply.body.find("root:"), std::string::npos) << path;
  }
  for (const char* model : {"/etc/passwd", "../test-model", "/models/test", "file:///etc/passwd"}) {
    EXPECT_EQ(Complete(json({{"prompt", "a"}, {"model", model}}).dump()).status, 404) << model;
  }
  // Fields that name files in other servers.
  for (const char* field : {"chat_template", "lora_path", "guided_grammar"}) {
    const int status = Chat(json({{"messages", {{{"role", "user"}, {"content", "a"}}}},
                                  {"max_tokens", 1},
                                  {field, "/etc/passwd"}})
                                .dump())
                           .status;
    EXPECT_EQ(status, std::string(field) == "lora_path" ? 200 : 400) << field;
  }
}

TEST_F(Security, KeysMatchWholeAndOnly) {
  options_.api_keys = {"abc", "longer-key"};
  StartServer();
  const auto status = [&](const std::string& key) {
    return Get(port(), "/v1/models", "Authorization: Bearer " + key + "\r\n").status;
  };
  EXPECT_EQ(status("abc"), 200);
  EXPECT_EQ(status("longer-key"), 200);
  for (const char* key :
       {"", "a", "ab", "abcd", "abcabc", "ABC", "xbc", "abx", "longer-keylonger-key", "longer-ke"}) {
    EXPECT_EQ(status(key), 401) << key;
  }
}

TEST_F(Security, WithoutAllowedOriginsBrowsersLearnNothing) {
  StartServer();
  const char* const origin = "Origin: https://evil.example\r\n";
  EXPECT_FALSE(Get(port(), "/v1/models", origin).headers.contains("access-control-allow-origin"));
  HttpClient client(port());
  client.SendRequest("OPTIONS", "/v1/completions", {},
                     "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n");
  EXPECT_EQ(client.Read().status, 405);
}

TEST_F(Security, AllowedOriginsGetCorsHeadersOnEveryAnswer) {
  options_.http.allowed_origins = {"https://a.example", "https://b.example"};
  options_.api_keys = {"secret"};
  StartServer();
  const std::string key = "Authorization: Bearer secret\r\nOrigin: https://b.example\r\n";
  HttpClient client(port());
  client.SendRequest("OPTIONS", "/v1/chat/completions", {},
                     "Origin: https://b.example\r\nAccess-Control-Request-Method: POST\r\n"
                     "Access-Control-Request-Headers: authorization,content-type\r\n");
  const HttpReply preflight = client.Read();
  EXPECT_EQ(preflight.status, 200) << "browsers send no key with it";
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://b.example");
  EXPECT_NE(preflight.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_NE(preflight.headers.at("access-control-allow-headers").find("Authorization"), std::string::npos);
  const std::pair<HttpReply, int> answers[] = {
      {Get(port(), "/v1/models", key), 200},
      {Get(port(), "/v1/models", "Origin: https://b.example\r\n"), 401},
      {Get(port(), "/nope", key), 404},
      {Post(port(), "/v1/completions", R"({"prompt":"a","stream":true})", key), 200},
      {Post(port(), "/v1/completions", R"({"prompt":5})", key), 400}};
  for (const auto& [reply, status] : answers) {
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "https://b.example") << status;
    EXPECT_EQ(reply.headers.at("vary"), "Origin");
  }
  EXPECT_FALSE(Get(port(), "/health", "Origin: https://c.example\r\n")
                   .headers.contains("access-control-allow-origin"));
  EXPECT_FALSE(Get(port(), "/health").headers.contains("access-control-allow-origin"));
}

TEST_F(Security, AnyOriginMayBeAllowed) {
  options_.http.allowed_origins = {"*"};
  StartServer();
  EXPECT_EQ(Get(port(), "/health", "Origin: https://c.example\r\n").headers.at("access-control-allow-origin"),
            "*");
}

// Lists that a client can make as long as its body.
TEST_F(Security, ListsAreBounded) {
  StartServer();
  const auto list = [](size_t size, const char* item) {
    std::string out = "[";
    for (size_t i = 0; i < size; ++i) out.append(i == 0 ? "" : ",").append(item);
    return out + "]";
  };
  for (const auto& [field, value] :
       {std::pair("prompt", list(1025, "\"a\"")), std::pair("stop_token_ids", list(1025, "1")),
        std::pair("stop", list(17, "\"a\"")), std::pair("bad_words", list(129, "\"a\"")),
        std::pair("allowed_token_ids", list(301, "1"))}) {
    const std::string prompt = std::string(field) == "prompt" ? "" : R"("prompt":"a",)";
    const HttpReply reply = Complete("{" + prompt + "\"" + field + "\":" + value + "}");
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(Json(reply)["error"]["param"], field);
    EXPECT_NE(Json(reply)["error"]["message"].get<std::string>().find("at most"), std::string::npos)
        << reply.body;
  }
  const HttpReply messages = Chat(R"({"messages":)" + list(16385, R"({"role":"user"})") + "}");
  EXPECT_EQ(messages.status, 400);
  EXPECT_NE(messages.body.find("at most 16384"), std::string::npos) << messages.body;
  const HttpReply parts =
      Chat(R"({"messages":[{"role":"user","content":)" + list(4097, R"({"type":"text","text":"a"})") + "}]}");
  EXPECT_NE(parts.body.find("at most 4096"), std::string::npos) << parts.body;
}

}  // namespace
}  // namespace attest::testing
