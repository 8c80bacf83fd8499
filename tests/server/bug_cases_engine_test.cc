// Serving bugs that other engines had in public, one test each, named by its case, over the real engine.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/log.h"
#include "tests/support/sanitizers.h"
#include "tests/support/toy_server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

class BugCasesOfTheEngine : public ToyServerFixture {};

// n with a seed gave one text n times.
TEST_F(BugCasesOfTheEngine, C12SeededChoicesDifferRepeatAndAllEnd) {
  StartServer();
  json body = {{"prompt", "once"}, {"n", 3}, {"seed", 1}, {"temperature", 1.0}, {"max_tokens", 20}};
  const auto first = Texts(Complete(body));
  ASSERT_EQ(first.size(), 3u);
  EXPECT_FALSE(first[0] == first[1] && first[1] == first[2]);
  EXPECT_EQ(Texts(Complete(body)), first);
  body["stream"] = true;
  const std::string stream = Post(server_->port(), "/v1/completions", body.dump()).body;
  for (int index = 0; index < 3; ++index) {
    int reasons = 0;
    for (size_t at = 0; (at = stream.find("\"index\":" + std::to_string(index), at)) != std::string::npos;
         ++at) {
      const std::string event = stream.substr(at, stream.find("\n\n", at) - at);
      if (event.find(R"("finish_reason":null)") == std::string::npos) ++reasons;
    }
    EXPECT_EQ(reasons, 1) << index;
  }
}

// Siblings overwrote each other's result.
TEST_F(BugCasesOfTheEngine, C13UsageIsTheSumOfAllChoices) {
  StartServer();
  json body = {{"prompt", "a"},      {"n", 2},           {"seed", 3},
               {"temperature", 1.0}, {"max_tokens", 17}, {"ignore_eos", true}};
  const json whole = Complete(body);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 34);
  ASSERT_EQ(whole["choices"].size(), 2u);
  EXPECT_NE(whole["choices"][0]["text"], whole["choices"][1]["text"]);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const std::string stream = Post(server_->port(), "/v1/completions", body.dump()).body;
  EXPECT_NE(stream.find(R"("completion_tokens":34)"), std::string::npos) << stream;
}

// Greedy answers changed with the company they were computed in.
TEST_F(BugCasesOfTheEngine, C14TheAnswerIsTheSameAloneAndInCompany) {
  StartServer();
  const json body = {{"prompt", "the one"}, {"temperature", 0}, {"max_tokens", 24}, {"logprobs", 1}};
  const json alone = Complete(body)["choices"][0];
  for (const int others : {1, 7, 15, 63}) {
    std::vector<std::unique_ptr<HttpClient>> company;
    for (int i = 0; i < others; ++i) {
      const json other = {
          {"prompt", "another " + std::to_string(i)}, {"max_tokens", 30}, {"temperature", 0.7}};
      company.push_back(std::make_unique<HttpClient>(server_->port()));
      company.back()->SendRequest("POST", "/v1/completions", other.dump());
    }
    const json crowded = Complete(body)["choices"][0];
    EXPECT_EQ(crowded["text"], alone["text"]) << others;
    EXPECT_EQ(crowded["logprobs"], alone["logprobs"]) << others;
    for (const auto& client : company) EXPECT_EQ(client->Read().status, 200);
  }
}

// An empty prompt stopped the engine for everybody.
TEST_F(BugCasesOfTheEngine, C15AnEmptyPromptIsRefusedAndTheNextRequestServed) {
  StartServer();  // the tokenizer adds no BOS
  for (const char* prompt : {R"("")", R"([""])", "[]", "[[]]", R"(["a",""])"}) {
    EXPECT_EQ(Status(std::string(R"({"prompt":)") + prompt + "}"), 400) << prompt;
    EXPECT_EQ(Status(R"({"prompt":"a","max_tokens":2})"), 200);
  }
}

