// An object of 400,000 keys in `chat_template_kwargs` or in a message, 4 MB, held a worker for minutes: each
// key was compared with all before it, twice.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class TemplateObjects : public ServerFixture {
 protected:
  static std::string Object(int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) {
      text += i == 0 ? "\"k" : ",\"k";
      text += std::to_string(i) + "\":1";
    }
    return text + "}";
  }
  static std::string List(int items) {
    std::string text = "[0";
    for (int i = 1; i < items; ++i) text += ",0";
    return text + "]";
  }
  HttpReply Chatted(const std::string& in_message, const std::string& beside) {
    return Chat(R"({"max_tokens":1,"messages":[{"role":"user","content":"a")" + in_message + "}]" + beside +
                "}");
  }
  static std::string ErrorOf(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 400);
    return Json(reply)["error"].value("message", "");
  }
};

TEST_F(TemplateObjects, HaveFewKeys) {
  StartServer();
  EXPECT_EQ(Chatted("", R"(,"chat_template_kwargs":)" + Object(256)).status, 200);
  EXPECT_EQ(ErrorOf(Chatted("", R"(,"chat_template_kwargs":)" + Object(257))),
            "chat_template_kwargs holds an object of 257 keys, the limit is 256");
  EXPECT_EQ(ErrorOf(Chatted("", R"(,"chat_template_kwargs":{"a":[{"b":)" + Object(1000) + "}]}")),
            "chat_template_kwargs holds an object of 1000 keys, the limit is 256");
  EXPECT_EQ(Chatted(R"(,"a":)" + Object(256), "").status, 200);
  EXPECT_EQ(ErrorOf(Chatted(R"(,"a":)" + Object(257), "")),
            "messages[0] holds an object of 257 keys, the limit is 256");
  EXPECT_EQ(ErrorOf(Chatted("," + Object(300).substr(1, Object(300).size() - 2), "")),
            "messages[0] holds an object of 302 keys, the limit is 256");
}

TEST_F(TemplateObjects, AreOfSoManyValuesInAll) {
  StartServer();
  const std::string half = List(131'000), rest = List(1'200);
  EXPECT_EQ(Chatted(R"(,"a":)" + half, R"(,"chat_template_kwargs":{"a":)" + half + "}").status, 200);
  EXPECT_EQ(ErrorOf(Chatted(R"(,"a":)" + half,
                            R"(,"chat_template_kwargs":{"a":)" + half + R"(,"b":)" + rest + "}")),
            "chat_template_kwargs brings the values that the chat template sees beside roles and texts over "
            "262144");
}

}  // namespace
}  // namespace attest::testing
