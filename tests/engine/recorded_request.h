// What an engine gave to one request, and the logits it should have had: those of all rows of its tokens in
// one step of the toy model. Test only.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {

// What one request got.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs, prompt;
  int prompt_events = 0;
  std::optional<int32_t> stop_token;
  std::optional<FinishReason> reason;
  std::string error;

  void Wait() {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [this] { return reason.has_value(); }));
  }
};

class RecordSink final : public TokenSink {
 public:
  explicit RecordSink(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  void OnToken(int32_t token) override {
    const std::lock_guard lock(record_->mutex);
    record_->tokens.push_back(token);
  }
  void OnLogprobs(TokenLogprobs logprobs) override {
    const std::lock_guard lock(record_->mutex);
    EXPECT_EQ(record_->tokens.size(), record_->logprobs.size());  // right before its token
    record_->logprobs.push_back(std::move(logprobs));
  }
  void OnPromptLogprobs(std::vector<TokenLogprobs> logprobs) override {
    const std::lock_guard lock(record_->mutex);
    EXPECT_TRUE(record_->tokens.empty() && record_->logprobs.empty());
    ++record_->prompt_events;
    record_->prompt = std::move(logprobs);
  }
  void OnFinish(FinishReason reason, std::optional<int32_t> stop_token, const Error* error) override {
    const std::lock_guard lock(record_->mutex);
    record_->stop_token = stop_token;
    if (error != nullptr) record_->error = error->message;
    record_->reason = reason;
    record_->changed.notify_all();
  }

 private:
  std::shared_ptr<Record> record_;
};

// What decides how requests share their steps.
struct EngineLoad {
  int32_t budget, max_num_seqs;
  int64_t num_blocks;
};

// No step runs before `open`: requests that are submitted until then share their steps, however slowly they
// come. Outlives the engine.
inline std::unique_ptr<Engine> StartToyEngine(const EngineLoad& load, const std::atomic<bool>& open,
                                              ToyLog* log = nullptr) {
  const EngineOptions options{.block_size = 8,
                              .num_blocks = load.num_blocks,
                              .max_model_len = 200,
                              .max_num_seqs = load.max_num_seqs,
                              .max_num_batched_tokens = load.budget,
                              .max_queue = 100,
                              .long_prefill_tokens = 0,
                              .vocab_size = kToyVocab};
  const auto wait = [&open](const StepBatch&) -> Status {
    while (!open) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return {};
  };
  return *Engine::Start(options, std::make_unique<ToyRunner>(ToyOptions{.num_blocks = load.num_blocks,
                                                                        .block_size = 8,
                                                                        .vocab_size = kToyVocab,
                                                                        .log = log,
                                                                        .before_run = wait}));
}

inline std::vector<int32_t> RandomPrompt(uint32_t seed, size_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % kToyVocab);
  return prompt;
}

// Logits of every row of `tokens`, from one step that computes all of them.
inline std::vector<std::vector<float>> AllRows(const std::vector<int32_t>& tokens) {
  constexpr int kBlock = 8;
  const auto length = static_cast<int32_t>(tokens.size());
  StepBatch batch;
  batch.tokens = tokens;
  batch.q_begin = *CuSeqlens::FromLengths(std::vector<int32_t>{length});
  batch.kv_len = {length};
  batch.block_ids_per_seq = (length + kBlock - 1) / kBlock;
  for (int32_t i = 0; i < batch.block_ids_per_seq; ++i) batch.groups[0].block_ids.push_back(i + 1);
  for (int32_t t = 0; t < length; ++t) {
    batch.positions.push_back(t);
    batch.groups[0].slots.push_back(kBlock + t);
    batch.logit_rows.push_back(t);
  }
  ToyRunner runner({.num_blocks = 64, .block_size = kBlock, .vocab_size = kToyVocab});
  std::vector<float> flat(tokens.size() * kToyVocab);
  EXPECT_TRUE(runner.Run(batch, View<float, 2>::Dense(flat.data(), {length, kToyVocab})));
  std::vector<std::vector<float>> rows;
  for (size_t t = 0; t < tokens.size(); ++t) {
    rows.emplace_back(flat.begin() + static_cast<int64_t>(t * kToyVocab),
                      flat.begin() + static_cast<int64_t>((t + 1) * kToyVocab));
  }
  return rows;
}

}  // namespace attest::testing
