#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tests/engine/toy_engine.h"

namespace attest::testing {
namespace {

TEST(Engine, AnswersARequest) {
  const auto engine = StartToy(SmallOptions());
  const Ticket ticket = MustSubmit(*engine, MakeRequest(2, 10, 20));
  EXPECT_EQ(ticket.box->Wait(), FinishReason::kLength);
  EXPECT_EQ(ticket.box->tokens().size(), 20u);
  EXPECT_FALSE(ticket.box->stop_token());
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 10);
  EXPECT_EQ(stats.generation_tokens, 20);
  EXPECT_EQ(stats.steps, 20);
  EXPECT_EQ(stats.free_blocks, 63);
  EXPECT_EQ(stats.total_blocks, 63);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kLength)], 1);
  EXPECT_TRUE(stats.healthy);
  EXPECT_DOUBLE_EQ(stats.kv_usage(), 0.0);
}

TEST(Engine, RefusesBadOptionsAndBadRequestsWithTheField) {
  EngineOptions options = SmallOptions();
  options.num_blocks = 0;
  const auto engine = Engine::Start(options, std::make_unique<ToyRunner>(ToyOptions{}));
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().field, "num_blocks");
  const auto good = StartToy(SmallOptions());
  Request request = MakeRequest(1, 300, 5);
  request.sink = std::make_unique<MailSink>(std::make_shared<Mailbox>());
  const auto id = good->Submit(std::move(request));
  ASSERT_FALSE(id);  // at once, with nothing else running
  EXPECT_EQ(id.error().field, "prompt");
  EXPECT_EQ(good->stats().num_waiting, 0);
}

// Bug case C18, in the engine: the natural end is told, also exactly at the limit.
TEST(Engine, EndsOnEosAndOnStopIdsAndReportsTheId) {
  const std::vector<int32_t> text = TextAlone(2, 10, 20);
  // The first id that did not come before, so that it ends the text exactly there.
  size_t at = 5;
  while (std::find(text.begin(), text.begin() + static_cast<int64_t>(at), text[at]) !=
         text.begin() + static_cast<int64_t>(at)) {
    ++at;
  }
  const std::vector<int32_t> before(text.begin(), text.begin() + static_cast<int64_t>(at));
  const auto engine = StartToy(SmallOptions());
  const auto run = [&](auto change) {
    Request request = MakeRequest(2, 10, 20);
    change(request);
    const Ticket ticket = MustSubmit(*engine, std::move(request));
    ticket.box->Wait();
    return ticket.box;
  };
  const auto eos = run([&](Request& r) { r.eos_ids = {96, text[at]}; });
  EXPECT_EQ(eos->Wait(), FinishReason::kStop);
  EXPECT_EQ(eos->stop_token(), text[at]);
  EXPECT_EQ(eos->tokens(), before);

  const auto stop = run([&](Request& r) {
    r.sampling.stop_token_ids = {text[at]};
    r.sampling.ignore_eos = true;
  });
  EXPECT_EQ(stop->Wait(), FinishReason::kStop);
  EXPECT_EQ(stop->tokens(), before);

  const auto ignored = run([&](Request& r) {
    r.eos_ids = {text[at]};
    r.sampling.ignore_eos = true;
  });
  EXPECT_EQ(ignored->Wait(), FinishReason::kLength);
  EXPECT_EQ(ignored->tokens(), text);

  // The end of sequence as the last token allowed is a stop, not a cut.
  const auto exact = run([&](Request& r) {
    r.eos_ids = {text[at]};
    r.sampling.max_tokens = static_cast<int32_t>(at) + 1;
  });
  EXPECT_EQ(exact->Wait(), FinishReason::kStop);
  EXPECT_EQ(exact->tokens(), before);

  // Before min_tokens the id cannot be drawn.
  const auto later = run([&](Request& r) {
    r.eos_ids = {text[at]};
    r.sampling.min_tokens = static_cast<int32_t>(at) + 1;
  });
  EXPECT_GT(later->tokens().size(), at);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), later->tokens().begin()));
  EXPECT_NE(later->tokens()[at], text[at]);
}

// Seeds are all that tells the choices of one request apart (bug report: n > 1 gave identical texts).
TEST(Engine, DifferentSeedsGiveDifferentTextsAndTheSameSeedTheSame) {
  const auto engine = StartToy(SmallOptions());
  const auto run = [&](std::optional<int64_t> seed) {
    Request request = MakeRequest(3, 10, 20);
    request.sampling.seed = seed;
    const Ticket ticket = MustSubmit(*engine, std::move(request));
    ticket.box->Wait();
    return ticket.box->tokens();
  };
  std::set<std::vector<int32_t>> texts{run(1), run(2), run(3), run(std::nullopt), run(std::nullopt)};
  EXPECT_EQ(texts.size(), 5u);
  EXPECT_EQ(run(2), run(2));
}