// Streams closed in the middle freed blocks that the running step still read.
TEST_F(BugCasesOfTheEngine, C22StreamsThatVanishChangeNoOther) {
  options_.prefix_caching = false;
  StartServer();
  const auto body = [](int i) {
    return json({{"prompt", "stream " + std::to_string(i)},
                 {"temperature", 0},
                 {"max_tokens", 12},
                 {"ignore_eos", true}});
  };
  std::vector<std::string> expected;
  for (int i = 0; i < 8; ++i) expected.push_back(Complete(body(i))["choices"][0]["text"]);
  std::mt19937 random(22);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < 8; ++i) {
      json streamed = body(i);
      streamed["stream"] = i % 2 == 0;
      clients.push_back(std::make_unique<HttpClient>(server_->port()));
      clients.back()->SendRequest("POST", "/v1/completions", streamed.dump());
    }
    for (int i = 0; i < 8; i += 2) {
      HttpClient& client = *clients[static_cast<size_t>(i)];
      client.ReadHead();
      for (unsigned chunks = random() % 6; chunks > 0; --chunks) (void)client.NextChunk();
      client.Reset();
    }
    for (int i = 1; i < 8; i += 2) {
      const json answer = json::parse(clients[static_cast<size_t>(i)]->Read().body, nullptr, false);
      ASSERT_EQ(answer["choices"][0]["text"], expected[static_cast<size_t>(i)]) << "round " << round;
    }
  }
  EXPECT_TRUE(AllBlocksComeBack());
}

// Free KV shrank with some ways to end, until the server stalled.
TEST_F(BugCasesOfTheEngine, C23EveryEndOfARequestGivesItsBlocksBack) {
  SetLogLevel(LogLevel::kOff);
  int64_t steps = 0;
  before_run_ = [&steps](const StepBatch&) -> attest::Status {
    return ++steps % 61 == 0 ? Fail(ErrorCode::kInternal, "injected") : attest::Status{};
  };
  options_.num_blocks = 60;
  StartServer();
  std::mt19937 random(23);
  std::map<int, int> statuses;
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (int i = 0; i < 1000; ++i) {
    json body = {{"prompt", std::string(1 + random() % 60, static_cast<char>('a' + i % 26))},
                 {"max_tokens", 1 + random() % 20},
                 {"seed", i}};
    if (i % 5 == 1) body["stop"] = "e";
    if (i % 5 == 2) body["max_tokens"] = -1;
    if (i % 5 == 3) body["stream"] = true;
    waiting.push_back(std::make_unique<HttpClient>(server_->port()));
    waiting.back()->SendRequest("POST", "/v1/completions", body.dump());
    if (i % 5 == 4) waiting.back()->Reset();
    if (waiting.size() < 20) continue;
    for (const auto& client : waiting) ++statuses[client->Read().status];
    waiting.clear();
  }
  EXPECT_GE(statuses[200], 300);
  EXPECT_GE(statuses[400], 200);
  EXPECT_GE(statuses[500], 1);
  EXPECT_TRUE(AllBlocksComeBack());
  const std::string metrics = Get(server_->port(), "/metrics").body;
  EXPECT_NE(metrics.find("attest:kv_cache_free_blocks{engine=\"0\",model_name=\"m\"} 59\n"),
            std::string::npos);
}

// Prompts in a narrow range of lengths were admitted and never ran: a reserved block was counted as usable.
TEST_F(BugCasesOfTheEngine, C30APromptThatFillsThePoolRunsAndALongerOneIsRefused) {
  options_.block_size = 8;
  options_.num_blocks = 13;
  StartServer();
  const auto status = [&](size_t length) {
    return Status(json({{"prompt", Ids(length, 5)}, {"max_tokens", 1}}).dump());
  };
  EXPECT_EQ(status(96), 200);
  for (size_t length = 97; length <= 104; ++length) EXPECT_EQ(status(length), 400) << length;
  EXPECT_EQ(status(50), 200);
}

// Looks at the lengths of a step and at nothing else: the toy would read 100,000 tokens 100,000 times.
struct SeenLengths {
  std::atomic<bool> holds = true;
  std::atomic<int64_t> steps = 0;
  std::atomic<int64_t> last_short_step = 0;  // that had a sequence of less than 1,000 tokens
  std::atomic<int32_t> long_len_then = 0;    // of the longest sequence in that step
};

