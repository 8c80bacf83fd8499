// best_of: more samples than choices, and which of them are the answer.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/server_fixture.h"
#include "tests/support/toy_server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

// Over FakeEngine::Scores: a token has log(1/2), one that is a multiple of 10 ("d", "n") has log(1/4).
class BestOf : public ServerFixture {
 protected:
  // Sample i of a prompt, with seed 0, says says[i].
  void SamplesSay(const std::vector<std::string>& says) {
    script_ = [says](const Request& request) {
      const std::string& text = says[static_cast<size_t>(*request.sampling.seed)];
      std::vector<int32_t> ids;
      for (const char c : text) ids.push_back(c == '$' ? FakeTokenizer::kEos : c);
      return ids;
    };
  }
  json Answer(const std::string& fields) {
    const HttpReply reply = Complete(R"({"prompt":"hi","seed":0,"max_tokens":4,)" + fields + "}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json(reply);
  }
};

TEST_F(BestOf, TheBestMeanLogprobsAreTheChoicesBestFirst) {
  // Means in units of log(1/2): 1.5, 2, 1, 1.25. The sums would say "d" first: 3, 8, 4, 5.
  SamplesSay({"d$", "dddd", "aaaa", "daaa"});
  StartServer();
  const json body = Answer(R"("best_of":4,"n":2)");
  EXPECT_EQ(Texts(body), (std::vector<std::string>{"aaaa", "daaa"}));
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  // All that was generated is counted, the prompt once.
  EXPECT_EQ(body["usage"]["completion_tokens"], 2 + 4 + 4 + 4);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(Texts(Answer(R"("best_of":4)")), std::vector<std::string>{"aaaa"});
  EXPECT_EQ(Texts(Answer(R"("best_of":2)")), std::vector<std::string>{"d"});
  EXPECT_EQ(Answer(R"("best_of":2)")["choices"][0]["finish_reason"], "stop");
}

TEST_F(BestOf, AsManyAsNKeepTheirOrder) {
  SamplesSay({"dddd", "aaaa"});
  StartServer();
  EXPECT_EQ(Texts(Answer(R"("best_of":2,"n":2)")), (std::vector<std::string>{"dddd", "aaaa"}));
}

TEST_F(BestOf, OfEqualOnesTheEarlierSampleIsTheBetter) {
  SamplesSay({"dddd", "abca", "aaaa"});
  StartServer();
  EXPECT_EQ(Texts(Answer(R"("best_of":3,"n":2)")), (std::vector<std::string>{"abca", "aaaa"}));
}

TEST_F(BestOf, EachPromptHasItsOwn) {
  script_ = [](const Request& request) {
    const bool is_good = *request.sampling.seed == request.prompt.back() - 'x';
    return std::vector<int32_t>{is_good ? request.prompt.back() : 'd'};
  };
  StartServer();
  const json body = Json(Complete(R"({"prompt":["x","y","z"],"seed":0,"max_tokens":2,"best_of":3})"));
  EXPECT_EQ(Texts(body), (std::vector<std::string>{"xx", "yy", "zz"}));
  EXPECT_EQ(body["choices"][2]["index"], 2);
}

TEST_F(BestOf, GoesWithLogprobsEchoAndStop) {
  SamplesSay({"dddd", "aXYa"});
  StartServer();
  json choice = Answer(R"("best_of":2,"stop":"XY","logprobs":1,"echo":true)")["choices"][0];
  EXPECT_EQ(choice["text"], "hia");
  EXPECT_EQ(choice["stop_reason"], "XY");
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"<bos>", "h", "i", "a", "X", "Y"}));
  choice = Answer(R"("best_of":2,"echo":true,"max_tokens":0)")["choices"][0];
  EXPECT_EQ(choice["text"], "hi");
  choice = Answer(R"("best_of":2,"prompt_logprobs":0)")["choices"][0];
  EXPECT_EQ(choice["text"], "aXYa");
  EXPECT_EQ(choice["prompt_logprobs"].size(), 3u);
}

TEST_F(BestOf, AlsoOfAChat) {
  SamplesSay({"dddd", "aaaa"});
  StartServer();
  const json body =
      Json(Chat(R"({"messages":[{"role":"user","content":"x"}],"seed":0,"max_tokens":4,"best_of":2})"));
  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "aaaa");
}

