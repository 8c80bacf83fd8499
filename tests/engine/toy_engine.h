// An engine over the toy runner (tests/support/toy_runner.h), and what its requests got.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {

// What a request got; filled on the engine thread, read by the test.
class Mailbox {
 public:
  void OnPromptDone(int32_t cached_tokens) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(tokens_.empty() && !cached_);
    cached_ = cached_tokens;
  }
  void OnToken(int32_t token) {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(token);
    changed_.notify_all();
  }
  void OnFinish(FinishReason reason, std::optional<int32_t> stop_token, const Error* error) {
    const std::lock_guard lock(mutex_);
    ++finishes_;
    reason_ = reason;
    stop_token_ = stop_token;
    if (error != nullptr) error_ = *error;
    changed_.notify_all();
  }
  FinishReason Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [this] { return reason_.has_value(); }));
    return reason_.value_or(FinishReason::kError);
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return tokens_.size() >= count || reason_.has_value(); }));
  }
  [[nodiscard]] std::vector<int32_t> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  [[nodiscard]] bool finished() const {
    const std::lock_guard lock(mutex_);
    return reason_.has_value();
  }
  [[nodiscard]] int finishes() const {
    const std::lock_guard lock(mutex_);
    return finishes_;
  }
  [[nodiscard]] std::optional<int32_t> cached() const {
    const std::lock_guard lock(mutex_);
    return cached_;
  }
  [[nodiscard]] std::optional<int32_t> stop_token() const {
    const std::lock_guard lock(mutex_);
    return stop_token_;
  }
  [[nodiscard]] std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::optional<FinishReason> reason_;
  std::optional<int32_t> cached_, stop_token_;
  std::optional<Error> error_;
  int finishes_ = 0;
};

class MailSink final : public TokenSink {
 public:
  explicit MailSink(std::shared_ptr<Mailbox> box) : box_(std::move(box)) {}
  void OnPromptDone(int32_t cached_tokens) override { box_->OnPromptDone(cached_tokens); }
  void OnToken(int32_t token) override { box_->OnToken(token); }
  void OnFinish(FinishReason reason, std::optional<int32_t> stop_token, const Error* error) override {
    box_->OnFinish(reason, stop_token, error);
  }

 private:
  std::shared_ptr<Mailbox> box_;
};

struct Ticket {
  RequestId id = 0;
  std::shared_ptr<Mailbox> box;
};

inline EngineOptions SmallOptions() {
  return {.block_size = 8,
          .num_blocks = 64,
          .max_model_len = 200,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 64,
          .max_queue = 4096,
          .long_prefill_tokens = 0,
          .vocab_size = kToyVocab};
}

inline std::unique_ptr<Engine> StartToy(const EngineOptions& options, ToyOptions toy = {},
                                        EngineObserver* observer = nullptr) {
  toy.num_blocks = options.num_blocks;
  toy.block_size = options.block_size;
  toy.vocab_size = options.vocab_size;
  auto engine = Engine::Start(options, std::make_unique<ToyRunner>(toy), observer);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

inline Request MakeRequest(uint32_t seed, int32_t prompt_len, int32_t max_tokens) {
  std::mt19937 random(seed);
  Request request;
  for (int32_t i = 0; i < prompt_len; ++i)
    request.prompt.push_back(static_cast<int32_t>(random() % kToyVocab));
  request.sampling.temperature = seed % 2 == 0 ? 0.0f : 1.0f;
  request.sampling.seed = seed;
  request.sampling.max_tokens = max_tokens;
  return request;
}

inline Ticket MustSubmit(Engine& engine, Request request) {
  Ticket ticket{.id = 0, .box = std::make_shared<Mailbox>()};
  request.sink = std::make_unique<MailSink>(ticket.box);
  const auto id = engine.Submit(std::move(request));
  EXPECT_TRUE(id) << id.error().message;
  ticket.id = id.value_or(0);
  return ticket;
}

inline std::vector<int32_t> TextAlone(uint32_t seed, int32_t prompt_len, int32_t max_tokens) {
  const auto engine = StartToy(SmallOptions());
  const Ticket ticket = MustSubmit(*engine, MakeRequest(seed, prompt_len, max_tokens));
  ticket.box->Wait();
  return ticket.box->tokens();
}

// Holds the engine inside its `step`-th Run until released.
struct Gate {
  const int64_t step;
  std::atomic<int64_t> run{0};
  std::atomic<bool> open{false};
  std::function<Status(const StepBatch&)> Hook() {
    return [this](const StepBatch&) -> Status {
      if (++run == step) {
        while (!open) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      return {};
    };
  }
  void WaitUntilInside() const {
    while (run < step) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
};

}  // namespace attest::testing
