// A whole server on a free port over the real engine and a model whose next token depends on every KV slot it
// reads. Test only.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "server/server.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/http_client.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {

class ToyServerFixture : public ::testing::Test {
 protected:
  ToyServerFixture() {
    options_ = {.block_size = 16,
                .num_blocks = 200,
                .max_model_len = 512,
                .max_num_seqs = 64,
                .max_num_batched_tokens = 256,
                .vocab_size = 258};
  }
  ~ToyServerFixture() override { SetLogLevel(LogLevel::kInfo); }

  void StartServer(std::unique_ptr<StepRunner> runner = nullptr) {
    if (runner == nullptr) {
      runner = std::make_unique<ToyRunner>(ToyOptions{.num_blocks = options_.num_blocks,
                                                      .block_size = options_.block_size,
                                                      .vocab_size = options_.vocab_size,
                                                      .log = &log_,
                                                      .before_run = before_run_});
    }
    metrics_ = std::make_unique<ServerMetrics>(MetricsOptions{.model_name = "m",
                                                              .max_model_len = 512,
                                                              .block_size = 16,
                                                              .num_blocks = 200,
                                                              .attention_kernels = {}});
    auto engine = Engine::Start(options_, std::move(runner), metrics_.get());
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    ServerOptions server;
    server.http.port = 0;
    server.http.log_requests = false;
    server.served_model_names = {"m"};
    server.dev_endpoints = dev_endpoints_;
    auto started = Server::Start(server, {.engine = *engine_,
                                          .tokenizer = tokenizer_,
                                          .metrics = *metrics_,
                                          .eos_ids = {FakeTokenizer::kEos},
                                          .default_sampling = {},
                                          .model_root = "/m",
                                          .version = "1"});
    ASSERT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
  }
  nlohmann::json Complete(const nlohmann::json& body) {
    const HttpReply reply = Post(server_->port(), "/v1/completions", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return nlohmann::json::parse(reply.body, nullptr, false);
  }
  int Status(const std::string& body) { return Post(server_->port(), "/v1/completions", body).status; }
  [[nodiscard]] bool AllBlocksComeBack() const {
    for (int i = 0; i < 30000 && engine_->stats().free_blocks != engine_->stats().total_blocks; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return engine_->stats().free_blocks == engine_->stats().total_blocks;
  }

  EngineOptions options_;
  ToyLog log_;
  std::function<attest::Status(const StepBatch&)> before_run_;
  bool dev_endpoints_ = false;
  FakeTokenizer tokenizer_{{}, /*adds_bos=*/false};
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
};

inline std::vector<std::string> Texts(const nlohmann::json& answer) {
  std::vector<std::string> texts;
  for (const nlohmann::json& choice : answer["choices"]) texts.push_back(choice["text"]);
  return texts;
}

}  // namespace attest::testing
