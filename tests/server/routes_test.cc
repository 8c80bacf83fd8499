// Everything but generation: models, health, keys, unknown paths, drain and stop.
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

class Routes : public ServerFixture {};

TEST_F(Routes, ListsTheServedModels) {
  StartServer();
  const json body = Json(Get(port(), "/v1/models"));
  EXPECT_EQ(body["object"], "list");
  ASSERT_EQ(body["data"].size(), 2u);
  const json& model = body["data"][0];
  EXPECT_EQ(model["id"], "test-model");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["root"], "/models/test");
  EXPECT_TRUE(model["parent"].is_null());
  EXPECT_EQ(model["max_model_len"], 256);
  EXPECT_TRUE(model["created"].is_number_integer());
  EXPECT_TRUE(model["owned_by"].is_string());
  EXPECT_TRUE(model["permission"].is_array());
}

TEST_F(Routes, FindsAModelByItsEncodedName) {
  StartServer();
  EXPECT_EQ(Json(Get(port(), "/v1/models/org%2Falias"))["id"], "org/alias");
  EXPECT_EQ(Json(Get(port(), "/v1/models/org/alias"))["id"], "org/alias");
  const HttpReply missing = Get(port(), "/v1/models/nope");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(Json(missing)["error"]["param"], "model");
  EXPECT_EQ(Post(port(), "/v1/models/test-model", "{}").status, 405);
}

