// Logprobs and echo over HTTP, in the shapes that clients parse.
#include <gtest/gtest.h>

#include "server/logprobs_json.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

// FakeEngine::Scores: a token has -0.693, the next id is half as likely, and so on.
constexpr float kHalf = -0.6931472f;

class Logprobs : public ServerFixture {
 protected:
  static std::vector<float> Floats(const json& list) {
    std::vector<float> floats;
    for (const json& value : list) floats.push_back(value.is_null() ? 1.0f : value.get<float>());
    return floats;
  }
};

TEST_F(Logprobs, ACompletionHasFourListsOfTheGeneratedTokens) {
  Says({}, "abc");
  StartServer();
  const json choice = Json(Complete(R"({"prompt":"x","max_tokens":3,"logprobs":2})"))["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"a", "b", "c"}));
  EXPECT_EQ(logprobs["text_offset"], json({1, 2, 3}));
  EXPECT_EQ(Floats(logprobs["token_logprobs"]), (std::vector<float>{kHalf, kHalf, kHalf}));
  ASSERT_EQ(logprobs["top_logprobs"].size(), 3u);
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  EXPECT_FLOAT_EQ(logprobs["top_logprobs"][0]["b"].get<float>(), 2 * kHalf);
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
}

TEST_F(Logprobs, TheTokenItselfIsAlwaysInTheObject) {
  script_ = [](const Request&) { return std::vector<int32_t>{'n', 'd'}; };  // 110 and 100: not the best
  StartServer();
  const auto tops = [&](int k) {
    const std::string body = R"({"prompt":"x","max_tokens":2,"logprobs":)" + std::to_string(k) + "}";
    return Json(Complete(body))["choices"][0]["logprobs"]["top_logprobs"];
  };
  EXPECT_EQ(tops(0)[0].size(), 1u);
  EXPECT_TRUE(tops(0)[0].contains("n"));
  EXPECT_EQ(tops(1)[0].size(), 2u);  // "o" is the best
  EXPECT_TRUE(tops(1)[0].contains("n") && tops(1)[0].contains("o"));
  EXPECT_EQ(tops(2)[0].size(), 2u);
  EXPECT_EQ(tops(20)[1].size(), 20u);
}

// lm_eval takes a token for the greedy one when its logprob equals the largest of the object.
TEST_F(Logprobs, OneFloatIsOneText) {
  StartServer();
  const std::string body = Complete(R"({"prompt":"x","max_tokens":1,"logprobs":1})").body;
  EXPECT_NE(body.find(R"("token_logprobs":[-0.6931472])"), std::string::npos) << body;
  EXPECT_NE(body.find(R"("top_logprobs":[{"a":-0.6931472}])"), std::string::npos) << body;
}

TEST_F(Logprobs, MinusInfinityIsClamped) {
  script_ = [](const Request&) { return std::vector<int32_t>{13}; };
  StartServer();
  const std::string body = Complete(R"({"prompt":"x","max_tokens":1,"logprobs":0})").body;
  EXPECT_NE(body.find(R"("token_logprobs":[-9999.0])"), std::string::npos) << body;
}

TEST_F(Logprobs, EndTokensHaveAnEntryAndNoText) {
  script_ = [](const Request&) { return std::vector<int32_t>{'a', FakeTokenizer::kEos}; };
  StartServer();
  const json choice = Json(Complete(R"({"prompt":"x","logprobs":0})"))["choices"][0];
  EXPECT_EQ(choice["text"], "a");
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"a", "<eos>"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], json({1, 2}));
}

TEST_F(Logprobs, BytesThatAreNoTextStayApart) {
  // U+20AC in three byte tokens, then a letter.
  script_ = [](const Request&) { return std::vector<int32_t>{0xE2, 0x82, 0xAC, 'z'}; };
  StartServer();
  const json choice = Json(Complete(R"({"prompt":"x","max_tokens":4,"logprobs":1})"))["choices"][0];
  EXPECT_EQ(choice["text"], "\xE2\x82\xACz");
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "z"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], json({1, 2, 2, 2}));
}

