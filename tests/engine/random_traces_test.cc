// The property of the whole engine, in random traces: what a request gets depends on nothing but the request.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "tests/engine/sequential_engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

// Now and then a run fails after it has written, and what it wrote is wrong.
class HalfDone final : public StepRunner {
 public:
  HalfDone(const ToyOptions& toy, std::mt19937& random) : toy_(toy), random_(random) {}
  Status Run(const StepBatch& batch, View<float, 2> logits) override {
    return random_() % 60 != 0 ? toy_.Run(batch, logits) : FailHalfWay(toy_, batch, logits);
  }
  Status Logits(const StepBatch& batch, std::span<const int32_t> rows, View<float, 2> logits) override {
    if (random_() % 60 == 0) return Fail(ErrorCode::kInternal, "failed while a prompt was scored");
    return toy_.Logits(batch, rows, logits);
  }

 private:
  ToyRunner toy_;
  std::mt19937& random_;
};

RequestSpec RandomSpec(std::mt19937& random, int32_t max_total) {
  const auto length = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(max_total / 2));
  const auto room = static_cast<uint32_t>(max_total - length);
  RequestSpec spec = Spec(Prompt(length, random()), static_cast<int32_t>(1 + random() % room));
  SamplingParams& sampling = spec.sampling;
  if (random() % 2 == 0) sampling.temperature = 0.5f + static_cast<float>(random() % 100) / 50.0f;
  if (random() % 3 == 0) sampling.top_k = static_cast<int32_t>(1 + random() % 20);
  if (random() % 3 == 0) sampling.top_p = 0.3f + static_cast<float>(random() % 70) / 100.0f;
  if (random() % 4 == 0) sampling.min_p = 0.05f;
  sampling.seed = static_cast<int64_t>(random());
  for (int i = 0; i < 3; ++i) spec.eos_ids.push_back(static_cast<int32_t>(random() % kToyVocab));
  if (random() % 4 == 0) sampling.stop_token_ids.push_back(static_cast<int32_t>(random() % kToyVocab));
  sampling.ignore_eos = random() % 4 == 0;
  sampling.min_tokens = static_cast<int32_t>(random() % static_cast<uint32_t>(sampling.max_tokens + 1)) / 3;
  return spec;
}

struct Met {
  int64_t preemptions = 0, stops = 0, aborts = 0, failures = 0, resets = 0, refused_resets = 0, hits = 0,
          scored = 0;
};

