// /v1/completions and what it shares with /v1/chat/completions, over a socket and the fake engine.
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class Completions : public ServerFixture {};

TEST_F(Completions, AnswersInTheOpenAiShape) {
  StartServer();
  const HttpReply reply = Complete(R"({"model":"test-model","prompt":"hi","max_tokens":4})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  const json body = Json(reply);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_EQ(body["id"].get<std::string>(), "cmpl-" + reply.headers.at("x-request-id"));
  EXPECT_TRUE(body["created"].is_number_integer());
  ASSERT_EQ(body["choices"].size(), 1u);
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["text"], "abca");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(choice["stop_reason"].is_null());
  // <bos>, 'h', 'i'
  EXPECT_EQ(body["usage"], json({{"prompt_tokens", 3},
                                 {"completion_tokens", 4},
                                 {"total_tokens", 7},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

TEST_F(Completions, UsageTellsWhatThePrefixCacheHadOfEachPromptOnce) {
  StartServer();
  engine_->SetCached([](const Request& request) { return static_cast<int32_t>(request.prompt.size()) - 1; });
  const json usage = Json(Complete(R"({"prompt":[[1,2,3],[4,5,6,7,8]],"n":3,"max_tokens":2})"))["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 8);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 2 + 4);
  const auto events = Events(Complete(
      R"({"prompt":[1,2,3],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})"));
  for (const json& event : events) EXPECT_EQ(event["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST_F(Completions, PriorityAndSaltReachTheEngine) {
  std::atomic<int32_t> priority{0};
  std::string salt;
  script_ = [&](const Request& request) {
    priority = request.priority;
    salt = request.cache_salt;
    return std::vector<int32_t>{'a'};
  };
  StartServer();
  EXPECT_EQ(Complete(R"({"prompt":"hi","priority":-7,"cache_salt":"tenant"})").status, 200);
  EXPECT_EQ(priority, -7);
  EXPECT_EQ(salt, "tenant");
}

TEST_F(Completions, DefaultsToSixteenTokensAndTheFirstModel) {
  StartServer();
  const json body = Json(Complete(R"({"prompt":"hi"})"));
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_EQ(body["usage"]["completion_tokens"], 16);
}

TEST_F(Completions, CapsMaxTokensAtWhatTheContextHolds) {
  StartServer();
  const json body = Json(Complete(R"({"prompt":[1,2,3,4,5,6],"max_tokens":256})"));
  EXPECT_EQ(body["usage"]["completion_tokens"], 250);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST_F(Completions, TakesPromptsInAllFourShapes) {
  script_ = [](const Request& request) { return std::vector<int32_t>{request.prompt.back()}; };
  StartServer();
  EXPECT_EQ(Json(Complete(R"({"prompt":"xy","max_tokens":1})"))["choices"][0]["text"], "y");
  EXPECT_EQ(Json(Complete(R"({"prompt":[120,122],"max_tokens":1})"))["choices"][0]["text"], "z");
  for (const char* prompt : {R"(["p","q","r"])", R"([[112],[113],[1,114]])"}) {
    const json body = Json(Complete(std::string(R"({"max_tokens":1,"n":2,"prompt":)") + prompt + "}"));
    ASSERT_EQ(body["choices"].size(), 6u) << prompt;
    for (int i = 0; i < 6; ++i) {  // index = prompt * n + sample
      EXPECT_EQ(body["choices"][i]["index"], i);
      EXPECT_EQ(body["choices"][i]["text"], std::string(1, static_cast<char>('p' + i / 2)));
    }
    EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  }
}

TEST_F(Completions, AddsNoBosToTokenIds) {
  StartServer();
  EXPECT_EQ(Json(Complete(R"({"prompt":[5,6]})"))["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(Json(Complete(R"({"prompt":"ab","add_special_tokens":false})"))["usage"]["prompt_tokens"], 2);
}

TEST_F(Completions, AnswersAThousandPromptsAtOnce) {
  StartServer();
  json request = {{"max_tokens", 1}, {"prompt", json::array()}};
  for (int i = 0; i < 1024; ++i) request["prompt"].push_back({i % 250, 7});
  const json body = Json(Complete(request.dump()));
  EXPECT_EQ(body["choices"].size(), 1024u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2048);
  request["prompt"].push_back({1});
  EXPECT_EQ(Complete(request.dump()).status, 400);
}

TEST_F(Completions, StreamsOneChunkPerTextAndThenTheReason) {
  StartServer();
  const HttpReply reply = Complete(R"({"prompt":"hi","max_tokens":3,"stream":true})");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(reply.headers.at("transfer-encoding"), "chunked");
  const auto events = Events(reply);
  ASSERT_EQ(events.size(), 4u);
  std::set<std::string> ids;
  for (size_t i = 0; i < events.size(); ++i) {
    ids.insert(events[i]["id"]);
    EXPECT_EQ(events[i]["object"], "text_completion");
    EXPECT_FALSE(events[i].contains("usage"));
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"], i < 3 ? json() : json("length"));
  }
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ(Joined(events), "abc");
}

TEST_F(Completions, EachEventIsOneChunk) {
  step_time_ = std::chrono::milliseconds(1);
  StartServer();
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":5,"stream":true})");
  client.ReadHead();
  int events = 0;
  while (const auto chunk = client.NextChunk()) {
    if (chunk->empty()) break;
    ++events;
    EXPECT_TRUE(chunk->starts_with("data: "));
    EXPECT_EQ(chunk->find("\n\n"), chunk->size() - 2);
  }
  EXPECT_EQ(events, 7);  // 5 texts, the reason, [DONE]
}

TEST_F(Completions, SendsUsageOnlyWhenAsked) {
  StartServer();
  auto events = Events(
      Complete(R"({"prompt":"hi","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}})"));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_TRUE(events[3]["choices"].empty());
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 2);
  EXPECT_FALSE(events[0].contains("usage"));

  events = Events(Complete(
      R"({"prompt":"hi","max_tokens":2,"stream":true,"stream_options":{"continuous_usage_stats":true}})"));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[2]["usage"]["total_tokens"], 5);
}

TEST_F(Completions, LoadGeneratorBodyGivesExactlyTheTokensAskedFor) {
  Says({}, "ab<eos>");
  StartServer();
  const auto events = Events(Complete(
      R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},)"
      R"("max_tokens":5,"max_completion_tokens":5,"stop":null,"ignore_eos":true,"repetition_penalty":1.0,)"
      R"("logprobs":null,"user":"x","metadata":{},"best_of":null})"));
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 5);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
}

TEST_F(Completions, EosEndsTheTextAndIsNoPartOfIt) {
  Says({}, "one<eos>two");
  StartServer();
  const json body = Json(Complete(R"({"prompt":"hi","max_tokens":4})"));  // eos exactly at the limit
  EXPECT_EQ(body["choices"][0]["text"], "one");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

TEST_F(Completions, AStopTokenIdIsReported) {
  StartServer();
  const json body = Json(Complete(R"({"prompt":"hi","stop_token_ids":[99]})"));
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], 99);
}

TEST_F(Completions, SpecialTokensAreShownWhenAsked) {
  Says({}, "a<bos>b");
  StartServer();
  EXPECT_EQ(Json(Complete(R"({"prompt":"hi","max_tokens":3})"))["choices"][0]["text"], "ab");
  EXPECT_EQ(
      Json(Complete(R"({"prompt":"hi","max_tokens":3,"skip_special_tokens":false})"))["choices"][0]["text"],
      "a<bos>b");
}

TEST_F(Completions, TokensBeyondTheTokenizerHaveNoText) {
  script_ = [](const Request&) { return std::vector<int32_t>{'a', 299, 'b'}; };
  StartServer();
  const json body = Json(Complete(R"({"prompt":[299],"max_tokens":3})"));
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
}

// Both endpoints, stream and not, must show the same text for the same tokens.
struct StopCase {
  const char* name;
  std::vector<std::string> words;
  const char* says;
  const char* stop;        // JSON
  const char* text;        // what may be shown
  const char* reason;      // finish_reason
  const char* extra = "";  // more fields
};

class StopStrings : public ServerFixture, public ::testing::WithParamInterface<StopCase> {};

TEST_P(StopStrings, NeverLeakOnAnyRoute) {
  const StopCase& c = GetParam();
  Says(c.words, c.says);
  StartServer();
  const std::string fields = std::string(R"("max_tokens":40,"stop":)") + c.stop + c.extra;
  const std::string prompt = "{\"prompt\":\"p\"," + fields;
  const std::string messages = R"({"messages":[{"role":"user","content":"p"}],)" + fields;

  const json completion = Json(Complete(prompt + "}"));
  EXPECT_EQ(completion["choices"][0]["text"], c.text);
  EXPECT_EQ(completion["choices"][0]["finish_reason"], c.reason);
  const json chat = Json(Chat(messages + "}"));
  EXPECT_EQ(chat["choices"][0]["message"]["content"], c.text);
  EXPECT_EQ(chat["choices"][0]["finish_reason"], c.reason);
  for (const auto& events :
       {Events(Complete(prompt + R"(,"stream":true})")), Events(Chat(messages + R"(,"stream":true})"))}) {
    EXPECT_EQ(Joined(events), c.text);
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], c.reason);
  }
  EXPECT_TRUE(engine_->WaitUntilIdle());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, StopStrings,
    ::testing::Values(
        StopCase{"C06SpansFourTokens", {"ABC", "DEF", "HI"}, "ABCDEFGHIJ", R"("DEFGHIJ")", "ABC", "stop"},
        StopCase{"C07StartsInsideAWord",
                 {"The", " quick", " brown", " fox"},
                 "The quick brown fox",
                 R"("own fox")",
                 "The quick br",
                 "stop"},
        StopCase{"C08NothingAfterIt",
                 {"one ", "two ", "three ", "four ", "five ", "six "},
                 "one two three four five six ",
                 R"(["five"])",
                 "one two three four ",
                 "stop"},
        StopCase{"EndsFirst", {"abcd"}, "abcdefgh", R"(["defg","ef"])", "abcd", "stop"},
        StopCase{"TieByListOrder", {}, "abcdef", R"(["cd","bcd"])", "ab", "stop"},
        StopCase{"HeldBackTailIsShown", {}, "abcST<eos>", R"(["STOP"])", "abcST", "stop"},
        StopCase{"InMultiByteText", {}, "aé€b", R"(["€"])", "aé", "stop"},
        StopCase{"Kept", {}, "abcdef", R"(["cd"])", "abcd", "stop", R"(,"include_stop_str_in_output":true)"},
        StopCase{"StopIdIsCutOff", {}, "abcdef", "[]", "ab", "stop", R"(,"stop_token_ids":[99])"},
        StopCase{"StopIdKept",
                 {},
                 "abcdef",
                 "[]",
                 "abc",
                 "stop",
                 R"(,"stop_token_ids":[99],"include_stop_str_in_output":true)"},
        StopCase{"KeptStopIdEndsAStopString",
                 {"bc", "def"},
                 "abcdef",
                 R"(["cd","fe"])",
                 "abcd",
                 "stop",
                 R"(,"stop_token_ids":[259],"include_stop_str_in_output":true)"},
        StopCase{"KeptEndTokenIsSpecial",
                 {},
                 "ab<eos>",
                 "[]",
                 "ab",
                 "stop",
                 R"(,"include_stop_str_in_output":true)"},
        StopCase{"KeptEndTokenWhereSpecialOnesShow",
                 {},
                 "ab<eos>",
                 "[]",
                 "ab<eos>",
                 "stop",
                 R"(,"include_stop_str_in_output":true,"skip_special_tokens":false)"},
        StopCase{"NotBeforeMinTokens", {}, "abab<eos>", R"(["ab"])", "abab", "stop", R"(,"min_tokens":3)"},
        StopCase{"MinTokensThenMatch", {}, "ababab", R"(["ab"])", "ab", "stop", R"(,"min_tokens":2)"},
        StopCase{"SixteenStrings",
                 {},
                 "abcdefghijklmnop",
                 R"(["A","B","C","D","E","F","G","H","I","J","K","L","M","N","O","p"])",
                 "abcdefghijklmno",
                 "stop"}),
    [](const auto& test) { return test.param.name; });

