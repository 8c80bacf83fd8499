// Logprobs of generated and prompt tokens against a plain computation from every row of the prompt at once,
// however the engine cuts, batches and preempts it.
#include "engine/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "tests/engine/recorded_request.h"

namespace attest::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
// The definition, in double, by sorting.
TokenLogprobs Plain(const std::vector<float>& row, int32_t token, int32_t num_top) {
  double sum = 0;
  const double best = *std::ranges::max_element(row);
  for (const float logit : row) sum += std::exp(logit - best);
  std::vector<int32_t> order(row.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto at = [&](int32_t id) { return row[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  const auto logprob = [&](int32_t id) { return static_cast<float>(at(id) - best - std::log(sum)); };
  TokenLogprobs plain{.token = token, .logprob = logprob(token)};
  for (const float logit : row) plain.rank += logit > at(token) ? 1 : 0;
  for (size_t i = 0; i < std::min(order.size(), static_cast<size_t>(num_top)); ++i) {
    plain.top.push_back({.id = order[i], .logprob = logprob(order[i])});
  }
  return plain;
}

void ExpectSame(const TokenLogprobs& got, const TokenLogprobs& want) {
  EXPECT_EQ(got.token, want.token);
  EXPECT_NEAR(got.logprob, want.logprob, 1e-5);
  EXPECT_EQ(got.rank, want.rank);
  ASSERT_EQ(got.top.size(), want.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    EXPECT_EQ(got.top[i].id, want.top[i].id) << i;
    EXPECT_NEAR(got.top[i].logprob, want.top[i].logprob, 1e-5) << i;
    // Clients see by equality that a token was the greedy choice.
    if (got.top[i].id == got.token) {
      EXPECT_EQ(got.top[i].logprob, got.logprob);
    }
  }
}

TEST(ScoreToken, IsTheDefinition) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> row(1 + random() % 3000);
    for (float& logit : row) logit = static_cast<float>(random() % 4000) / 100 - 20;  // many ties
    const auto token = static_cast<int32_t>(random() % row.size());
    const auto num_top = static_cast<int32_t>(random() % 21);
    const auto got = ScoreToken(row, token, 5, num_top);
    ASSERT_TRUE(got);
    ExpectSame(*got, Plain(row, token, num_top));
  }
}

TEST(ScoreToken, LargeLogitsNeitherOverflowNorLoseTheRest) {
  const auto far = *ScoreToken(std::vector<float>{3e38f, -3e38f, 0}, 1, 0, 3);
  EXPECT_EQ(far.top[0].logprob, 0.0f);
  EXPECT_EQ(far.rank, 3);
  EXPECT_EQ(far.logprob, -kInf);  // 6e38 is no float
  const auto even = *ScoreToken(std::vector<float>(4, 1e30f), 2, 0, 2);
  EXPECT_FLOAT_EQ(even.logprob, -std::log(4.0f));
  EXPECT_EQ(even.logprob, even.top[0].logprob);
  EXPECT_EQ(even.rank, 1);
  EXPECT_EQ(even.top[1].id, 1);
}

TEST(ScoreToken, AnImpossibleTokenIsMinusInfinity) {
  const auto scores = *ScoreToken(std::vector<float>{1, -kInf, 2}, 1, 0, 3);
  EXPECT_EQ(scores.logprob, -kInf);
  EXPECT_EQ(scores.rank, 3);
  EXPECT_EQ(scores.top[2].logprob, -kInf);
}

TEST(ScoreToken, RefusesARowThatAKernelDidNotWrite) {
  const auto scores = ScoreToken(std::vector<float>{1, std::nanf(""), 2}, 0, 7, 1);
  ASSERT_FALSE(scores);
  EXPECT_EQ(scores.error().message, "the logit of id 1 for the token at position 7 is nan");
}

TEST(Sampler, LogprobsAreThoseOfTheRawLogits) {
  const std::vector<float> raw{1, 4, 2, 3};
  SamplingParams params{.temperature = 0.0f, .logprobs = 2};
  std::vector<float> row = raw;
  const std::vector<int32_t> banned{1};
  TokenLogprobs scores;
  Sampler sampler;
  const auto token =
      sampler.Sample({.logits = row, .params = &params, .banned = {banned, {}}, .logprobs = &scores});
  EXPECT_EQ(*token, 3);  // the ban counts for the choice, not for the logprobs
  ExpectSame(scores, Plain(raw, 3, 2));
  EXPECT_EQ(scores.rank, 2);
}

void ExpectRight(const std::vector<int32_t>& prompt, const Record& record, int32_t num_top,
                 int32_t num_prompt_top) {
  std::vector<int32_t> known = prompt;
  known.insert(known.end(), record.tokens.begin(), record.tokens.end());
  if (record.stop_token) known.push_back(*record.stop_token);
  const auto rows = AllRows(known);
  ASSERT_EQ(record.prompt_events, 1);
  ASSERT_EQ(record.prompt.size(), prompt.size() - 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    ExpectSame(record.prompt[i - 1], Plain(rows[i - 1], prompt[i], num_prompt_top));
  }
  ASSERT_EQ(record.logprobs.size(), known.size() - prompt.size());
  for (size_t i = prompt.size(); i < known.size(); ++i) {
    ExpectSame(record.logprobs[i - prompt.size()], Plain(rows[i - 1], known[i], num_top));
  }
}

// Several prompts at once, one of a single token.
int64_t RunBatch(const EngineLoad& load, ToyLog& log) {
  std::atomic<bool> open{false};
  auto engine = StartToyEngine(load, open, &log);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<Record>> records;
  for (uint32_t i = 0; i < 8; ++i) {
    prompts.push_back(RandomPrompt(i, i == 3 ? 1 : 5 + 9 * i));
    records.push_back(std::make_shared<Record>());
    Request request{.prompt = prompts.back(),
                    .sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f,
                                 .seed = i,
                                 .max_tokens = 30,
                                 .logprobs = static_cast<int32_t>(i % 4),
                                 .prompt_logprobs = static_cast<int32_t>(20 - i)},
                    .eos_ids = {static_cast<int32_t>(i), 50},
                    .sink = std::make_unique<RecordSink>(records.back())};
    EXPECT_TRUE(engine->Submit(std::move(request)));
  }
  open = true;
  for (uint32_t i = 0; i < 8; ++i) {
    records[i]->Wait();
    SCOPED_TRACE(i);
    EXPECT_EQ(records[i]->error, "");
    ExpectRight(prompts[i], *records[i], static_cast<int32_t>(i % 4), static_cast<int32_t>(20 - i));
  }
  return engine->stats().num_preemptions;
}