// What a request gets depends on nothing but the request. Prompts share beginnings with each other, runs
// fail, the cache is reset, priorities differ, blocks are short; the invariants of sequences, blocks and the
// cache are checked at every step (SequentialEngine).
void RunTrace(uint32_t round, const std::vector<KvWindow>& windows, Met& met) {
  constexpr int32_t kMaxTotal = 64;
  auto& [preemptions, stops, aborts, failures, resets, refused_resets, hits, scored] = met;
  {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    std::mt19937 random(1000 + round);
    const int block_size = std::array{1, 4, 8, 16, 32, 64, 128}[random() % 7];
    const int32_t budget = std::array{1, 2, 3, 8, 17, 64, 8192}[random() % 7];
    const int64_t one_seq =
        PeakBlocks({.windows = windows, .block_size = block_size, .max_step_tokens = budget}, kMaxTotal);
    // Between "one sequence barely fits" and "everything fits".
    const int64_t spare = static_cast<int64_t>(random() % static_cast<uint32_t>(3 * one_seq));
    const int64_t num_blocks = 1 + one_seq + (round % 5 == 0 ? 0 : spare);
    const EngineOptions options{
        .block_size = block_size,
        .num_blocks = num_blocks,
        .max_model_len = kMaxTotal,
        .max_num_seqs = static_cast<int32_t>(1 + random() % 12),
        .max_num_batched_tokens = budget,
        .max_queue = 4096,
        .long_prefill_tokens = static_cast<int32_t>(random() % 3 == 0 ? 1 + random() % 8 : 0),
        .vocab_size = kToyVocab,
        .kv_windows = windows,
        .prefix_caching = random() % 4 != 0,
        .policy = random() % 2 == 0 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs};
    HalfDone runner(
        {.num_blocks = num_blocks, .block_size = block_size, .vocab_size = kToyVocab, .windows = windows},
        random);
    SequentialEngine engine(options, runner);

    constexpr size_t kRequests = 14;
    std::vector<RequestSpec> specs;
    std::vector<Outcome> outcomes(kRequests);
    std::vector<Sequence*> live(kRequests, nullptr);
    const std::vector<int32_t> beginning = Prompt(kMaxTotal, round);
    for (size_t i = 0; i < kRequests; ++i) {
      specs.push_back(RandomSpec(random, kMaxTotal));
      if (random() % 3 != 0) {  // begins as others do
        std::vector<int32_t>& prompt = specs.back().prompt;
        const auto shared = 1 + random() % prompt.size();
        std::copy_n(beginning.begin(), shared, prompt.begin());
      }
      specs.back().priority = static_cast<int32_t>(random() % 3) - 1;
      if (random() % 6 == 0) specs.back().cache_salt = "other";
      SamplingParams& sampling = specs.back().sampling;
      if (random() % 4 == 0) sampling.prompt_logprobs = static_cast<int32_t>(random() % 4);
      if (random() % 4 == 0) sampling.logprobs = static_cast<int32_t>(random() % 4);
    }
    size_t next = 0;
    while (next < kRequests || !engine.scheduler().idle()) {
      while (next < kRequests && (random() % 3 == 0 || engine.scheduler().idle())) {
        live[next] = engine.Add(specs[next], &outcomes[next]);
        ++next;
      }
      if (random() % 40 == 0) {
        const size_t victim = random() % kRequests;
        if (live[victim] != nullptr && !outcomes[victim].reason) {
          engine.Abort(live[victim]);
          ++aborts;
        }
      }
      if (random() % 60 == 0 && engine.cache() != nullptr) {
        ++(engine.pool().num_used() == 0 ? resets : refused_resets);
        engine.ClearCache();  // also while blocks are in use
      }
      if (!engine.scheduler().idle()) engine.Step();
      ASSERT_LT(engine.steps(), 200000) << "someone starves";
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(engine.pool().num_free(), engine.pool().num_usable());
    preemptions += engine.scheduler().num_preemptions();
    hits += engine.scheduler().cache_hits();
    for (size_t i = 0; i < kRequests; ++i) {
      const Outcome alone = RunAlone(specs[i], windows);
      if (outcomes[i].reason == FinishReason::kAbort || outcomes[i].reason == FinishReason::kError) {
        failures += outcomes[i].reason == FinishReason::kError ? 1 : 0;
        ASSERT_LE(outcomes[i].tokens.size(), alone.tokens.size());
        EXPECT_TRUE(std::equal(outcomes[i].tokens.begin(), outcomes[i].tokens.end(), alone.tokens.begin()));
        ASSERT_LE(outcomes[i].logprobs.size(), alone.logprobs.size());
        EXPECT_TRUE(
            std::equal(outcomes[i].logprobs.begin(), outcomes[i].logprobs.end(), alone.logprobs.begin()));
        EXPECT_TRUE(outcomes[i].prompt.empty() || outcomes[i].prompt == alone.prompt);
      } else {
        EXPECT_EQ(outcomes[i], alone) << "request " << i;
        stops += alone.reason == FinishReason::kStop ? 1 : 0;
        scored += std::ssize(alone.prompt);
      }
    }
  }
}

// The property of the whole engine.
TEST(Scheduler, GivesEveryRequestTheTextItGetsAlone) {
  Met met;
  for (uint32_t round = 0; round < 140 && !HasFatalFailure(); ++round) RunTrace(round, {std::nullopt}, met);
  const auto& [preemptions, stops, aborts, failures, resets, refused_resets, hits, scored] = met;
  // The trace must have met what it is about.
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(stops, 100);
  EXPECT_GT(aborts, 20);
  EXPECT_GT(failures, 20);
  EXPECT_GT(hits, 500);
  EXPECT_GT(resets, 0);
  EXPECT_GT(refused_resets, 20);
  EXPECT_GT(scored, 1000);
}

// The same where blocks behind a window are given back while the sequence goes on, with one group of layers
// or two.
TEST(Scheduler, GivesEveryRequestTheTextItGetsAloneWithSlidingWindows) {
  for (const std::vector<KvWindow>& windows :
       {std::vector<KvWindow>{9}, {1}, {std::nullopt, 6}, {std::nullopt, 30}, {21, 5}}) {
    Met met;
    for (uint32_t round = 0; round < 50 && !HasFatalFailure(); ++round) RunTrace(round, windows, met);
    // A sequence that sees one token never holds more blocks than when it was admitted.
    EXPECT_GT(met.preemptions, windows == std::vector<KvWindow>{1} ? -1 : 20);
    EXPECT_GT(met.hits, 50);
  }
}

}  // namespace
}  // namespace attest::testing