TEST_F(Completions, AStopStringIsReportedAndEndsTheSequence) {
  Says({}, "abcdef");
  step_time_ = std::chrono::milliseconds(1);
  StartServer();
  const json body = Json(Complete(R"({"prompt":"hi","stop":["zz","cd"],"max_tokens":200})"));
  EXPECT_EQ(body["choices"][0]["stop_reason"], "cd");
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  EXPECT_TRUE(engine_->WaitUntilIdle());
  EXPECT_EQ(engine_->finished(FinishReason::kStop), 1);
  EXPECT_EQ(engine_->finished(FinishReason::kLength), 0);
}

TEST_F(Completions, StreamsWholeCodePointsOnly) {
  Says({}, "é€😀");
  StartServer();
  const auto events = Events(Complete(R"({"prompt":"hi","max_tokens":9,"stream":true})"));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["choices"][0]["text"], "é");
  EXPECT_EQ(events[1]["choices"][0]["text"], "€");
  EXPECT_EQ(events[2]["choices"][0]["text"], "😀");
}

TEST_F(Completions, InvalidBytesFromTheModelGiveValidJson) {
  script_ = [](const Request&) { return std::vector<int32_t>{'a', 0xFF, 'b', 0xE2}; };
  StartServer();
  const std::string expected =
      "a\xEF\xBF\xBD"
      "b\xEF\xBF\xBD";
  EXPECT_EQ(Json(Complete(R"({"prompt":"hi","max_tokens":4})"))["choices"][0]["text"], expected);
  EXPECT_EQ(Joined(Events(Complete(R"({"prompt":"hi","max_tokens":4,"stream":true})"))), expected);
}

