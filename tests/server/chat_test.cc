// /v1/chat/completions over a socket, the fake engine and a real template.
#include <gtest/gtest.h>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class ChatCompletions : public ServerFixture {
 protected:
  // The prompt the engine was given, as text.
  void EchoPrompt() {
    script_ = [](const Request& request) {
      std::vector<int32_t> ids = request.prompt;
      ids.push_back(FakeTokenizer::kEos);
      return ids;
    };
  }
  std::string PromptOf(std::string_view body) {
    const HttpReply reply = Chat(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json(reply)["choices"][0]["message"].value("content", "");
  }
};

TEST_F(ChatCompletions, AnswersInTheOpenAiShape) {
  StartServer();
  const HttpReply reply =
      Chat(R"({"model":"org/alias","messages":[{"role":"user","content":"hi"}],"max_tokens":3})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = Json(reply);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "org/alias");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"], json({{"role", "assistant"}, {"content", "abc"}}));
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ChatCompletions, StreamsTheRoleThenContentThenTheReason) {
  StartServer();
  const auto events =
      Events(Chat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true})"));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"], json({{"content", "a"}}));
  EXPECT_EQ(events[2]["choices"][0]["delta"], json({{"content", "b"}}));
  EXPECT_EQ(events[3]["choices"][0]["delta"], json::object());
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatCompletions, AnEmptyAnswerStillHasItsRole) {
  Says({}, "<eos>");
  StartServer();
  const auto events = Events(Chat(R"({"messages":[{"role":"user","content":"hi"}],"stream":true})"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "stop");
}

TEST_F(ChatCompletions, RendersMessagesThroughTheTemplateWithoutASecondBos) {
  EchoPrompt();
  StartServer();
  EXPECT_EQ(PromptOf(R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]})"),
            "[system]s[user]u[assistant]");
  EXPECT_EQ(PromptOf(R"({"messages":[{"role":"user","content":"u"}],"add_generation_prompt":false})"),
            "[user]u");
}

TEST_F(ChatCompletions, TakesContentAsNullStringOrTextParts) {
  EchoPrompt();
  StartServer();
  EXPECT_EQ(
      PromptOf(
          R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
          R"({"role":"assistant","content":null},{"role":"developer","content":"d"}]})"),
      "[user]a\nb[assistant][system]d[assistant]");
}

TEST_F(ChatCompletions, FillsTheContextWhenNoLimitIsGiven) {
  StartServer();
  const json body = Json(Chat(R"({"messages":[{"role":"user","content":"hi"}]})"));
  EXPECT_EQ(body["usage"]["total_tokens"], 256);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatCompletions, BothNamesOfTheLimitCountAndTheNewerWins) {
  StartServer();
  const std::string head = R"({"messages":[{"role":"user","content":"hi"}],)";
  EXPECT_EQ(Json(Chat(head + R"("max_tokens":3})"))["usage"]["completion_tokens"], 3);
  EXPECT_EQ(Json(Chat(head + R"("max_completion_tokens":4})"))["usage"]["completion_tokens"], 4);
  EXPECT_EQ(Json(Chat(head + R"("max_tokens":3,"max_completion_tokens":4})"))["usage"]["completion_tokens"],
            4);
}

TEST_F(ChatCompletions, SaysSoWhenTheModelHasNoTemplate) {
  StartServer(/*with_template=*/false);
  const HttpReply reply = Chat(R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("no chat template"), std::string::npos) << reply.body;
}

}  // namespace
}  // namespace attest::testing