TEST_F(Logprobs, IdsWithTheSameTextKeepTheLargerValue) {
  // Ids 258 and 259 read the same; 259 is half as likely.
  tokenizer_ = std::make_unique<FakeTokenizer>(std::vector<std::string>{"same", "same", "other"});
  script_ = [](const Request&) { return std::vector<int32_t>{258}; };
  StartServer();
  const json top = Json(
      Complete(R"({"prompt":"x","max_tokens":1,"logprobs":3})"))["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(top.size(), 2u);
  EXPECT_FLOAT_EQ(top["same"].get<float>(), kHalf);
  // The less likely token was chosen: the object still tells the better one.
  const LogprobsWriter writer(*tokenizer_, false);
  const LoggedToken logged{
      .token = 259,
      .text_offset = 0,
      .scores =
          TokenLogprobs{.token = 259, .logprob = -2.0f, .rank = 2, .top = {{.id = 258, .logprob = -1.0f}}}};
  EXPECT_EQ(json::parse(writer.Completion(std::span(&logged, 1), 1))["top_logprobs"][0],
            json({{"same", -1.0}}));
}

TEST_F(Logprobs, TokensAsIds) {
  StartServer();
  const json logprobs = Json(Complete(
      R"({"prompt":"x","max_tokens":1,"logprobs":2,"return_tokens_as_token_ids":true})"))["choices"][0]
                                                                                         ["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"token_id:97"}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].contains("token_id:98"));
}

TEST_F(Logprobs, AChatHasObjectsWithBytes) {
  script_ = [](const Request&) { return std::vector<int32_t>{0xC3, 0xA9, FakeTokenizer::kEos}; };
  StartServer();
  const std::string messages = R"({"messages":[{"role":"user","content":"x"}],"logprobs":true)";
  const json choice = Json(Chat(messages + R"(,"top_logprobs":2})"))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "\xC3\xA9");
  const json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0]["token"], "bytes:\\xc3");
  EXPECT_EQ(content[0]["bytes"], json({0xC3}));
  EXPECT_FLOAT_EQ(content[0]["logprob"].get<float>(), kHalf);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["bytes"], json({0xC3}));
  EXPECT_EQ(content[0]["top_logprobs"][1]["bytes"], json({0xC4}));
  EXPECT_EQ(content[2]["token"], "<eos>");
  EXPECT_EQ(Json(Chat(messages + "}"))["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
            json::array());
  EXPECT_TRUE(
      Json(Chat(R"({"messages":[{"role":"user","content":"x"}]})"))["choices"][0]["logprobs"].is_null());
}

TEST_F(Logprobs, AStreamTellsWhatTheWholeAnswerTells) {
  script_ = [](const Request&) {
    return std::vector<int32_t>{'a', 0xC3, 0xA9, 'n', 'b', FakeTokenizer::kEos};
  };
  StartServer();
  for (const std::string echo : {"", R"(,"echo":true)"}) {
    const std::string body = R"({"prompt":"xy","logprobs":2,"stop":"zz")" + echo;
    const json whole = Json(Complete(body + "}"))["choices"][0];
    json lists;
    const auto events = Events(Complete(body + R"(,"stream":true})"));
    for (const json& event : events) {
      const json& logprobs = event["choices"][0]["logprobs"];
      if (logprobs.is_null()) continue;
      for (const auto& [name, list] : logprobs.items()) {
        for (const json& value : list) lists[name].push_back(value);
      }
    }
    EXPECT_EQ(lists, whole["logprobs"]);
    EXPECT_EQ(Joined(events), whole["text"].get<std::string>());
  }
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1)";
  json content;
  for (const json& event : Events(Chat(chat + R"(,"stream":true})"))) {
    const json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const json& value : logprobs["content"]) content.push_back(value);
  }
  EXPECT_EQ(content, Json(Chat(chat + "}"))["choices"][0]["logprobs"]["content"]);
}