TEST_F(Completions, SeedsOfChoicesDifferAndRepeat) {
  script_ = [](const Request& request) {
    const auto seed = static_cast<uint64_t>(request.sampling.seed.value_or(0));
    return std::vector<int32_t>{static_cast<int32_t>('a' + seed % 26)};
  };
  StartServer();
  const auto texts = [&](const std::string& prompt) {
    const json body =
        Json(Complete(R"({"n":3,"seed":1,"temperature":1,"max_tokens":3,"prompt":)" + prompt + "}"));
    std::vector<std::string> out;
    for (const auto& choice : body["choices"]) out.push_back(choice["text"]);
    return out;
  };
  EXPECT_EQ(texts("\"x\""), (std::vector<std::string>{"bbb", "ccc", "ddd"}));
  EXPECT_EQ(texts("\"x\""), texts("\"x\""));
  // A prompt's choices do not depend on its place in the batch.
  EXPECT_EQ(texts(R"(["x","y"])"), (std::vector<std::string>{"bbb", "ccc", "ddd", "bbb", "ccc", "ddd"}));
  EXPECT_EQ(Complete(R"({"prompt":"x","n":2,"seed":9223372036854775807})").status, 200);
  EXPECT_EQ(Complete(R"({"prompt":"x","n":2,"seed":-5})").status, 200);
}