class LengthsRunner final : public StepRunner {
 public:
  explicit LengthsRunner(SeenLengths& seen) : seen_(seen) {}
  attest::Status Run(const StepBatch& batch, View<float, 2> logits) override {
    ++seen_.steps;
    if (std::ranges::min(batch.kv_len) < 1000) {
      seen_.last_short_step = seen_.steps.load();
      seen_.long_len_then = std::ranges::max(batch.kv_len);
    }
    while (seen_.holds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::fill(logits.data, logits.data + logits.size(), 0.0f);
    return {};
  }

 private:
  SeenLengths& seen_;
};

// A long prefill took the budget of every step, and no new request was admitted.
TEST_F(BugCasesOfTheEngine, C32ShortRequestsAreAnsweredBesideALongPrefill) {
  options_.num_blocks = 7000;
  options_.max_model_len = 110'000;
  options_.max_num_batched_tokens = 2048;
  SeenLengths seen;
  StartServer(std::make_unique<LengthsRunner>(seen));
  const auto body = [](size_t length, int max_tokens) {
    return json({{"prompt", Ids(length, 5)}, {"max_tokens", max_tokens}, {"ignore_eos", true}}).dump();
  };
  HttpClient long_one(server_->port());
  long_one.SendRequest("POST", "/v1/completions", body(100'000, 2));
  while (seen.steps == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<std::unique_ptr<HttpClient>> short_ones;
  for (int i = 0; i < 10; ++i) {
    short_ones.push_back(std::make_unique<HttpClient>(server_->port()));
    short_ones.back()->SendRequest("POST", "/v1/completions", body(100, 8));
  }
  while (engine_->stats().num_waiting < 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int64_t begin = seen.steps;
  seen.holds = false;
  for (const auto& client : short_ones) {
    const HttpReply reply = client->Read();
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(json::parse(reply.body)["usage"]["completion_tokens"], 8);
  }
  // A quarter of each step, 512 tokens, is theirs: two steps for 1,000 tokens of prompts, then one for each
  // further token.
  EXPECT_LE(seen.last_short_step - begin, 10);
  EXPECT_LT(seen.long_len_then, 100'000);
  EXPECT_EQ(long_one.Read().status, 200);
}

// Host memory grew by a kilobyte or two per request.
TEST_F(BugCasesOfTheEngine, C33MemoryDoesNotGrowWithTheNumberOfRequests) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  options_.prefix_caching = false;
  StartServer();
  HttpClient keep_alive(server_->port());
  const auto serve = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const bool vanishes = i % 16 == 15;
      const json body = {{"prompt", "a" + std::to_string(i)}, {"max_tokens", 1}, {"n", 1 + i % 2}};
      if (vanishes) {
        HttpClient client(server_->port());
        client.SendRequest("POST", "/v1/completions", body.dump());
        client.Reset();
      } else {
        ASSERT_TRUE(keep_alive.SendRequest("POST", "/v1/completions", body.dump()));
        ASSERT_EQ(keep_alive.Read().status, 200);
      }
    }
  };
  const auto resident_bytes = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  };
  serve(2000);
  const int64_t before = resident_bytes();
  serve(6000);
  EXPECT_LT(resident_bytes() - before, int64_t{3} << 20);  // half a kilobyte per request
}

// Not a public bug: a request that forbids every token is the client's error, told as soon as it shows.
TEST_F(BugCasesOfTheEngine, ARequestThatLeavesNoTokenToDrawIsA400) {
  StartServer();
  const HttpReply reply = Post(server_->port(), "/v1/completions",
                               R"({"prompt":"a","allowed_token_ids":[257],"min_tokens":1,"max_tokens":4})");
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["error"]["param"], "allowed_token_ids");
  EXPECT_EQ(Status(R"({"prompt":"a","max_tokens":2})"), 200);
}

// Not a bug: the profile needs steps of the real engine.
TEST_F(BugCasesOfTheEngine, AProfileCountsTheStepsBetweenItsStartAndItsEnd) {
  dev_endpoints_ = true;
  StartServer();
  const auto post = [&](const char* path) { return json::parse(Post(server_->port(), path, "").body); };
  EXPECT_EQ(post("/stop_profile"), json({{"success", false}, {"profile", nullptr}}));
  Complete({{"prompt", "before"}, {"max_tokens", 3}});
  EXPECT_EQ(post("/start_profile"), json({{"success", true}}));
  EXPECT_EQ(post("/start_profile"), json({{"success", false}}));
  Complete({{"prompt", "abcdef"}, {"max_tokens", 5}, {"ignore_eos", true}});
  const json profile = post("/stop_profile")["profile"];
  EXPECT_EQ(profile["steps"], 5);
  EXPECT_EQ(profile["sampled_tokens"], 5);
  EXPECT_EQ(profile["tokens"], 6 + 4);
  EXPECT_EQ(profile["max_seqs"], 1);
  EXPECT_EQ(profile["failed_steps"], 0);
  EXPECT_GT(profile["wall_seconds"].get<double>(), 0.0);
}

}  // namespace
}  // namespace attest::testing