TEST_F(Logprobs, EchoPutsThePromptBeforeTheText) {
  StartServer();
  EXPECT_EQ(Json(Complete(R"({"prompt":"<bos>hi ","echo":true,"max_tokens":3})"))["choices"][0]["text"],
            "<bos>hi abc");
  const json ids = Json(Complete(R"({"prompt":[[104,105],[256,120]],"echo":true,"max_tokens":1,"n":2})"));
  std::vector<std::string> texts;
  for (const json& choice : ids["choices"]) texts.push_back(choice["text"]);
  EXPECT_EQ(texts, (std::vector<std::string>{"hia", "hia", "<bos>xa", "<bos>xa"}));
  // A stop string is looked for in what was generated only.
  EXPECT_EQ(Json(Complete(R"({"prompt":"b","echo":true,"stop":"b"})"))["choices"][0]["text"], "ba");
}

// The request of lm_eval for a log-likelihood: entries of the whole prompt and of exactly one token more.
TEST_F(Logprobs, EchoWithLogprobsCoversThePromptAndTheGeneratedToken) {
  StartServer();
  const json choices = Json(Complete(
      R"({"prompt":[[104,110,13],[120]],"echo":true,"logprobs":1,"max_tokens":1,"temperature":0,"seed":1234})"))
      ["choices"];
  ASSERT_EQ(choices.size(), 2u);
  const json& logprobs = choices[0]["logprobs"];
  EXPECT_EQ(choices[0]["text"], "hn\ra");
  EXPECT_EQ(logprobs["tokens"], json({"h", "n", "\r", "a"}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1, 2, 3}));
  ASSERT_EQ(logprobs["token_logprobs"].size(), 4u);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][1].get<float>(), 2 * kHalf);
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 2u);
  EXPECT_EQ(logprobs["token_logprobs"][2], -9999.0);
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][3].get<float>(), kHalf);
  EXPECT_EQ(choices[1]["logprobs"]["token_logprobs"].size(), 2u);
}

TEST_F(Logprobs, ABosBeforeTheTextTakesNoRoomInIt) {
  StartServer();
  const auto offsets = [&](std::string_view prompt) {
    const json choice = Json(Complete(
        json({{"prompt", prompt}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 1}}).dump()))["choices"][0];
    return choice["logprobs"]["text_offset"];
  };
  EXPECT_EQ(offsets("hi"), json({0, 0, 1, 2}));
}

TEST_F(Logprobs, EchoOfNoTokensIsThePromptAlone) {
  script_ = [](const Request&) { return std::vector<int32_t>{FakeTokenizer::kEos}; };
  StartServer();
  const json body = Json(Complete(R"({"prompt":[104,105],"echo":true,"logprobs":1,"max_tokens":0})"));
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "hi");
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"h", "i"}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(body["usage"], json({{"prompt_tokens", 2},
                                 {"completion_tokens", 0},
                                 {"total_tokens", 2},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
  const auto events = Events(Complete(R"({"prompt":[104,105],"echo":true,"max_tokens":0,"stream":true})"));
  EXPECT_EQ(Joined(events), "hi");
}

TEST_F(Logprobs, PromptLogprobsAreObjectsById) {
  StartServer();
  const json choice =
      Json(Complete(R"({"prompt":[104,110,105],"prompt_logprobs":1,"max_tokens":1})"))["choices"][0];
  const json& prompt = choice["prompt_logprobs"];
  EXPECT_TRUE(choice["logprobs"].is_null());
  ASSERT_EQ(prompt.size(), 3u);
  EXPECT_TRUE(prompt[0].is_null());
  EXPECT_EQ(prompt[1].size(), 2u);
  EXPECT_EQ(prompt[1]["110"]["rank"], 2);
  EXPECT_EQ(prompt[1]["110"]["decoded_token"], "n");
  EXPECT_FLOAT_EQ(prompt[1]["110"]["logprob"].get<float>(), 2 * kHalf);
  EXPECT_EQ(prompt[1]["111"]["rank"], 1);
  EXPECT_EQ(prompt[2].size(), 1u);
  const json chat = Json(Chat(R"({"messages":[{"role":"user","content":"x"}],"prompt_logprobs":0})"));
  EXPECT_EQ(static_cast<int64_t>(chat["prompt_logprobs"].size()), chat["usage"]["prompt_tokens"]);
  EXPECT_FALSE(Json(Chat(R"({"messages":[{"role":"user","content":"x"}]})")).contains("prompt_logprobs"));
}

}  // namespace
}  // namespace attest::testing