int64_t PromptRowsOfABatch() {
  int64_t rows = 0;
  for (int64_t i = 0; i < 8; ++i) rows += i == 3 ? 0 : 4 + 9 * i;
  return rows;
}

TEST(PromptLogprobs, AreTheSameHoweverThePromptIsCutAndBatched) {
  for (const EngineLoad& load : {EngineLoad{1, 8, 64}, EngineLoad{3, 2, 64}, EngineLoad{7, 8, 64},
                                 EngineLoad{64, 1, 64}, EngineLoad{64, 3, 64}, EngineLoad{200, 8, 64}}) {
    SCOPED_TRACE(::testing::Message() << "budget " << load.budget << ", seqs " << load.max_num_seqs);
    ToyLog log;
    RunBatch(load, log);
    EXPECT_EQ(log.scored_rows, PromptRowsOfABatch());
    // The logits of a whole prompt never exist at once.
    EXPECT_LE(log.max_scored_rows, std::min(load.budget, load.max_num_seqs));
  }
}

TEST(PromptLogprobs, SurvivePreemptionsWithoutBeingComputedTwice) {
  for (const EngineLoad& load : {EngineLoad{5, 8, 16}, EngineLoad{24, 8, 16}, EngineLoad{200, 8, 17}}) {
    ToyLog log;
    EXPECT_GT(RunBatch(load, log), 0);
    EXPECT_EQ(log.scored_rows, PromptRowsOfABatch());
  }
}

