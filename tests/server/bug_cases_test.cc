// Serving bugs that other engines had in public, one test each, named by its case: a whole server over the
// fake engine, whose texts are scripted. bug_cases_engine_test.cc has those that need the real one; C06 to
// C08 are in completions_test.cc, C05, C09, C25 and C27 to C29 in tests/engine, C26 in tests/cache. C34,
// answers cut by their limit that were scored as wrong, is for the accuracy gate to come: a run with more
// than 2 % of cut or empty answers will be invalid, not low.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

class BugCases : public ServerFixture {
 protected:
  void ExpectAlive() {
    EXPECT_EQ(Complete(R"({"prompt":"still there","max_tokens":1})").status, 200);
    EXPECT_TRUE(engine_->WaitUntilIdle());
  }
};

// Log-likelihood tasks scored chance: only the generated token had a logprob.
TEST_F(BugCases, C01EchoedLogprobsCoverThePromptAndOneToken) {
  StartServer();
  const json logprobs = Json(
      Complete(R"({"prompt":[104,101,108,108,111],"max_tokens":1,"echo":true,"logprobs":1,"temperature":0})"))
      ["choices"][0]["logprobs"];
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(logprobs[name].size(), 6u) << name;
  }
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  for (size_t i = 1; i < 6; ++i) EXPECT_TRUE(logprobs["token_logprobs"][i].is_number()) << i;
}

// max_tokens 0 with echo killed the server.
TEST_F(BugCases, C02NoTokensWithEchoIsThePromptAndTheNextRequestIsServed) {
  StartServer();
  const json choice =
      Json(Complete(R"({"prompt":[104,105],"max_tokens":0,"echo":true,"logprobs":1})"))["choices"][0];
  EXPECT_EQ(choice["text"], "hi");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 2u);
  EXPECT_EQ(Complete(R"({"prompt":"a","max_tokens":-1})").status, 400);
  EXPECT_EQ(Complete(R"({"prompt":"a","max_tokens":-1,"echo":true})").status, 400);
  ExpectAlive();
}

// text_offset began at the completion instead of at the prompt.
TEST_F(BugCases, C03OffsetsCountFromThePromptInCharacters) {
  StartServer();
  const auto offsets = [&](const json& body) {
    return Json(Complete(body.dump()))["choices"][0]["logprobs"]["text_offset"];
  };
  json body = {{"prompt", "Hello"}, {"logprobs", 0}, {"max_tokens", 2}, {"add_special_tokens", false}};
  EXPECT_EQ(offsets(body), json({5, 6}));
  body["prompt"] = Ids{'H', 'e', 'l', 'l', 'o'};
  EXPECT_EQ(offsets(body), json({5, 6}));
  body["prompt"] = "h\xC3\xA9\xF0\x9F\x99\x82";
  EXPECT_EQ(offsets(body), json({3, 4})) << "characters, not bytes";
  body["prompt"] = "Hello";
  body["echo"] = true;
  EXPECT_EQ(offsets(body)[0], 0);
}

// logprobs true without top_logprobs was an error.
TEST_F(BugCases, C04ChatLogprobsNeedNoTopLogprobs) {
  StartServer();
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2,)";
  const json content = Json(Chat(chat + R"("logprobs":true})"))["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"], json::array());
  EXPECT_EQ(Chat(chat + R"("top_logprobs":2})").status, 400);
}