TEST(Engine, ReportsWhatThePrefixCacheGaveAndForgetsItOnReset) {
  std::atomic<bool> slow{false};
  const auto engine = StartToy(SmallOptions(), {.before_run = [&slow](const StepBatch&) -> Status {
                                 if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(100));
                                 return {};
                               }});
  const auto serve = [&](bool score_prompt) {
    Request request = MakeRequest(2, 20, 20);
    if (score_prompt) request.sampling.prompt_logprobs = 0;
    const Ticket ticket = MustSubmit(*engine, std::move(request));
    ticket.box->Wait();
    return ticket.box;
  };
  const auto cold = serve(false), warm = serve(false);
  EXPECT_EQ(cold->cached(), 0);
  EXPECT_EQ(warm->cached(), 16);  // two of its two and a half blocks of 8
  EXPECT_EQ(warm->tokens(), cold->tokens());
  EXPECT_EQ(engine->stats().prompt_tokens, 40);
  EXPECT_EQ(engine->stats().prompt_tokens_cached, 16);
  EXPECT_EQ(engine->stats().prefix_cache_queries, 40);
  EXPECT_EQ(engine->stats().prefix_cache_hits, 16);
  EXPECT_EQ(engine->stats().free_blocks, 63);  // cached ones may be had

  // While a sequence runs nothing is forgotten: it runs, slowly, until there is an answer. Its 180 steps
  // would take 18 seconds, which no pause of this thread outlasts.
  slow = true;
  const Ticket running = MustSubmit(*engine, MakeRequest(2, 20, 180));
  while (engine->stats().num_running == 0) std::this_thread::yield();
  EXPECT_FALSE(engine->ResetPrefixCache());
  slow = false;
  running.box->Wait();
  EXPECT_EQ(serve(false)->cached(), 16);
  while (engine->stats().free_blocks != 63) std::this_thread::yield();
  EXPECT_TRUE(engine->ResetPrefixCache());
  EXPECT_EQ(serve(true)->cached(), 0);
  const int64_t queries = engine->stats().prefix_cache_queries;
  EXPECT_EQ(serve(true)->cached(), 0);  // it does not read, though the one before has written
  EXPECT_EQ(engine->stats().prefix_cache_queries, queries);
  const auto after = serve(false);
  EXPECT_EQ(after->cached(), 16);
  EXPECT_EQ(after->tokens(), cold->tokens());
}

class CountingObserver final : public EngineObserver {
 public:
  void OnStep(const StepRecord& step) override {
    ++steps;
    tokens += step.num_tokens;
    sampled += step.num_sampled;
    preempted += step.num_preempted;
    first_tokens += static_cast<int64_t>(step.time_to_first_token_seconds.size());
    gaps += static_cast<int64_t>(step.inter_token_seconds.size());
  }
  void OnRequestFinished(const RequestRecord& request) override { records[request.id] = request; }
  int64_t steps = 0, tokens = 0, sampled = 0, preempted = 0, first_tokens = 0, gaps = 0;
  std::map<RequestId, RequestRecord> records;
};

TEST(Engine, TellsTheObserverWhenEverythingHappened) {
  CountingObserver observer;
  std::vector<Ticket> tickets;
  Gate gate{.step = 1};
  int64_t preemptions = 0;
  {
    EngineOptions options = SmallOptions();
    options.num_blocks = 14;  // 13 blocks of 8 for four sequences of up to 40 tokens
    options.prefix_caching = false;
    const auto engine = StartToy(options, {.before_run = gate.Hook()}, &observer);
    for (uint32_t i = 0; i < 6; ++i) tickets.push_back(MustSubmit(*engine, MakeRequest(i, 20, 20)));
    gate.open = true;
    for (const Ticket& ticket : tickets) ticket.box->Wait();
    preemptions = engine->stats().num_preemptions;
    EXPECT_EQ(engine->stats().prompt_tokens, 120);  // recomputation is not counted
    EXPECT_EQ(engine->stats().generation_tokens, 120);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(observer.preempted, preemptions);
  EXPECT_EQ(observer.sampled, 120);
  EXPECT_EQ(observer.first_tokens, 6);
  EXPECT_EQ(observer.gaps, 114);
  EXPECT_GT(observer.tokens, 6 * 39);  // some twice
  ASSERT_EQ(observer.records.size(), 6u);
  int64_t counted = 0;
  for (const auto& [id, record] : observer.records) {
    EXPECT_EQ(record.reason, FinishReason::kLength);
    EXPECT_EQ(record.prompt_tokens, 20);
    EXPECT_EQ(record.generation_tokens, 20);
    EXPECT_EQ(record.max_tokens, 20);
    ASSERT_TRUE(record.first_scheduled && record.first_token && record.last_token);
    EXPECT_LE(record.arrival, *record.first_scheduled);
    EXPECT_LT(*record.first_scheduled, *record.first_token);
    EXPECT_LT(*record.first_token, *record.last_token);
    EXPECT_LE(*record.last_token, record.finish);
    counted += record.num_preemptions;
  }
  EXPECT_EQ(counted, preemptions);
}

}  // namespace
}  // namespace attest::testing