TEST_F(Completions, EveryChoiceOfAStreamEnds) {
  // Choices end at different steps: 'a' x (2, 4, 6), then eos.
  script_ = [](const Request& request) {
    std::vector<int32_t> ids(static_cast<size_t>(2 + 2 * request.sampling.seed.value()), 'a');
    ids.push_back(FakeTokenizer::kEos);
    return ids;
  };
  StartServer();
  const auto events = Events(Complete(
      R"({"prompt":"x","n":3,"seed":0,"max_tokens":50,"stream":true,"stream_options":{"include_usage":true}})"));
  std::set<int> ended;
  for (const auto& event : events) {
    for (const auto& choice : event["choices"]) {
      if (choice["finish_reason"].is_null()) continue;
      EXPECT_TRUE(ended.insert(choice["index"].get<int>()).second);
    }
  }
  EXPECT_EQ(ended, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(Joined(events, 0), "aa");
  EXPECT_EQ(Joined(events, 1), "aaaa");
  EXPECT_EQ(Joined(events, 2), "aaaaaa");
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 3 + 5 + 7);
}

TEST_F(Completions, AnEngineErrorIsA500OrAnErrorInTheStream) {
  script_ = [](const Request&) { return std::vector<int32_t>{'a', 'b', FakeEngine::kFailure}; };
  StartServer();
  const HttpReply reply = Complete(R"({"prompt":"hi","n":2})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(Json(reply)["error"]["type"], "InternalServerError");
  EXPECT_EQ(Json(reply)["error"]["code"], 500);

  const auto events = Events(Complete(R"({"prompt":"hi","n":2,"stream":true})"));
  EXPECT_EQ(events.back()["error"]["message"], "the step failed");
  for (const auto& event : events) {
    for (const auto& choice : event.value("choices", json::array()))
      EXPECT_TRUE(choice["finish_reason"].is_null());
  }
  EXPECT_TRUE(engine_->WaitUntilIdle());
}

TEST_F(Completions, AFullQueueIsA503ThatSaysWhenToRetry) {
  engine_options_.max_queue = 4;
  StartServer();
  engine_->Pause(true);
  HttpClient busy(port());
  busy.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","n":3,"stream":true})");
  ASSERT_EQ(busy.ReadHead().status, 200);
  const HttpReply reply = Complete(R"({"prompt":"hi","n":2})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(Json(reply)["error"]["type"], "ServiceUnavailableError");
  // What was submitted of the refused request is gone, and more than ever fits is the client's error.
  for (int i = 0; i < 30000 && engine_->running() != 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(engine_->running(), 3);
  const std::string metrics = Get(port(), "/metrics").body;
  EXPECT_NE(metrics.find(R"(model_name="test-model",code="503"} 1)"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find(R"(finished_reason="abort"} 0)"), std::string::npos) << metrics;
  EXPECT_EQ(Complete(R"({"prompt":"hi","n":5})").status, 400);
  engine_->Pause(false);
}

}  // namespace
}  // namespace attest::testing