// Bytes that are no UTF-8 ended the process inside the JSON writer.
TEST_F(BugCases, C10AByteThatIsNoTextGivesValidJson) {
  script_ = [](const Request&) { return Ids{0xFF}; };
  StartServer();
  for (const char* more : {"", R"(,"logprobs":1)"}) {
    const std::string body = std::string(R"({"prompt":"a","max_tokens":3,"temperature":1.5)") + more;
    EXPECT_EQ(Json(Complete(body + "}"))["choices"][0]["text"], "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(Joined(Events(Complete(body + R"(,"stream":true})"))), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  }
  ExpectAlive();
}

// Byte tokens shared one display text, and the map lost entries.
TEST_F(BugCases, C11AlternativesThatAreBytesStayApart) {
  script_ = [](const Request&) { return Ids{0xF1, 0x9F, 0x99, 0x82}; };
  StartServer();
  const json logprobs =
      Json(Complete(R"({"prompt":"a","max_tokens":4,"logprobs":5})"))["choices"][0]["logprobs"];
  for (const json& top : logprobs["top_logprobs"]) EXPECT_GE(top.size(), 5u) << top;
  std::set<std::string> names;
  for (const json& token : logprobs["tokens"]) names.insert(token);
  EXPECT_EQ(names.size(), 4u);
}

// An id of another tokenizer read past the embeddings.
TEST_F(BugCases, C16ForeignTokenIdsAreRefused) {
  StartServer();
  for (const char* prompt : {"[0,300]", "[0,-1]", "[1099511627776]", "[1.5]", "[\"a\",1]", "[1,\"a\"]",
                             "[[0,300]]", "[18446744073709551616]", "[1e30]", "[true]", "[null]"}) {
    EXPECT_EQ(Complete(std::string(R"({"prompt":)") + prompt + "}").status, 400) << prompt;
  }
  EXPECT_EQ(Complete(R"({"prompt":[0,299],"max_tokens":1})").status, 200);
  ExpectAlive();
}

// Wrong JSON types crashed the server.
TEST_F(BugCases, C17WrongShapesAre400AndTheServerLives) {
  options_.http.max_body_bytes = 1 << 20;
  StartServer();
  for (const char* body : {R"({"messages":null})", R"({})", R"({"messages":[]})", R"({"messages":[{}]})",
                           R"({"messages":{}})"}) {
    EXPECT_EQ(Chat(body).status, 400) << body;
  }
  for (const char* prompt : {"5", "{}", "[[]]", "[[1,2],3]", "[[[1]]]", "true", "[{}]"}) {
    EXPECT_EQ(Complete(std::string(R"({"prompt":)") + prompt + "}").status, 400) << prompt;
  }
  EXPECT_EQ(Complete(R"({"prompt":[[1,2],[3]],"max_tokens":1})").status, 200);
  for (const char* body :
       {R"({"prompt":"a","stop":5})", R"({"prompt":"a","temperature":"x"})",
        R"({"prompt":"a","max_tokens":1e99})", R"({"prompt":"cut)", R"({"prompt":"cut\)"}) {
    EXPECT_EQ(Complete(body).status, 400) << body;
  }
  EXPECT_EQ(Complete(R"({"prompt":")" + std::string(20 << 20, 'x') + "\"}").status, 413);
  EXPECT_EQ(Complete(R"({"x":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}").status, 400);
  ExpectAlive();
}

// finish_reason was "" on every chunk, or the natural end was never told.
TEST_F(BugCases, C18OneReasonAtTheEndAndNullBefore) {
  script_ = [](const Request&) { return Ids{'a', 'b', FakeTokenizer::kEos}; };
  StartServer();
  // With room left, exactly at the limit, and one token short of the end.
  for (const auto& [limit, reason] : {std::pair(16, "stop"), std::pair(3, "stop"), std::pair(2, "length")}) {
    const std::string fields = R"("stream":true,"max_tokens":)" + std::to_string(limit) + "}";
    for (const auto& events : {Events(Complete(R"({"prompt":"a",)" + fields)),
                               Events(Chat(R"({"messages":[{"role":"user","content":"a"}],)" + fields))}) {
      for (size_t i = 0; i + 1 < events.size(); ++i) {
        EXPECT_TRUE(events[i]["choices"][0]["finish_reason"].is_null()) << events[i];
      }
      EXPECT_EQ(events.back()["choices"][0]["finish_reason"], reason);
      EXPECT_EQ(Joined(events), "ab");
    }
  }
}

// The last chunk mixed text and reason, and clients dropped the text.
TEST_F(BugCases, C19TheStreamSaysWhatTheWholeAnswerSays) {
  Says({" one", " two", " three"}, " one two three four");
  StartServer();
  const std::string body = R"({"prompt":"count","max_tokens":5)";
  const auto events = Events(Complete(body + R"(,"stream":true})"));
  EXPECT_EQ(Joined(events), Json(Complete(body + "}"))["choices"][0]["text"].get<std::string>());
  for (const json& event : events) {
    const json& choice = event["choices"][0];
    EXPECT_TRUE(choice["finish_reason"].is_null() || choice["text"] == "") << event;
  }
}

// An error after the stream began counted as success.
TEST_F(BugCases, C20AnErrorMidStreamIsAnErrorEventAndNoReason) {
  script_ = [](const Request&) { return Ids{'a', 'b', FakeEngine::kFailure}; };
  StartServer();
  for (const auto& events :
       {Events(Complete(R"({"prompt":"a","stream":true})")),
        Events(Chat(R"({"messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":16})"))}) {
    ASSERT_FALSE(events.empty());
    EXPECT_TRUE(events.back().contains("error"));
    EXPECT_EQ(events.back()["error"]["code"], 500);
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      EXPECT_TRUE(events[i]["choices"][0]["finish_reason"].is_null());
    }
  }
}

// A load generator got endless output, because one of the two names of the limit was ignored.
TEST_F(BugCases, C21TheBodyOfALoadGeneratorGivesExactlyItsTokens) {
  script_ = [](const Request&) { return Ids{'a', FakeTokenizer::kEos}; };
  StartServer();
  for (const char* limit : {R"("max_tokens":2,"max_completion_tokens":2)", R"("max_tokens":2)",
                            R"("max_completion_tokens":2,"max_tokens":null)"}) {
    const std::string fields =
        limit + std::string(R"(,"stream":true,"stop":null,"ignore_eos":true,"logprobs":null,"seed":null,)"
                            R"("stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
    for (const auto& events : {Events(Complete(R"({"prompt":"a",)" + fields)),
                               Events(Chat(R"({"messages":[{"role":"user","content":"a"}],)" + fields))}) {
      EXPECT_EQ(events.back()["choices"], json::array());
      EXPECT_EQ(events.back()["usage"]["completion_tokens"], 2) << limit;
      EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
    }
  }
}

// A request that is too long was answered only when another one arrived.
TEST_F(BugCases, C31ATooLongRequestOnAnIdleServerIsAnsweredAtOnce) {
  StartServer();
  const std::string body = json({{"prompt", Ids(5000, 7)}}).dump();
  EXPECT_EQ(Complete(body).status, 400);  // no other request comes, and the client waits for 10 s
}

}  // namespace
}  // namespace attest::testing
