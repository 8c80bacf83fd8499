// A whole server on a free port over the fake engine and tokenizer. Test only.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/server.h"
#include "tests/support/fake_engine.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/http_client.h"

namespace attest::testing {

class ServerFixture : public ::testing::Test {
 protected:
  static constexpr std::string_view kTemplate =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}";

  ServerFixture() {
    engine_options_.max_model_len = 256;
    engine_options_.num_blocks = 81;
    engine_options_.vocab_size = 300;
    options_.http.port = 0;
    options_.http.log_requests = false;
    options_.served_model_names = {"test-model", "org/alias"};
  }

  // What every sequence says, as tokens of `words` where they match.
  void Says(std::vector<std::string> words, std::string_view text) {
    tokenizer_ = std::make_unique<FakeTokenizer>(std::move(words));
    const auto ids = tokenizer_->Encode(text, {.add_special_tokens = false});
    script_ = [ids](const Request&) { return ids; };
  }

  void StartServer(bool with_template = true) {
    metrics_ =
        std::make_unique<ServerMetrics>(MetricsOptions{.prefix = metrics_prefix_,
                                                       .model_name = "test-model",
                                                       .max_model_len = engine_options_.max_model_len,
                                                       .block_size = engine_options_.block_size,
                                                       .num_blocks = engine_options_.num_blocks,
                                                       .attention_kernels = {{"decode", "cpu_general"}}});
    engine_ = std::make_unique<FakeEngine>(engine_options_, script_, step_time_);
    auto chat_template = ChatTemplate::Parse(kTemplate);
    ASSERT_TRUE(chat_template.has_value()) << chat_template.error().message;
    chat_template_ = std::make_unique<ChatTemplate>(std::move(*chat_template));
    auto server = Server::Start(options_, {.engine = *engine_,
                                           .tokenizer = *tokenizer_,
                                           .chat_template = with_template ? chat_template_.get() : nullptr,
                                           .metrics = *metrics_,
                                           .eos_ids = {FakeTokenizer::kEos},
                                           .default_sampling = default_sampling_,
                                           .model_root = "/models/test",
                                           .version = "1.2.3",
                                           .tokenizer_config_json = tokenizer_config_json_,
                                           .chat_template_text = std::string(kTemplate),
                                           .sentinel = sentinel_});
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
  }

  [[nodiscard]] uint16_t port() const { return server_->port(); }
  HttpReply Complete(std::string_view body) { return Post(port(), "/v1/completions", body); }
  HttpReply Chat(std::string_view body) { return Post(port(), "/v1/chat/completions", body); }

  static nlohmann::json Json(const HttpReply& reply) {
    auto parsed = nlohmann::json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(parsed.is_discarded()) << reply.body;
    return parsed;
  }
  // The events of a stream, checked against the framing rules; the last must be [DONE], which is left out.
  static std::vector<nlohmann::json> Events(const HttpReply& reply) {
    EXPECT_TRUE(reply.complete);
    std::vector<nlohmann::json> events;
    std::string_view rest = reply.body;
    bool done = false;
    while (!rest.empty()) {
      const size_t end = rest.find("\n\n");
      if (end == std::string_view::npos) {
        ADD_FAILURE() << "an event without its empty line: " << rest;
        break;
      }
      std::string_view event = rest.substr(0, end);
      rest.remove_prefix(end + 2);
      if (event.starts_with(":")) continue;
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      EXPECT_FALSE(done) << "after [DONE]: " << event;
      event.remove_prefix(6);
      done = event == "[DONE]";
      if (done) continue;
      EXPECT_EQ(event.find_first_of("\r\n"), std::string_view::npos);
      events.push_back(nlohmann::json::parse(event, nullptr, false));
      EXPECT_FALSE(events.back().is_discarded()) << event;
    }
    EXPECT_TRUE(done) << "no [DONE]";
    return events;
  }
  // The joined text of one choice of a stream.
  static std::string Joined(const std::vector<nlohmann::json>& events, int index = 0) {
    std::string text;
    for (const auto& event : events) {
      for (const auto& choice : event["choices"]) {
        if (choice["index"] != index) continue;
        text += choice.contains("delta") ? choice["delta"].value("content", "") : choice.value("text", "");
      }
    }
    return text;
  }

  EngineOptions engine_options_;
  ServerOptions options_;
  std::string tokenizer_config_json_;
  const Sentinel* sentinel_ = nullptr;
  std::string metrics_prefix_ = "attest:";
  std::chrono::microseconds step_time_{0};
  SamplingParams default_sampling_;
  std::unique_ptr<FakeTokenizer> tokenizer_ = std::make_unique<FakeTokenizer>();
  FakeEngine::Script script_ = [](const Request&) { return std::vector<int32_t>{'a', 'b', 'c'}; };
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<Server> server_;
};

}  // namespace attest::testing