// Bug case C05: with the prefix cache, prompt logprobs crash above one block or are those of the wrong
// tokens.
TEST(PromptLogprobs, C05AreTheSameTheSecondTime) {
  const EngineOptions options{.num_blocks = 64, .max_model_len = 200, .vocab_size = kToyVocab};
  auto engine = *Engine::Start(options, std::make_unique<ToyRunner>(ToyOptions{.num_blocks = 64}));
  for (const uint32_t length : {15, 16, 17, 32, 33}) {
    SCOPED_TRACE(length);
    const std::vector<int32_t> prompt = RandomPrompt(length, length);
    for (const bool scored : {false, true, true}) {  // the first one fills the cache
      const auto record = std::make_shared<Record>();
      SamplingParams sampling{.max_tokens = 4};
      if (scored) sampling.logprobs = sampling.prompt_logprobs = 3;
      ASSERT_TRUE(engine->Submit({.prompt = prompt,
                                  .sampling = sampling,
                                  .eos_ids = {},
                                  .sink = std::make_unique<RecordSink>(record)}));
      record->Wait();
      if (scored) ExpectRight(prompt, *record, 3, 3);
    }
  }
}

TEST(PromptLogprobs, NobodyPaysWhoDidNotAsk) {
  ToyLog log;
  const EngineOptions options{.num_blocks = 64, .max_model_len = 200, .vocab_size = kToyVocab};
  auto engine =
      *Engine::Start(options, std::make_unique<ToyRunner>(ToyOptions{.num_blocks = 64, .log = &log}));
  const auto record = std::make_shared<Record>();
  ASSERT_TRUE(engine->Submit({.prompt = RandomPrompt(1, 40),
                              .sampling = {},
                              .eos_ids = {},
                              .sink = std::make_unique<RecordSink>(record)}));
  record->Wait();
  EXPECT_EQ(log.scored_rows, 0);
  EXPECT_EQ(record->prompt_events, 0);
  EXPECT_TRUE(record->logprobs.empty());
}

// A row that cannot be scored ends its own request and no other.
TEST(PromptLogprobs, ABadRowEndsThatSequenceAlone) {
  class WritesNanAtPosition4 final : public StepRunner {
   public:
    explicit WritesNanAtPosition4(const ToyOptions& toy) : toy_(toy) {}
    Status Run(const StepBatch& batch, View<float, 2> logits) override { return toy_.Run(batch, logits); }
    Status Logits(const StepBatch& batch, std::span<const int32_t> rows, View<float, 2> logits) override {
      ATTEST_RETURN_IF_ERROR(toy_.Logits(batch, rows, logits));
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<size_t>(rows[i]);
        if (batch.positions[row] == 4 && batch.tokens[row] == 11)
          *logits.At(static_cast<int64_t>(i), 60) = kInf;
      }
      return {};
    }

   private:
    ToyRunner toy_;
  };
  const EngineOptions options{.num_blocks = 64, .max_model_len = 200, .vocab_size = kToyVocab};
  auto engine = *Engine::Start(options, std::make_unique<WritesNanAtPosition4>(ToyOptions{.num_blocks = 64}));
  const auto submit = [&](int32_t fifth) {
    auto record = std::make_shared<Record>();
    std::vector<int32_t> prompt = RandomPrompt(9, 20);
    prompt[4] = fifth;
    SamplingParams sampling;
    sampling.prompt_logprobs = 0;
    EXPECT_TRUE(engine->Submit({.prompt = prompt,
                                .sampling = sampling,
                                .eos_ids = {},
                                .sink = std::make_unique<RecordSink>(record)}));
    return record;
  };
  const auto bad = submit(11), good = submit(12);
  bad->Wait();
  good->Wait();
  EXPECT_EQ(bad->reason, FinishReason::kError);
  EXPECT_EQ(bad->error, "the logit of id 60 for the token at position 5 is inf");
  EXPECT_EQ(bad->prompt_events, 0);
  EXPECT_TRUE(bad->tokens.empty());
  EXPECT_EQ(good->reason, FinishReason::kLength);
  EXPECT_EQ(good->prompt.size(), 19u);
}

}  // namespace
}  // namespace attest::testing
