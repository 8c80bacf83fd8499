// The server over the real engine, on a toy model: clients that vanish, a KV cache that is too small, steps
// that fail.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "server/last_words.h"
#include "server/server.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/http_client.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

using std::chrono::milliseconds;

// Holds a step of the engine back, or fails it.
struct Gate {
  std::atomic<bool> holds = false, is_in_step = false;
  std::atomic<int> steps_to_fail = 0;
  std::atomic<int64_t> blocks = 3;  // what a step checks
  std::atomic<int64_t> steps = 0;

  Status Pass() {
    ++steps;
    is_in_step = true;
    while (holds) std::this_thread::sleep_for(milliseconds(1));
    is_in_step = false;
    ATTEST_CHECK_EQ(blocks.load(), 3);
    if (steps_to_fail == 0) return {};
    --steps_to_fail;
    return Fail(ErrorCode::kUnsupported, "kernel toy refuses head_dim 36");
  }
};

struct Stack {
  explicit Stack(int64_t num_blocks, int32_t max_num_seqs = 256) {
    const EngineOptions engine_options{.num_blocks = num_blocks,
                                       .max_model_len = 2048,
                                       .max_num_seqs = max_num_seqs,
                                       .vocab_size = 97,
                                       .prefix_caching = false};
    metrics = std::make_unique<ServerMetrics>(
        MetricsOptions{.model_name = "toy", .max_model_len = 2048, .attention_kernels = {}});
    auto runner = std::make_unique<ToyRunner>(
        ToyOptions{.num_blocks = num_blocks, .before_run = [this](const StepBatch&) { return gate.Pass(); }});
    auto started = Engine::Start(engine_options, std::move(runner), metrics.get());
    if (!started) ADD_FAILURE() << started.error().message;
    engine = std::move(*started);
    ServerOptions options;
    options.http.port = 0;
    options.http.log_requests = false;
    options.served_model_names = {"toy"};
    auto listening = Server::Start(options, {.engine = *engine,
                                             .tokenizer = tokenizer,
                                             .metrics = *metrics,
                                             .eos_ids = {},
                                             .default_sampling = {},
                                             .model_root = {},
                                             .version = {}});
    if (!listening) ADD_FAILURE() << listening.error().message;
    server = std::move(*listening);
  }

  [[nodiscard]] uint16_t port() const { return server->port(); }
  [[nodiscard]] bool WaitUntilRunning(int64_t count) const {
    for (int i = 0; i < 30000 && engine->stats().num_running != count; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return engine->stats().num_running == count;
  }
  // Holds the engine inside a step.
  void Hold() {
    gate.holds = true;
    while (!gate.is_in_step) std::this_thread::sleep_for(milliseconds(1));
  }
  [[nodiscard]] bool WaitUntilConnections(int count) const {
    const std::string wanted = "http_connections{engine=\"0\",model_name=\"toy\"} " + std::to_string(count);
    for (int i = 0; i < 3000; ++i) {
      if (Get(port(), "/metrics").body.find(wanted) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  Gate gate;
  FakeTokenizer tokenizer;
  std::unique_ptr<ServerMetrics> metrics;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Server> server;
};

std::string Body(int seed, int max_tokens, bool stream) {
  return R"({"prompt":[)" + std::to_string(seed % 90) + "," + std::to_string(seed / 90) +
         R"(,3,4],"temperature":0,"max_tokens":)" + std::to_string(max_tokens) + R"(,"stream":)" +
         (stream ? "true}" : "false}");
}

struct Answer {
  int status = 0;
  std::string text, reason, error, usage;
  std::string logprobs;  // of all tokens, one after the other, with their alternatives
  bool done = false;
};

Answer ReadAnswer(HttpClient& client, bool stream) {
  const HttpReply reply = client.Read();
  Answer answer{.status = reply.status, .text = {}, .reason = {}, .error = {}, .usage = {}, .logprobs = {}};
  const auto take = [&](const std::string& json) {
    const auto parsed = nlohmann::json::parse(json, nullptr, false);
    if (parsed.contains("error")) answer.error = parsed["error"]["message"];
    if (parsed.contains("usage")) answer.usage = parsed["usage"].dump();
    if (!parsed.contains("choices")) return;
    for (const auto& choice : parsed["choices"]) {
      answer.text += choice["text"];
      if (choice["logprobs"].is_object()) {
        const auto& scores = choice["logprobs"];
        for (size_t i = 0; i < scores["tokens"].size(); ++i) {
          for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
            answer.logprobs += scores[name][i].dump() + " ";
          }
        }
      }
      if (choice["finish_reason"].is_string()) answer.reason = choice["finish_reason"];
    }
  };
  if (!stream || reply.status != 200) {
    take(reply.body);
    answer.done = reply.complete;
    return answer;
  }
  for (size_t at = 0; (at = reply.body.find("data: ", at)) != std::string::npos; ++at) {
    const std::string line = reply.body.substr(at + 6, reply.body.find('\n', at) - at - 6);
    if (line == "[DONE]") {
      answer.done = reply.complete;
    } else {
      take(line);
    }
  }
  return answer;
}

TEST(Faults, AStormOfVanishingClientsGivesEveryBlockBackWithinTheStep) {
  constexpr int kClients = 200;
  Stack stack(/*num_blocks=*/8192);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<HttpClient>(stack.port()));
    clients.back()->SendRequest("POST", "/v1/completions", Body(i, 2000, /*stream=*/i % 2 == 0));
  }
  ASSERT_TRUE(stack.WaitUntilRunning(kClients));
  stack.Hold();
  for (const auto& client : clients) client->Reset();
  ASSERT_TRUE(stack.WaitUntilConnections(1));  // the one that asks
  EXPECT_LT(stack.engine->stats().free_blocks, stack.engine->stats().total_blocks);
  const int64_t step_under_way = stack.gate.steps;
  stack.gate.holds = false;
  ASSERT_TRUE(stack.WaitUntilRunning(0));
  const EngineStats stats = stack.engine->stats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kAbort)], kClients);
  EXPECT_EQ(stack.gate.steps, step_under_way);  // no further step was run
  EXPECT_EQ(Post(stack.port(), "/v1/completions", Body(1, 5, false)).status, 200);
}

