// Every token of requests with masks, biases and penalties, recomputed from its logits by the definition of
// docs/sampling.md: alone, in batches, with prompts in chunks and with preemptions.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "engine/sampler.h"
#include "tests/engine/recorded_request.h"
#include "tests/support/sanitizers.h"

namespace attest::testing {
namespace {

using Ids = std::vector<int32_t>;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

float Rounded(double value) { return static_cast<float>(value); }

// The definition, one id at a time.
std::vector<float> Changed(std::vector<float> row, const SamplingParams& p, const Ids& prompt,
                           const Ids& output, const Ids& banned) {
  for (int32_t id = 0; id < static_cast<int32_t>(row.size()); ++id) {
    float& x = row[static_cast<size_t>(id)];
    if (!p.allowed_token_ids.empty() && std::ranges::count(p.allowed_token_ids, id) == 0) x = kMinusInf;
    for (const Ids& word : p.bad_words) {
      const size_t head = word.size() - 1;
      const bool follows = output.size() >= head && std::equal(word.begin(), word.end() - 1,
                                                               output.end() - static_cast<int64_t>(head));
      if (follows && word.back() == id) x = kMinusInf;
    }
    if (std::ranges::count(banned, id) != 0) x = kMinusInf;
    for (const IdBias& bias : p.logit_bias) {
      if (bias.id == id) x = Rounded(double{x} + bias.bias);
    }
    const auto times = std::ranges::count(output, id);
    if (times == 0 && std::ranges::count(prompt, id) == 0) continue;
    double y = x > 0 ? x / double{p.repetition_penalty} : x * double{p.repetition_penalty};
    y -= double{p.frequency_penalty} * static_cast<double>(times);
    if (times > 0) y -= p.presence_penalty;
    x = Rounded(y);
  }
  return row;
}

int32_t Drawn(const std::vector<float>& row, const SamplingParams& p, int32_t position) {
  if (p.temperature < kGreedyTemperature) {
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
  int32_t best = -1;
  double best_score = kMinusInf;
  for (int32_t id = 0; id < static_cast<int32_t>(row.size()); ++id) {
    const double score =
        row[static_cast<size_t>(id)] / double{p.temperature} + GumbelNoise(*p.seed, position, id);
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

struct Wish {
  Ids prompt, eos_ids;
  SamplingParams sampling;
};

Wish MakeWish(uint32_t seed) {
  std::mt19937 random(seed);
  const auto id = [&] { return static_cast<int32_t>(random() % kToyVocab); };
  Wish wish{
      .prompt = RandomPrompt(seed, 3 + seed * 5), .eos_ids = {id(), id(), id(), id(), id()}, .sampling = {}};
  SamplingParams& p = wish.sampling;
  p.temperature = seed % 3 == 0 ? 0.0f : 0.9f;
  p.seed = static_cast<int64_t>(seed) - 3;
  p.max_tokens = 40;
  p.min_tokens = static_cast<int32_t>(random() % 30);
  if (seed % 2 == 0) p.repetition_penalty = 1.4f;
  if (seed % 3 == 1) p.frequency_penalty = 0.3f;
  if (seed % 4 == 2) p.presence_penalty = -0.8f;
  if (seed % 2 == 1) p.logit_bias = {{.id = id(), .bias = 3.5f}, {.id = 96, .bias = -100.0f}};
  if (seed % 3 == 2) {
    for (int32_t i = 0; i < kToyVocab; i += 3) p.allowed_token_ids.push_back(i);
  }
  if (seed % 4 != 0) {
    // Few ids are left, so that the words come up.
    p.allowed_token_ids = {1, 2, 3, 4, 5, wish.eos_ids[0]};
    p.bad_words = {{2}, {3, 4}, {5, 1, 3}, {4, 4, 4, 4}};
  }
  return wish;
}

// Asks for the wishes of [first, first + count) at once.
int64_t CheckAll(const EngineLoad& load, uint32_t first, uint32_t count) {
  std::atomic<bool> open{false};
  auto engine = StartToyEngine(load, open);
  std::vector<std::shared_ptr<Record>> records;
  for (uint32_t i = first; i < first + count; ++i) {
    const Wish wish = MakeWish(i);
    records.push_back(std::make_shared<Record>());
    EXPECT_TRUE(engine->Submit({.prompt = wish.prompt,
                                .sampling = wish.sampling,
                                .eos_ids = wish.eos_ids,
                                .sink = std::make_unique<RecordSink>(records.back())}));
  }
  open = true;
  for (uint32_t i = first; i < first + count; ++i) {
    SCOPED_TRACE(i);
    const Wish wish = MakeWish(i);
    Record& record = *records[i - first];
    record.Wait();
    EXPECT_EQ(record.error, "");
    Ids output = record.tokens;
    if (record.stop_token) output.push_back(*record.stop_token);
    EXPECT_GE(static_cast<int32_t>(output.size()), wish.sampling.min_tokens);
    Ids known = wish.prompt;
    known.insert(known.end(), output.begin(), output.end());
    const auto rows = AllRows(known);
    for (size_t n = 0; n < output.size(); ++n) {
      const Ids before(output.begin(), output.begin() + static_cast<int64_t>(n));
      const Ids banned = static_cast<int32_t>(n) < wish.sampling.min_tokens ? wish.eos_ids : Ids{};
      const size_t at = wish.prompt.size() + n;
      EXPECT_EQ(output[n], Drawn(Changed(rows[at - 1], wish.sampling, wish.prompt, before, banned),
                                 wish.sampling, static_cast<int32_t>(at)))
          << "token " << n;
    }
  }
  return engine->stats().num_preemptions;
}

TEST(LogitChanges, EveryDrawIsTheOneOfTheDefinition) {
  CheckAll({.budget = 200, .max_num_seqs = 8, .num_blocks = 100}, 0, 12);
  CheckAll({.budget = 5, .max_num_seqs = 8, .num_blocks = 100}, 0, 12);
  for (uint32_t alone = 0; alone < 12; ++alone) {
    CheckAll({.budget = 64, .max_num_seqs = 1, .num_blocks = 100}, alone, 1);
  }
}

TEST(LogitChanges, CountWhatWasGeneratedBeforeAPreemption) {
  EXPECT_GT(CheckAll({.budget = 64, .max_num_seqs = 8, .num_blocks = 18}, 0, 12), 0);
}

TEST(LogitChanges, BadWordsNeverComeUp) {
  const auto engine =
      *Engine::Start({.num_blocks = 64, .max_model_len = 200, .vocab_size = kToyVocab},
                     std::make_unique<ToyRunner>(ToyOptions{.num_blocks = 64, .vocab_size = kToyVocab}));
  auto record = std::make_shared<Record>();
  SamplingParams sampling;
  sampling.seed = 4;
  sampling.max_tokens = 150;
  sampling.allowed_token_ids = {1, 2, 3};
  sampling.bad_words = {{1, 2}, {3, 3, 3}};
  ASSERT_TRUE(engine->Submit(
      {.prompt = {1}, .sampling = sampling, .eos_ids = {}, .sink = std::make_unique<RecordSink>(record)}));
  record->Wait();
  const Ids& text = record->tokens;
  ASSERT_EQ(text.size(), 150u);
  for (const Ids& word : sampling.bad_words) EXPECT_EQ(std::ranges::search(text, word).size(), 0u);
  EXPECT_NE(std::ranges::search(text, Ids{3, 3}).size(), 0u);  // the test is one
}

// Penalties look at each id of the context once; they may not cost as much as the draw over the vocabulary
// itself.
TEST(LogitChanges, PenaltiesOverALongContextCostLessThanTheDraw) {
  if (kSanitized) GTEST_SKIP() << "measures time";
  constexpr int32_t kLargeVocab = 49152, kContext = 4000;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> row(kLargeVocab), logits(kLargeVocab);
  for (float& x : row) x = normal(random);
  Ids tokens(kContext);
  for (int32_t& id : tokens) id = static_cast<int32_t>(random() % kLargeVocab);
  Sampler sampler;
  const auto best_us = [&](const SamplingParams& params) {
    double best = 1e9;
    for (int run = 0; run < 60; ++run) {
      logits = row;
      const SampleJob job{.logits = logits,
                          .params = &params,
                          .seed = run,
                          .position = kContext,
                          .banned = {},
                          .tokens = tokens,
                          .prompt_len = kContext / 2};
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(sampler.Sample(job).has_value());
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count());
    }
    return best;
  };
  SamplingParams plain{.temperature = 0.8f, .top_p = 0.95f};
  SamplingParams penalised = plain;
  penalised.repetition_penalty = 1.2f;
  penalised.presence_penalty = 0.3f;
  penalised.frequency_penalty = 0.1f;
  const double without = best_us(plain), with = best_us(penalised);
  std::printf("  one draw over %d ids: %.0f us; with three penalties over %d tokens: %.0f us\n", kLargeVocab,
              without, kContext, with);
  EXPECT_LT(with, 2 * without);
}

}  // namespace
}  // namespace attest::testing
