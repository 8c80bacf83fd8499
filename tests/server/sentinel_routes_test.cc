// What clients and scrapers see of the sentinel: health details, metrics, and texts that begin anew.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "attention/sentinel.h"
#include "server/health.h"
#include "server/http_get.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class SentinelRoutes : public ServerFixture {
 protected:
  Sentinel watcher_{{.rate = 0.25}};
};

TEST_F(SentinelRoutes, HealthTellsTheRateAndWhatIsQuarantined) {
  sentinel_ = &watcher_;
  StartServer();
  const HttpReply good = Get(port(), "/health");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(Json(good)["status"], "ok");
  EXPECT_EQ(Json(good)["attention"]["verify_rate"], 0.25);
  EXPECT_EQ(Json(good)["attention"]["on_mismatch"], "quarantine");
  EXPECT_EQ(Json(good)["attention"]["quarantined"], json::array());

  watcher_.NoteQuarantined("attention_x");
  const HttpReply degraded = Get(port(), "/health");
  EXPECT_EQ(degraded.status, 200);  // it serves, with another kernel
  EXPECT_EQ(Json(degraded)["status"], "degraded");
  EXPECT_EQ(Json(degraded)["attention"]["quarantined"], json::array({"attention_x"}));
  EXPECT_EQ(Get(port(), "/ready").status, 200);

  engine_->SetHealthy(false);
  const HttpReply failing = Get(port(), "/health");
  EXPECT_EQ(failing.status, 503);
  EXPECT_EQ(Json(failing)["status"], "failing");
}

TEST(HealthJson, SaysWhyTheEngineHasStoppedAndHasNoInfinity) {
  EngineStats engine;
  engine.healthy = false;
  engine.stopped_because = "kernel \"x\" is wrong";
  SentinelStats sentinel{.rate = 1,
                         .on_mismatch = OnMismatch::kStop,
                         .counts = {},
                         .quarantined = {},
                         .check_seconds = 0,
                         .cases = {}};
  sentinel.counts.push_back({.kernel = "k",
                             .phase = AttentionPhase::kExtend,
                             .rows_checked = 5,
                             .mismatches = 2,
                             .worst_error = 0.5,
                             .worst_ratio = std::numeric_limits<double>::infinity()});
  const json body = json::parse(HealthJson(engine, sentinel));
  EXPECT_EQ(body["status"], "stopped");
  EXPECT_EQ(body["reason"], "kernel \"x\" is wrong");
  EXPECT_EQ(body["attention"]["rows_checked"], 5);
  EXPECT_EQ(body["attention"]["mismatches"], 2);
  EXPECT_EQ(body["attention"]["kernels"][0]["phase"], "extend");
  EXPECT_EQ(body["attention"]["kernels"][0]["worst_error"], 0.5);
  EXPECT_TRUE(body["attention"]["kernels"][0]["worst_error_ratio"].is_null());
}

TEST_F(SentinelRoutes, MetricsCountWhatWasCheckedAndEachFamilyIsDeclaredOnce) {
  sentinel_ = &watcher_;
  watcher_.NoteQuarantined("attention_x");
  watcher_.NoteQuarantined("attention_y");
  StartServer();
  const std::string text = Get(port(), "/metrics").body;
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("attest:attention_verify_rate{engine=\"0\",model_name=\"test-model\"} 0.25")) << text;
  EXPECT_TRUE(
      has("attest:attention_kernel_quarantined{engine=\"0\",model_name=\"test-model\",kernel=\"attention_x\"}"
          " 1"));
  EXPECT_TRUE(has("kernel=\"attention_y\"} 1"));
  EXPECT_TRUE(
      has("attest:attention_cases_total{engine=\"0\",model_name=\"test-model\",result=\"failed\"} 0"));
  EXPECT_TRUE(has("attest:engine_discarded_steps_total"));
  // Of a kernel that was chosen and has computed nothing: an alert on an increase needs the zero before it.
  EXPECT_TRUE(
      has("attest:attention_mismatches_total{engine=\"0\",model_name=\"test-model\",kernel=\"cpu_general\","
          "phase=\"decode\"} 0\n"))
      << text;
  std::map<std::string, int> declared;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) ++declared[line];
  }
  for (const auto& [line, count] : declared) EXPECT_EQ(count, 1) << line;
}

TEST_F(SentinelRoutes, AnAnswerThatDoesNotStreamBeginsAnewWhenItsTokensAreTakenBack) {
  step_time_ = std::chrono::milliseconds(3);
  StartServer();
  std::thread retracting([this] {
    // Twice, in the middle of the answer.
    for (const int64_t after : {5, 20}) {
      while (engine_->stats().generation_tokens < after)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(engine_->RetractAll(), 1);
    }
  });
  const json body = Json(Complete(R"({"prompt":"hi","max_tokens":40,"n":1})"));
  retracting.join();
  std::string expected;
  for (int i = 0; i < 40; ++i) expected += "abc"[i % 3];
  EXPECT_EQ(body["choices"][0]["text"], expected);
  EXPECT_EQ(body["usage"]["completion_tokens"], 40);
  EXPECT_GT(engine_->stats().generation_tokens, 40);
}

TEST_F(SentinelRoutes, AnAnswerThatStreamsKeepsWhatItHasShown) {
  step_time_ = std::chrono::milliseconds(3);
  StartServer();
  std::thread retracting([this] {
    while (engine_->stats().generation_tokens < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(engine_->RetractAll(), 0);
  });
  std::string text;
  for (const json& event : Events(Complete(R"({"prompt":"hi","max_tokens":12,"stream":true})"))) {
    text += event["choices"][0]["text"].get<std::string>();
  }
  retracting.join();
  EXPECT_EQ(text, "abcabcabcabc");
}

TEST_F(SentinelRoutes, HttpGetReadsAnAnswerAndSaysWhatIsWrongOtherwise) {
  StartServer();
  const std::string base = "http://127.0.0.1:" + std::to_string(port());
  const auto reply = HttpGet(base + "/version");
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(json::parse(reply->body)["version"], "1.2.3");
  EXPECT_EQ(HttpGet(base + "/nope")->status, 404);
  EXPECT_EQ(HttpGet("http://127.0.0.1:1/x").error().code, ErrorCode::kUnavailable);
  for (const char* bad : {"", "127.0.0.1:8000", "https://x", "http://", "http://x:", "http://x:port",
                          "http://[::1", "http://x/a b", "http://x:123456"}) {
    const auto refused = HttpGet(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace attest::testing