// Texts, logprobs and usage.
TEST(Faults, C24LongGenerationsInASmallCacheAllEndWithTheTextOfALargeOne) {
  constexpr int kRequests = 24, kTokens = 180;
  const auto run = [&](int64_t num_blocks) {
    Stack stack(num_blocks);
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < kRequests; ++i) {
      clients.push_back(std::make_unique<HttpClient>(stack.port()));
      std::string body = Body(i, kTokens, /*stream=*/i % 2 == 0);
      body.insert(1, R"("logprobs":2,)");
      if (i % 2 == 0) body.insert(1, R"("stream_options":{"include_usage":true},)");
      clients.back()->SendRequest("POST", "/v1/completions", body);
    }
    std::vector<std::string> answers;
    for (int i = 0; i < kRequests; ++i) {
      const Answer answer = ReadAnswer(*clients[static_cast<size_t>(i)], i % 2 == 0);
      EXPECT_EQ(answer.status, 200) << answer.error;
      EXPECT_TRUE(answer.done);
      EXPECT_EQ(answer.reason, "length");
      EXPECT_NE(answer.usage.find("\"completion_tokens\":180,"), std::string::npos) << answer.usage;
      EXPECT_GT(answer.logprobs.size(), 180u);
      answers.push_back(answer.text + "\n" + answer.logprobs + "\n" + answer.usage);
    }
    const EngineStats stats = stack.engine->stats();
    EXPECT_EQ(stats.free_blocks, stats.total_blocks);
    return std::pair(answers, stats.num_preemptions);
  };
  const auto [small, preemptions] = run(40);  // 24 sequences of 12 blocks
  const auto [large, none] = run(1024);
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(small, large);
}

TEST(Faults, ASequenceThatCanNeverFitIsToldSoAtOnce) {
  Stack stack(/*num_blocks=*/21);  // 320 tokens
  const HttpReply reply =
      Post(stack.port(), "/v1/completions", Body(1, 400, false));  // C31: on an idle server
  EXPECT_GE(reply.status, 400);
  EXPECT_NE(reply.body.find("block"), std::string::npos) << reply.body;
  EXPECT_EQ(Post(stack.port(), "/v1/completions", Body(1, 200, false)).status, 200);
}

TEST(Faults, C20AFailedStepEndsItsRequestsWithItsMessageAndNoOther) {
  Stack stack(/*num_blocks=*/1024);
  SetLogLevel(LogLevel::kOff);
  HttpClient streamed(stack.port()), whole(stack.port());
  streamed.SendRequest("POST", "/v1/completions", Body(1, 2000, true));
  whole.SendRequest("POST", "/v1/completions", Body(2, 2000, false));
  ASSERT_TRUE(stack.WaitUntilRunning(2));
  stack.gate.steps_to_fail = 3;  // of both, then of each alone
  for (const bool stream : {true, false}) {
    const Answer answer = ReadAnswer(stream ? streamed : whole, stream);
    EXPECT_EQ(answer.status, stream ? 200 : 500);
    EXPECT_NE(answer.error.find("kernel toy refuses head_dim 36"), std::string::npos) << answer.error;
    EXPECT_EQ(answer.reason, "");  // nothing that a load generator could count as success
    EXPECT_TRUE(answer.done);
  }
  EXPECT_EQ(Get(stack.port(), "/health").status, 200);
  EXPECT_EQ(Post(stack.port(), "/v1/completions", Body(3, 5, false)).status, 200);
  const EngineStats stats = stack.engine->stats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  SetLogLevel(LogLevel::kInfo);
}