TEST_F(BestOf, TokensThatAreTakenBackDoNotCount) {
  SamplesSay({"dddddddddd", "aaaaaaaaaa"});
  step_time_ = std::chrono::milliseconds(2);
  StartServer();
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"hi","seed":0,"max_tokens":100,"best_of":2,"logprobs":0})");
  for (int i = 0; i < 30000 && engine_->RetractAll() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const json body = Json(client.Read());
  EXPECT_EQ(body["choices"][0]["text"], std::string(100, 'a'));
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 100u);
  EXPECT_EQ(body["usage"]["completion_tokens"], 200);
}

// The scores of a prompt come once for all its samples, and anew where they were found wrong.
TEST_F(BestOf, TheEchoOfAScoredPromptSurvivesThatTokensAreTakenBack) {
  SamplesSay({"dddddddddd", "aaaaaaaaaa"});
  step_time_ = std::chrono::milliseconds(2);
  StartServer();
  HttpClient client(port());
  client.SendRequest(
      "POST", "/v1/completions",
      R"({"prompt":"hi","seed":0,"max_tokens":100,"n":2,"logprobs":0,"echo":true,"prompt_logprobs":1})");
  for (int i = 0; i < 30000 && engine_->RetractAll() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const json body = Json(client.Read());
  EXPECT_EQ(Texts(body),
            (std::vector<std::string>{"hi" + std::string(100, 'd'), "hi" + std::string(100, 'a')}));
  for (const json& choice : body["choices"]) {
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u + 100u);
    EXPECT_EQ(choice["prompt_logprobs"].size(), 3u);
  }
  EXPECT_EQ(body["usage"]["completion_tokens"], 200);
}

TEST_F(BestOf, WhatCannotBeIsRefusedByName) {
  StartServer();
  const auto refused = [&](const char* fields, const char* says) {
    const HttpReply reply = Complete(std::string(R"({"prompt":"a",)") + fields + "}");
    EXPECT_EQ(reply.status, 400) << fields;
    const json error = Json(reply)["error"];
    EXPECT_EQ(error["param"], "best_of") << fields;
    EXPECT_NE(error["message"].get<std::string>().find(says), std::string::npos) << error;
  };
  refused(R"("best_of":1,"n":2)", "best_of is 1, less than n, which is 2");
  refused(R"("best_of":2,"stream":true)", "best_of 2 with n 1 may not be given together with stream true");
  refused(R"("best_of":129)", "best_of must be an integer in [1, 128], not 129");
  refused(R"("best_of":0)", "best_of must be an integer in [1, 128], not 0");
  refused(R"("best_of":"2")", "best_of must be an integer in [1, 128], not \"2\"");
  const json many = {{"prompt", std::vector<std::string>(33, "a")}, {"best_of", 128}};
  const json error = Json(Complete(many.dump()))["error"];
  EXPECT_EQ(error["param"], "best_of");
  EXPECT_EQ(error["message"], "33 prompts with best_of = 128 are 4224 choices, the limit is 4096");
  EXPECT_EQ(Complete(R"({"prompt":"a","best_of":2,"n":2,"stream":true})").status, 200);
  EXPECT_EQ(Complete(R"({"prompt":"a","best_of":null,"n":2})").status, 200);
}

// Over the real engine.
class Samples : public ToyServerFixture {
 protected:
  static json Body(int prompt_tokens) {
    std::vector<int32_t> ids;
    for (int i = 0; i < prompt_tokens; ++i) ids.push_back((i * 7 + prompt_tokens) % 256);
    return {{"prompt", ids}, {"seed", 5}, {"temperature", 1.0}, {"max_tokens", 12}};
  }
  int64_t PromptTokensComputed(const json& body) {
    const EngineStats before = engine_->stats();
    Complete(body);
    const EngineStats after = engine_->stats();
    return after.prompt_tokens - after.prompt_tokens_cached - before.prompt_tokens +
           before.prompt_tokens_cached;
  }
};

