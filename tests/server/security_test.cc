// What a client can do to the server by what it sends: nothing it says reaches the log raw, the log holds no
// key, names are never paths, and pages of other origins learn nothing unless they were allowed to.
#include <gtest/gtest.h>

#include <sstream>

#include "base/log.h"
#include "tests/support/cpu_time.h"
#include "tests/support/sanitizers.h"
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

TEST_F(Security, AKeyOfAnyLengthThatIsNotTheKeyIsRefused) {
  const std::string key = "a-key-of-21-characters";
  options_.api_keys = {key};
  StartServer();
  HttpClient client(port());
  const auto status = [&](const std::string& sent) {
    client.SendRequest("GET", "/v1/models", {}, "Authorization: Bearer " + sent + "\r\n");
    return client.Read().status;
  };
  EXPECT_EQ(status(key), 200);
  for (size_t length = 0; length <= 3 * key.size(); ++length) {
    std::string repeated;
    while (repeated.size() < length) repeated += key;
    repeated.resize(length);
    EXPECT_EQ(status(repeated), length == key.size() ? 200 : 401) << length;
  }
  for (size_t at = 0; at < key.size(); ++at) {
    std::string wrong = key;
    wrong[at] = static_cast<char>(wrong[at] ^ 1);
    EXPECT_EQ(status(wrong), 401) << at;
  }
  EXPECT_EQ(status(std::string(20'000, 'a')), 401);
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
                     "Access-Control-Request-Headers: authorization,content-type,http-referer,x-title\r\n");
  const HttpReply preflight = client.Read();
  EXPECT_EQ(preflight.status, 200) << "browsers send no key with it";
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://b.example");
  EXPECT_NE(preflight.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  // Whatever the page asks for: chat pages have headers of their own.
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"),
            "authorization,content-type,http-referer,x-title");
  client.SendRequest("OPTIONS", "/v1/models", {},
                     "Origin: https://b.example\r\nAccess-Control-Request-Method: GET\r\n"
                     "Access-Control-Request-Headers: a: b\r\n");
  EXPECT_FALSE(client.Read().headers.contains("access-control-allow-headers")) << "no names";
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

// Whatever a client can make as long as its body has a limit; what passes it is told with both numbers.
TEST_F(Security, ListsStringsAndNestingAreBounded) {
  StartServer();
  const auto list = [](size_t size, const char* item) {
    std::string out = "[";
    for (size_t i = 0; i < size; ++i) out.append(i == 0 ? "" : ",").append(item);
    return out + "]";
  };
  const auto text = [](size_t size) { return "\"" + std::string(size, 'x') + "\""; };
  struct Case {
    const char* field;
    std::string value;
    int given, limit;
    bool is_chat = false;
  };
  const Case cases[] = {
      {"prompt", list(1025, "\"a\""), 1025, 1024},
      {"prompt", list(1025, "[1]"), 1025, 1024},
      {"prompt", list(257, "1"), 257, 256},
      {"stop", list(17, "\"a\""), 17, 16},
      {"stop", text(1025), 1025, 1024},
      {"stop", list(1, text(2000).c_str()), 2000, 1024},
      {"stop_token_ids", list(1025, "1"), 1025, 1024},
      {"bad_words", list(129, "\"a\""), 129, 128},
      {"bad_words", list(1, text(1025).c_str()), 1025, 1024},
      {"allowed_token_ids", list(301, "1"), 301, 300},
      {"cache_salt", text(1025), 1025, 1024},
      {"n", "129", 129, 128},
      {"messages", list(16385, R"({"role":"user"})"), 16385, 16384, /*is_chat=*/true},
      {"messages[0].content", list(4097, R"({"type":"text","text":"a"})"), 4097, 4096, /*is_chat=*/true},
  };
  for (const Case& c : cases) {
    const std::string field = c.field;
    const std::string body = field == "messages" ? R"({"messages":)" + c.value
                             : c.is_chat ? R"({"messages":[{"role":"user","content":)" + c.value + "}]"
                             : field == "prompt" ? R"({"prompt":)" + c.value
                                                 : R"({"prompt":"a",")" + field + "\":" + c.value;
    const HttpReply reply = c.is_chat ? Chat(body + "}") : Complete(body + "}");
    EXPECT_EQ(reply.status, 400) << field;
    const json error = Json(reply)["error"];
    EXPECT_EQ(error["param"], field);
    const std::string message = error["message"];
    EXPECT_NE(message.find(std::to_string(c.given)), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(c.limit)), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u) << "it quotes what it was sent";
  }
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    const auto nested = [&](int depth) {
      std::string out = R"({"prompt":"a","max_tokens":1,"metadata":)";
      for (int i = 0; i < depth; ++i) out += open;
      out += "1";
      for (int i = 0; i < depth; ++i) out += close;
      return out + "}";
    };
    EXPECT_EQ(Complete(nested(63)).status, 200);
    const HttpReply reply = Complete(nested(69));
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find("70 levels deep, the limit is 64"), std::string::npos) << reply.body;
  }
}

// Work that a client's strings could make exponential or quadratic ends in a moment. The bound is a hundred
// times what it takes, and far below what the quadratic work would.
TEST_F(Security, StringsMadeToBeSlowAreNot) {
  options_.http.max_body_bytes = 16 << 20;
  std::vector<int32_t> run(200, 'a');
  script_ = [run](const Request&) { return run; };
  StartServer();
  // Every stop and every bad word is a prefix of the text at every token, and never all of it.
  json almost = json::array(), words = json::array();
  for (int i = 0; i < 16; ++i) almost.push_back(std::string(1023 - static_cast<size_t>(i), 'a') + "b");
  for (int i = 0; i < 128; ++i) words.push_back(std::string(1023 - static_cast<size_t>(i), 'a') + "b");
  const std::string digits(2 << 20, '1');
  const std::pair<std::string, int> bodies[] = {
      {json({{"prompt", "a"}, {"max_tokens", 200}, {"stop", almost}, {"bad_words", words}}).dump(), 200},
      {R"({"prompt":"a","temperature":)" + digits + "}", 400},
      {R"({"prompt":"a","temperature":0.)" + digits + R"(,"max_tokens":1})", 200},
      {R"({"prompt":"a","temperature":1e)" + digits + "}", 400},
      {R"({"prompt":"a","x":")" + std::string(2 << 20, '\\') + R"(","max_tokens":1})", 200},
      {std::string(2 << 20, '['), 400},
      {std::string(2 << 20, '"'), 400},
      {R"({"prompt":")" + std::string(2 << 20, 'a') + "\"}", 400}};
  for (const auto& [body, status] : bodies) {
    const double seconds = ProcessCpuSeconds([&] {
      const HttpReply reply = Complete(body);
      EXPECT_EQ(reply.status, status) << body.substr(0, 60) << "\n" << reply.body.substr(0, 300);
    });
    EXPECT_LT(seconds, kSanitized ? 60 : 10) << body.substr(0, 60);
  }
}

}  // namespace
}  // namespace attest::testing
