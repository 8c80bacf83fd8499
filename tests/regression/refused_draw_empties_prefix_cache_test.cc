// A request whose own fields left no token to draw took the blocks of its prompt out of the prefix cache, as
// if they were wrong: a client could make every other one compute a shared prompt again.
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

struct End {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<FinishReason> reason;
};

class EndSink final : public TokenSink {
 public:
  explicit EndSink(End& end) : end_(end) {}
  void OnToken(int32_t /*token*/) override {}
  void OnFinish(FinishReason reason, std::optional<int32_t> /*stop_token*/, const Error* /*error*/) override {
    const std::lock_guard lock(end_.mutex);
    end_.reason = reason;
    end_.changed.notify_all();
  }

 private:
  End& end_;
};

FinishReason Serve(Engine& engine, const SamplingParams& sampling) {
  End end;
  std::vector<int32_t> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7 % kToyVocab);
  const auto id = engine.Submit(
      {.prompt = prompt, .sampling = sampling, .eos_ids = {}, .sink = std::make_unique<EndSink>(end)});
  EXPECT_TRUE(id) << id.error().message;
  std::unique_lock lock(end.mutex);
  end.changed.wait(lock, [&] { return end.reason.has_value(); });
  return *end.reason;
}

TEST(RefusedDraw, LeavesThePrefixOfOthersInTheCache) {
  const EngineOptions options{
      .block_size = 16, .num_blocks = 64, .max_model_len = 200, .vocab_size = kToyVocab};
  const auto engine = *Engine::Start(
      options,
      std::make_unique<ToyRunner>(ToyOptions{.num_blocks = 64, .block_size = 16, .vocab_size = kToyVocab}));
  EXPECT_EQ(Serve(*engine, {.max_tokens = 1}), FinishReason::kLength);
  EXPECT_EQ(Serve(*engine, {.allowed_token_ids = {5}, .bad_words = {{5}}, .max_tokens = 1}),
            FinishReason::kError);
  const int64_t before = engine->stats().prefix_cache_hits;
  EXPECT_EQ(before, 96);
  EXPECT_EQ(Serve(*engine, {.max_tokens = 1}), FinishReason::kLength);
  EXPECT_EQ(engine->stats().prefix_cache_hits, before + 96);
}

}  // namespace
}  // namespace attest::testing