TEST_F(Samples, BestOfGivesTheBestOfWhatNGives) {
  StartServer();
  json body = Body(40);
  body["stop"] = {"a", "e", "i"};
  body["logprobs"] = 0;
  body["n"] = 8;
  auto all = Complete(body)["choices"].get<std::vector<json>>();
  const auto mean = [](const json& choice) {
    double sum = 0;
    for (const json& value : choice["logprobs"]["token_logprobs"]) sum += value.get<double>();
    return sum / static_cast<double>(choice["logprobs"]["token_logprobs"].size());
  };
  std::ranges::stable_sort(all, std::ranges::greater{}, mean);
  EXPECT_GT(mean(all[2]), mean(all[3]));  // the test is one
  body["n"] = 3;
  body["best_of"] = 8;
  for (const bool told : {true, false}) {
    if (!told) body.erase("logprobs");
    const json best = Complete(body)["choices"];
    ASSERT_EQ(best.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(best[i]["text"], all[i]["text"]) << i;
      EXPECT_EQ(best[i]["stop_reason"], all[i]["stop_reason"]) << i;
      EXPECT_EQ(best[i]["logprobs"], told ? all[i]["logprobs"] : json()) << i;
    }
  }
}

TEST_F(Samples, ShareThePromptAlsoWhereItIsScored) {
  StartServer();
  json plain = Body(100), scored = Body(101), echoed = Body(102), best = Body(103);
  plain["n"] = scored["n"] = echoed["n"] = 4;
  scored["prompt_logprobs"] = 2;
  echoed["echo"] = true;
  echoed["logprobs"] = 1;
  best["best_of"] = 4;
  // Blocks of 16 are shared; what is behind the last full one, each computes.
  EXPECT_EQ(PromptTokensComputed(plain), 100 + 3 * 4);
  EXPECT_EQ(log_.scored_rows, 0);
  EXPECT_EQ(PromptTokensComputed(scored), 101 + 3 * 5);
  EXPECT_EQ(log_.scored_rows, 100);
  EXPECT_EQ(PromptTokensComputed(echoed), 102 + 3 * 6);
  EXPECT_EQ(log_.scored_rows, 100 + 101);
  EXPECT_EQ(PromptTokensComputed(best), 103 + 3 * 7);
}

// However the samples of one prompt meet in the engine: one may have tokens before the prompt is scored.
TEST_F(Samples, EveryChoiceHasTheScoresOfThePrompt) {
  struct Load {
    int32_t budget, long_prefill, max_num_seqs;
    bool caching;
  };
  json one;
  for (const Load& load : {Load{256, 0, 64, true}, Load{40, 3, 64, true}, Load{40, 3, 64, false},
                           Load{256, 0, 1, true}, Load{7, 1, 3, false}}) {
    options_.max_num_batched_tokens = load.budget;
    options_.long_prefill_tokens = load.long_prefill;
    options_.max_num_seqs = load.max_num_seqs;
    options_.prefix_caching = load.caching;
    StartServer();
    json body = Body(45);
    body["prompt_logprobs"] = 3;
    body["echo"] = true;
    body["logprobs"] = 1;
    if (one.is_null()) {
      one = Complete(body)["choices"][0];
      ASSERT_EQ(one["prompt_logprobs"].size(), 45u);
      ASSERT_EQ(one["logprobs"]["tokens"].size(), 45u + 12u);
    }
    body["n"] = 3;
    const json whole = Complete(body);
    for (const json& choice : whole["choices"]) {
      EXPECT_EQ(choice["prompt_logprobs"], one["prompt_logprobs"]);
      for (const char* name : {"tokens", "token_logprobs", "top_logprobs"}) {
        const json& list = choice["logprobs"][name];
        ASSERT_EQ(list.size(), 45u + 12u) << name;
        EXPECT_TRUE(std::equal(list.begin(), list.begin() + 45, one["logprobs"][name].begin())) << name;
      }
    }
    EXPECT_EQ(whole["choices"][0]["text"], one["text"]);
    EXPECT_NE(whole["choices"][1]["text"], one["text"]);
    // A stream tells the same, each choice its prompt first.
    body.erase("prompt_logprobs");
    body["stream"] = true;
    const std::string stream = Post(server_->port(), "/v1/completions", body.dump()).body;
    std::vector<std::string> texts(3);
    for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos;) {
      const size_t end = stream.find("\n\n", at);
      const json choice = json::parse(stream.substr(at + 6, end - at - 6))["choices"][0];
      texts[choice["index"].get<size_t>()] += choice["text"];
      at = end;
    }
    EXPECT_EQ(texts, Texts(whole));
    server_.reset();
  }
}

}  // namespace
}  // namespace attest::testing