// Ended by length, by a stop string, by a refusal, by a client that left, by a step that failed.
TEST(Faults, C23EveryWayToEndGivesTheBlocksBack) {
  Stack stack(/*num_blocks=*/1024);
  SetLogLevel(LogLevel::kOff);
  for (int i = 0; i < 200; ++i) {
    HttpClient client(stack.port());
    switch (i % 5) {
      case 0:
        client.SendRequest("POST", "/v1/completions", Body(i, 20, false));
        EXPECT_EQ(client.Read().status, 200);
        break;
      case 1:
        client.SendRequest("POST", "/v1/completions",
                           R"({"prompt":[1,2,)" + std::to_string(i % 90) +
                               R"(],"temperature":0,"max_tokens":500,"stop":["A","B","C","D","E","F"]})");
        EXPECT_EQ(client.Read().status, 200);
        break;
      case 2:
        client.SendRequest("POST", "/v1/completions", Body(i, 100'000, true));
        client.Reset();
        break;
      case 3:
        client.SendRequest("POST", "/v1/completions", R"({"prompt":[5000],"max_tokens":3})");
        EXPECT_EQ(client.Read().status, 400);
        break;
      default:
        stack.gate.steps_to_fail = 1;
        client.SendRequest("POST", "/v1/completions", Body(i, 20, i % 2 == 0));
        (void)client.Read();
    }
  }
  ASSERT_TRUE(stack.WaitUntilRunning(0));
  const EngineStats stats = stack.engine->stats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  EXPECT_EQ(stats.num_waiting, 0);
  SetLogLevel(LogLevel::kInfo);
}

TEST(Faults, C22HardClosesLeaveOtherStreamsAsTheyWere) {
  constexpr int kTokens = 60;
  Stack stack(/*num_blocks=*/1024);
  std::vector<std::string> alone;
  for (int i = 0; i < 4; ++i) {
    HttpClient client(stack.port());
    client.SendRequest("POST", "/v1/completions", Body(i, kTokens, true));
    alone.push_back(ReadAnswer(client, true).text);
  }
  for (int round = 0; round < 25; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<HttpClient>(stack.port()));
      clients.back()->SendRequest("POST", "/v1/completions", Body(i, i < 4 ? kTokens : 2000, true));
    }
    for (size_t i = 4; i < 8; ++i) {
      clients[i]->ReadHead();
      for (int chunk = 0; chunk < (round + static_cast<int>(i)) % 7; ++chunk) (void)clients[i]->NextChunk();
      clients[i]->Reset();
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(ReadAnswer(*clients[i], true).text, alone[i]) << round;
  }
  ASSERT_TRUE(stack.WaitUntilRunning(0));
  EXPECT_EQ(stack.engine->stats().free_blocks, stack.engine->stats().total_blocks);
}

// Ends in the thread of the engine, with what the clients saw on standard error.
void FailACheckUnderLoad() {
  SetLogLevel(LogLevel::kOff);  // its lines would stand among these
  Stack stack(/*num_blocks=*/1024);
  LastWords last_words(*stack.server);
  HttpClient streamed(stack.port()), whole(stack.port()), later(stack.port());
  streamed.SendRequest("POST", "/v1/completions", Body(1, 2000, true));
  whole.SendRequest("POST", "/v1/completions", Body(2, 2000, false));
  ASSERT_TRUE(stack.WaitUntilRunning(2));
  streamed.AwaitHead();
  stack.gate.blocks = 4;
  for (const bool stream : {true, false}) {
    const Answer answer = ReadAnswer(stream ? streamed : whole, stream);
    std::fprintf(stderr, "SAW %d '%s' '%s' %d\n", answer.status, answer.reason.c_str(), answer.error.c_str(),
                 answer.done);
  }
  for (const char* path : {"/health", "/ready"})
    std::fprintf(stderr, "SAW %d\n", Get(stack.port(), path).status);
  later.SendRequest("POST", "/v1/completions", Body(3, 5, false));
  std::fprintf(stderr, "SAW %d\n", later.Read().status);
  stack.server->Join();
  last_words.ServerHasStopped();
}

TEST(FaultsDeathTest, AFailedCheckInTheEngineTellsEveryClientBeforeTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string error =
      "'the engine has stopped: check failed at [^ ]+faults_test.cc:[0-9]+: blocks.load.. == 3 .4 vs 3.'";
  EXPECT_EXIT(FailACheckUnderLoad(), ::testing::KilledBySignal(SIGABRT),
              "SAW 200 '' " + error + " 1\nSAW 500 '' " + error + " 1\nSAW 503\nSAW 503\nSAW 503\n");
}

}  // namespace
}  // namespace attest::testing