TEST_F(Routes, TellsHealthReadinessVersionAndLoad) {
  StartServer();
  const HttpReply health = Get(port(), "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "");
  EXPECT_EQ(Get(port(), "/ready").status, 200);
  EXPECT_EQ(Json(Get(port(), "/version")), json({{"version", "1.2.3"}}));
  EXPECT_EQ(Json(Get(port(), "/load"))["server_load"], 0);
  engine_->SetHealthy(false);
  EXPECT_EQ(Get(port(), "/health").status, 503);
  EXPECT_EQ(Get(port(), "/ready").status, 503);
}

TEST_F(Routes, LoadCountsRequestsUnderWay) {
  StartServer();
  engine_->Pause(true);
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","n":3,"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(Json(Get(port(), "/load"))["server_load"], 1);
}

TEST_F(Routes, UnknownPathsAre404AndWrongMethods405) {
  StartServer();
  const HttpReply missing = Get(port(), "/v1/nope?x=1");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(Json(missing)["error"]["type"], "NotFoundError");
  const HttpReply wrong = Get(port(), "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(Json(wrong)["error"]["code"], 405);
  EXPECT_EQ(Post(port(), "/health", "{}").headers.at("allow"), "GET, HEAD");
}

TEST_F(Routes, ThePrefixCacheIsResetOnlyWhereDevEndpointsAreOn) {
  StartServer();
  EXPECT_EQ(Post(port(), "/reset_prefix_cache", "").status, 404);
}

TEST_F(Routes, ResetOfThePrefixCacheTellsWhetherItWorked) {
  options_.dev_endpoints = true;
  StartServer();
  const HttpReply idle = Post(port(), "/reset_prefix_cache", "");
  EXPECT_EQ(idle.status, 200);
  EXPECT_EQ(idle.body, R"({"success":true})");
  EXPECT_EQ(Get(port(), "/reset_prefix_cache").status, 405);
  engine_->Pause(true);
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(Post(port(), "/reset_prefix_cache", "").body, R"({"success":false})");
}

TEST_F(Routes, ResetOfThePrefixCacheWantsTheKey) {
  options_.dev_endpoints = true;
  options_.api_keys = {"secret"};
  StartServer();
  EXPECT_EQ(Post(port(), "/reset_prefix_cache", "").status, 401);
}

TEST_F(Routes, MetricsShowThePrefixCache) {
  StartServer();
  const std::string text = Get(port(), "/metrics").body;
  const std::string labels = R"({engine="0",model_name="test-model"} )";
  for (const char* line :
       {"prefix_cache_queries_total,33", "prefix_cache_hits_total,22", "prompt_tokens_cached_total,11"}) {
    const std::string words = line;
    const size_t comma = words.find(',');
    EXPECT_NE(text.find("attest:" + words.substr(0, comma) + labels + words.substr(comma + 1)),
              std::string::npos)
        << line;
  }
}

TEST_F(Routes, HeadHasTheHeadersOfGetAndNoBody) {
  StartServer();
  HttpClient client(port());
  client.SendRequest("HEAD", "/v1/models");
  const HttpReply head = client.Read(/*is_head=*/true);
  EXPECT_EQ(head.status, 200);
  client.SendRequest("GET", "/v1/models");  // nothing of a body precedes the next answer
  const HttpReply get = client.Read();
  EXPECT_EQ(get.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), std::to_string(get.body.size()));
}

TEST_F(Routes, RequestIdsAreEchoedWhenSaneAndMadeOtherwise) {
  StartServer();
  EXPECT_EQ(Get(port(), "/health", "X-Request-ID: abc-1\r\n").headers.at("x-request-id"), "abc-1");
  const std::string made = Get(port(), "/health", "X-Request-ID: a b\r\n").headers.at("x-request-id");
  EXPECT_EQ(made.size(), 24u);
  EXPECT_NE(made, Get(port(), "/nope").headers.at("x-request-id"));
}

TEST_F(Routes, KeysGuardOnlyV1) {
  options_.api_keys = {"secret", "other"};
  StartServer();
  for (const char* header : {"", "Authorization: Bearer \r\n", "Authorization: Bearer secre\r\n",
                             "Authorization: Bearer secretx\r\n", "Authorization: Basic secret\r\n"}) {
    const HttpReply reply = Get(port(), "/v1/models", header);
    EXPECT_EQ(reply.status, 401) << header;
    EXPECT_EQ(Json(reply)["error"]["type"], "AuthenticationError");
    EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(Get(port(), "/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Get(port(), "/v1/models", "authorization: bearer other\r\n").status, 200);
  EXPECT_EQ(Get(port(), "/health").status, 200);
  EXPECT_EQ(Post(port(), "/v1/completions", R"({"prompt":"a"})").status, 401);
}

TEST_F(Routes, AnEmptyBearerIsAcceptedWithoutKeys) {
  StartServer();
  EXPECT_EQ(Post(port(), "/v1/completions", R"({"prompt":"a"})", "Authorization: Bearer \r\n").status, 200);
}

// Only the first address of a name was bound, so that clients of localhost found ::1 or 127.0.0.1 closed.
TEST_F(Routes, EveryAddressOfTheHostIsServed) {
  options_.http.host = "localhost";
  StartServer();
  const addrinfo hints{.ai_flags = 0,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* found = nullptr;
  ASSERT_EQ(::getaddrinfo("localhost", std::to_string(port()).c_str(), &hints, &found), 0);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int lone = ::socket(at->ai_family, SOCK_STREAM, 0);
    if (lone < 0) continue;  // no IPv6 here
    // Its address may be none of this machine's; else somebody must listen.
    const bool is_refused = ::connect(lone, at->ai_addr, at->ai_addrlen) != 0 && errno == ECONNREFUSED;
    EXPECT_FALSE(is_refused) << "family " << at->ai_family;
    ::close(lone);
  }
  ::freeaddrinfo(found);
  EXPECT_EQ(Get(port(), "/health").status, 200);
}

TEST_F(Routes, ABusyPortIsAnErrorThatNamesIt) {
  StartServer();
  ServerOptions second = options_;
  second.http.port = port();
  const auto failed = Server::Start(second, {.engine = *engine_,
                                             .tokenizer = *tokenizer_,
                                             .metrics = *metrics_,
                                             .eos_ids = {},
                                             .default_sampling = {},
                                             .model_root = {},
                                             .version = {}});
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_NE(failed.error().message.find("127.0.0.1:" + std::to_string(port())), std::string::npos)
      << failed.error().message;
}

TEST_F(Routes, MetricsHoldTheSeriesThatOthersRead) {
  StartServer();
  Complete(R"({"prompt":"hi","max_tokens":4})");
  Complete(R"({"prompt":"hi","max_tokens":0})");
  const HttpReply reply = Get(port(), "/metrics");
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line : {
           "# TYPE attest:num_requests_running gauge",
           "attest:kv_cache_usage_perc{engine=\"0\",model_name=\"test-model\"} 0.25",
           "attest:generation_tokens_total{engine=\"0\",model_name=\"test-model\"} 4",
           "attest:request_success_total{engine=\"0\",model_name=\"test-model\",finished_reason=\"length\"} "
           "1",
           "attest:request_success_total{engine=\"0\",model_name=\"test-model\",finished_reason=\"abort\"} 0",
           "attest:http_responses_total{engine=\"0\",model_name=\"test-model\",code=\"400\"} 1",
           "block_size=\"16\",num_gpu_blocks=\"81\"} 1",
           "# TYPE attest:time_to_first_token_seconds histogram",
           "# TYPE attest:iteration_tokens_total histogram",
           "attest:request_params_n_sum{engine=\"0\",model_name=\"test-model\"} 1",
           "kernel=\"cpu_general\",phase=\"decode\"} 1",
       }) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << "\n" << reply.body;
  }
}

// A storm of clients that leave would look like a server that has become fast.
TEST_F(Routes, HistogramsHoldNoSequenceThatDidNotEndByItself) {
  StartServer();
  const auto now = std::chrono::steady_clock::now();
  const auto count = [&](const std::string& name) {
    const std::string text = Get(port(), "/metrics").body;
    const size_t at = text.find("attest:" + name + "_count{");
    const size_t value = text.find("} ", at) + 2;
    return text.substr(value, text.find('\n', value) - value);
  };
  RequestRecord record{.prompt_tokens = 3,
                       .generation_tokens = 2,
                       .max_tokens = 9,
                       .arrival = now,
                       .first_scheduled = now,
                       .first_token = now,
                       .last_token = now,
                       .finish = now};
  for (const auto& [reason, expected] : {std::pair(FinishReason::kAbort, "0"),
                                         {FinishReason::kError, "0"},
                                         {FinishReason::kStop, "1"},
                                         {FinishReason::kLength, "2"}}) {
    record.reason = reason;
    metrics_->OnRequestFinished(record);
    for (const char* name :
         {"e2e_request_latency_seconds", "request_queue_time_seconds", "request_prompt_tokens",
          "request_inference_time_seconds", "request_params_max_tokens"})
      EXPECT_EQ(count(name), expected) << name;
  }
}

TEST_F(Routes, WhatAlertsLookAtIsThereBeforeItHappens) {
  StartServer();
  const std::string text = Get(port(), "/metrics").body;
  for (const int code : {500, 503}) {
    const std::string line = "attest:http_responses_total{engine=\"0\",model_name=\"test-model\",code=\"" +
                             std::to_string(code) + "\"} 0\n";
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  for (const int code : {400, 408, 413, 431, 503}) {
    const std::string line = "attest:http_refused_total{engine=\"0\",model_name=\"test-model\",code=\"" +
                             std::to_string(code) + "\"} 0\n";
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST_F(Routes, MetricsCanTakeAnotherServersNames) {
  metrics_prefix_ = "vllm:";
  StartServer();
  const std::string text = Get(port(), "/metrics").body;
  EXPECT_NE(text.find("\nvllm:num_requests_waiting{"), std::string::npos);
  EXPECT_EQ(text.find("attest:"), std::string::npos);
}

TEST_F(Routes, DrainLetsWhatRunsFinishAndRefusesTheRest) {
  step_time_ = milliseconds(5);
  StartServer();
  HttpClient running(port());
  running.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":60,"stream":true})");
  ASSERT_EQ(running.ReadHead().status, 200);
  HttpClient idle(port());
  server_->Drain();
  const HttpReply refused = Complete(R"({"prompt":"hi"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Get(port(), "/ready").status, 503);
  EXPECT_EQ(Get(port(), "/health").status, 200);
  std::string text;
  while (const auto chunk = running.NextChunk()) {
    if (chunk->empty()) break;
    text += *chunk;
  }
  EXPECT_NE(text.find("data: [DONE]\n\n"), std::string::npos);
  server_->Join();
  EXPECT_EQ(engine_->finished(FinishReason::kLength), 1);
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_FALSE(HttpClient(port()).connected());
}

TEST_F(Routes, DrainOfAnIdleServerEndsAtOnce) {
  StartServer();
  HttpClient idle(port());
  server_->Drain();
  server_->Join();
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(Routes, StopAbortsWhatRuns) {
  step_time_ = milliseconds(2);
  options_.http.log_requests = true;
  ::testing::internal::CaptureStderr();
  StartServer();
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":250,"n":4,"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  server_->Stop();
  server_->Join();
  EXPECT_TRUE(engine_->WaitUntilIdle());
  EXPECT_EQ(engine_->finished(FinishReason::kAbort), 4);
  server_.reset();
  // And does not say that the client did it.
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("POST /v1/completions closed because the server stopped"), std::string::npos) << log;
}

}  // namespace
}  // namespace attest::testing
