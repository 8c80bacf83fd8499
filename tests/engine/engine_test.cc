#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/log.h"
#include "device/memory.h"
#include "tests/support/sanitizers.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

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

EngineOptions SmallOptions() {
  return {.block_size = 8,
          .num_blocks = 64,
          .max_model_len = 200,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 64,
          .max_queue = 4096,
          .long_prefill_tokens = 0,
          .vocab_size = kToyVocab};
}

std::unique_ptr<Engine> StartToy(const EngineOptions& options, ToyOptions toy = {},
                                 EngineObserver* observer = nullptr) {
  toy.num_blocks = options.num_blocks;
  toy.block_size = options.block_size;
  toy.vocab_size = options.vocab_size;
  auto engine = Engine::Start(options, std::make_unique<ToyRunner>(toy), observer);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

Request MakeRequest(uint32_t seed, int32_t prompt_len, int32_t max_tokens) {
  std::mt19937 random(seed);
  Request request;
  for (int32_t i = 0; i < prompt_len; ++i)
    request.prompt.push_back(static_cast<int32_t>(random() % kToyVocab));
  request.sampling.temperature = seed % 2 == 0 ? 0.0f : 1.0f;
  request.sampling.seed = seed;
  request.sampling.max_tokens = max_tokens;
  return request;
}

Ticket MustSubmit(Engine& engine, Request request) {
  Ticket ticket{.id = 0, .box = std::make_shared<Mailbox>()};
  request.sink = std::make_unique<MailSink>(ticket.box);
  const auto id = engine.Submit(std::move(request));
  EXPECT_TRUE(id) << id.error().message;
  ticket.id = id.value_or(0);
  return ticket;
}

std::vector<int32_t> TextAlone(uint32_t seed, int32_t prompt_len, int32_t max_tokens) {
  const auto engine = StartToy(SmallOptions());
  const Ticket ticket = MustSubmit(*engine, MakeRequest(seed, prompt_len, max_tokens));
  ticket.box->Wait();
  return ticket.box->tokens();
}

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

TEST(Engine, AbortStopsASequenceAndFreesItsBlocks) {
  Gate gate{.step = 4};
  const auto engine = StartToy(SmallOptions(), {.before_run = gate.Hook()});
  const Ticket ticket = MustSubmit(*engine, MakeRequest(1, 10, 180));
  gate.WaitUntilInside();
  engine->Abort(ticket.id);
  gate.open = true;
  EXPECT_EQ(ticket.box->Wait(), FinishReason::kAbort);
  EXPECT_EQ(engine->stats().steps, 4);  // the one under way was its last
  EXPECT_EQ(ticket.box->tokens().size(), 4u);
  EXPECT_EQ(engine->stats().free_blocks, 63);
  engine->Abort(ticket.id);  // finished: ignored
  engine->Abort(12345);      // unknown: ignored
  EXPECT_EQ(MustSubmit(*engine, MakeRequest(1, 10, 5)).box->Wait(), FinishReason::kLength);
  EXPECT_EQ(ticket.box->finishes(), 1);
}

TEST(Engine, AbortReachesAWaitingSequence) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 1;
  Gate gate{.step = 2};
  const auto engine = StartToy(options, {.before_run = gate.Hook()});
  const Ticket running = MustSubmit(*engine, MakeRequest(2, 10, 30));
  const Ticket waiting = MustSubmit(*engine, MakeRequest(4, 10, 30));
  gate.WaitUntilInside();
  engine->Abort(waiting.id);
  gate.open = true;
  EXPECT_EQ(waiting.box->Wait(), FinishReason::kAbort);
  EXPECT_TRUE(waiting.box->tokens().empty());
  EXPECT_EQ(running.box->Wait(), FinishReason::kLength);
  EXPECT_EQ(running.box->tokens().size(), 30u);
}

TEST(Engine, AFailedStepEndsItsSequencesAndTheEngineGoesOn) {
  SetLogLevel(LogLevel::kOff);
  std::atomic<int> fail{0};
  const auto engine = StartToy(SmallOptions(), {.before_run = [&fail](const StepBatch&) -> Status {
                                 if (fail > 0) {
                                   --fail;
                                   return Fail(ErrorCode::kUnsupported, "no kernel takes kv_len 7", "kv_len");
                                 }
                                 return {};
                               }});
  fail = 1;
  const Ticket broken = MustSubmit(*engine, MakeRequest(1, 10, 20));
  EXPECT_EQ(broken.box->Wait(), FinishReason::kError);
  ASSERT_TRUE(broken.box->error());
  EXPECT_EQ(broken.box->error()->message, "no kernel takes kv_len 7");
  EXPECT_EQ(broken.box->error()->code, ErrorCode::kUnsupported);
  EXPECT_TRUE(engine->stats().healthy);
  const Ticket next = MustSubmit(*engine, MakeRequest(1, 10, 20));
  EXPECT_EQ(next.box->Wait(), FinishReason::kLength);
  EXPECT_EQ(engine->stats().free_blocks, 63);
  EXPECT_EQ(engine->stats().failed_steps, 1);

  fail = 3;
  for (int i = 0; i < 3; ++i) MustSubmit(*engine, MakeRequest(1, 10, 20)).box->Wait();
  const auto wait_until_healthy_is = [&](bool want) {
    for (int i = 0; i < 5000 && engine->stats().healthy != want; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(engine->stats().healthy, want);
  };
  wait_until_healthy_is(false);
  EXPECT_EQ(MustSubmit(*engine, MakeRequest(1, 10, 20)).box->Wait(), FinishReason::kLength);
  wait_until_healthy_is(true);
  SetLogLevel(LogLevel::kInfo);
}

// A kernel that declines without a word must not become text.
TEST(Engine, ARowThatRunDidNotWriteEndsThatSequenceAlone) {
  class SkipsShortRows final : public StepRunner {
   public:
    explicit SkipsShortRows(const ToyOptions& toy) : toy_(toy) {}
    Status Run(const StepBatch& batch, View<float, 2> logits) override {
      std::vector<float> full(static_cast<size_t>(logits.size()));
      const auto view = View<float, 2>::Dense(full.data(), logits.shape);
      ATTEST_RETURN_IF_ERROR(toy_.Run(batch, view));
      int64_t row = 0;
      for (int seq = 0; seq < batch.num_seqs(); ++seq, ++row) {
        if (batch.q_begin.length(seq) <= 1 && batch.kv_len[static_cast<size_t>(seq)] == 5) continue;
        std::copy_n(view.At(row), kToyVocab, logits.At(row));
      }
      return {};
    }

   private:
    ToyRunner toy_;
  };
  auto engine =
      Engine::Start(SmallOptions(), std::make_unique<SkipsShortRows>(ToyOptions{
                                        .num_blocks = 64, .block_size = 8, .vocab_size = kToyVocab}));
  ASSERT_TRUE(engine);
  const Ticket bad = MustSubmit(**engine, MakeRequest(1, 4, 20));
  const Ticket good = MustSubmit(**engine, MakeRequest(2, 10, 20));
  EXPECT_EQ(bad.box->Wait(), FinishReason::kError);
  EXPECT_EQ(bad.box->error()->message, "the logit of id 0 for the token at position 5 is nan");
  EXPECT_EQ(bad.box->tokens().size(), 1u);
  EXPECT_EQ(good.box->Wait(), FinishReason::kLength);
}

TEST(Engine, RefusesRequestsPastTheQueueLimit) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 1;
  options.max_queue = 3;
  std::atomic<bool> hold{true};
  const auto engine = StartToy(options, {.before_run = [&hold](const StepBatch&) -> Status {
                                 while (hold) std::this_thread::sleep_for(std::chrono::microseconds(50));
                                 return {};
                               }});
  std::vector<Ticket> tickets{MustSubmit(*engine, MakeRequest(0, 5, 5))};
  std::optional<Error> refused;
  for (uint32_t i = 1; i < 8 && !refused; ++i) {
    Request request = MakeRequest(i, 5, 5);
    tickets.push_back({.id = 0, .box = std::make_shared<Mailbox>()});
    request.sink = std::make_unique<MailSink>(tickets.back().box);
    const auto id = engine->Submit(std::move(request));
    if (!id) {
      refused = id.error();
      tickets.pop_back();
    }
  }
  hold = false;
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, ErrorCode::kUnavailable);
  EXPECT_EQ(refused->message, "3 requests wait already; max_queue is 3");
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.box->Wait(), FinishReason::kLength);
  EXPECT_EQ(MustSubmit(*engine, MakeRequest(1, 5, 5)).box->Wait(), FinishReason::kLength);  // room again
}

TEST(Engine, DrainFinishesWhatIsThereAndTakesNothingNew) {
  Gate gate{.step = 2};
  const auto engine = StartToy(SmallOptions(), {.before_run = gate.Hook()});
  std::vector<Ticket> tickets;
  for (uint32_t i = 0; i < 20; ++i) tickets.push_back(MustSubmit(*engine, MakeRequest(i, 10, 30)));
  engine->Drain();
  EXPECT_FALSE(engine->drained());
  Request late = MakeRequest(1, 5, 5);
  late.sink = std::make_unique<MailSink>(std::make_shared<Mailbox>());
  const auto id = engine->Submit(std::move(late));
  ASSERT_FALSE(id);
  EXPECT_EQ(id.error().code, ErrorCode::kUnavailable);
  gate.open = true;
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.box->Wait(), FinishReason::kLength);
  for (int i = 0; i < 5000 && !engine->drained(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(engine->drained());
}

TEST(Engine, ItsEndAbortsWhatRuns) {
  std::vector<Ticket> tickets;
  Gate gate{.step = 3};
  std::jthread opener;
  {
    // Should the destructor come late, many slow steps are left: it cannot come after them.
    const auto hook = [&gate, hold = gate.Hook()](const StepBatch& batch) -> Status {
      ATTEST_RETURN_IF_ERROR(hold(batch));
      if (gate.run > gate.step) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return {};
    };
    const auto engine = StartToy(SmallOptions(), {.before_run = hook});
    for (uint32_t i = 0; i < 30; ++i) tickets.push_back(MustSubmit(*engine, MakeRequest(i, 20, 150)));
    gate.WaitUntilInside();
    opener = std::jthread([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the destructor mostly waits by then
      gate.open = true;
    });
  }
  int aborted = 0;
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.box->finished());
    aborted += ticket.box->Wait() == FinishReason::kAbort ? 1 : 0;
    EXPECT_EQ(ticket.box->finishes(), 1);
  }
  EXPECT_GT(aborted, 0);
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

// Several threads submit and abort at once; whoever is not aborted gets the text it gets alone.
TEST(Engine, ServesManyThreadsAndKeepsEveryTextWhole) {
  constexpr int kThreads = 4, kPerThread = 40;
  EngineOptions options = SmallOptions();
  options.num_blocks = 40;
  std::map<uint32_t, std::vector<int32_t>> alone;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    alone[seed] = TextAlone(seed, 3 + static_cast<int32_t>(seed) * 4, 5 + static_cast<int32_t>(seed) * 3);
  }
  Gate gate{.step = 1};  // opened by the first abort, which therefore meets a live sequence
  const auto engine = StartToy(options, {.before_run = gate.Hook()});
  std::atomic<int> whole{0}, aborted{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<uint32_t>(t));
        std::vector<std::pair<uint32_t, Ticket>> tickets;
        for (int i = 0; i < kPerThread; ++i) {
          const uint32_t seed = random() % 10;
          tickets.emplace_back(seed, MustSubmit(*engine, MakeRequest(seed, 3 + static_cast<int32_t>(seed) * 4,
                                                                     5 + static_cast<int32_t>(seed) * 3)));
          if (random() % 3 == 0) {
            engine->Abort(tickets[random() % tickets.size()].second.id);
            gate.open = true;
          }
          if (random() % 4 == 0) (void)engine->stats();
        }
        for (const auto& [seed, ticket] : tickets) {
          const FinishReason reason = ticket.box->Wait();
          const std::vector<int32_t> text = ticket.box->tokens(), &want = alone.at(seed);
          if (reason == FinishReason::kAbort) {
            EXPECT_LE(text.size(), want.size());
            EXPECT_TRUE(std::equal(text.begin(), text.end(), want.begin()));
            ++aborted;
          } else {
            EXPECT_EQ(reason, FinishReason::kLength);
            EXPECT_EQ(text, want);
            ++whole;
          }
          EXPECT_EQ(ticket.box->finishes(), 1);
        }
      });
    }
  }
  EXPECT_EQ(whole + aborted, kThreads * kPerThread);
  EXPECT_GT(whole, 0);
  EXPECT_GT(aborted, 0);
  EXPECT_EQ(engine->stats().free_blocks, engine->stats().total_blocks);
}

// Every way a request can end gives its blocks back (bug case C23: free KV shrank until the server stalled).
TEST(Engine, C23EveryWayToEndReturnsItsBlocks) {
  SetLogLevel(LogLevel::kOff);
  EngineOptions options = SmallOptions();
  options.num_blocks = 30;
  Gate gate{.step = 1};
  std::atomic<int64_t> run{0};
  const auto engine =
      StartToy(options, {.before_run = [&run, hold = gate.Hook()](const StepBatch& batch) -> Status {
                 (void)hold(batch);
                 // Twice in a row: once in company and once alone.
                 if (++run % 97 < 2) return Fail(ErrorCode::kInternal, "injected");
                 return {};
               }});
  std::mt19937 random(5);
  std::map<FinishReason, int> ends;
  std::vector<Ticket> tickets;
  for (uint32_t i = 0; i < 1000; ++i) {
    Request request =
        MakeRequest(i, static_cast<int32_t>(1 + random() % 60), static_cast<int32_t>(1 + random() % 40));
    if (i % 3 == 0) {
      for (int32_t id = 0; id < 10; ++id) request.eos_ids.push_back(id);
    }
    tickets.push_back(MustSubmit(*engine, std::move(request)));
    if (random() % 5 == 0) engine->Abort(tickets[random() % tickets.size()].id);
    if (i % 50 == 49) {
      gate.open = true;
      tickets.back().box->Wait();
    }
  }
  for (const Ticket& ticket : tickets) ++ends[ticket.box->Wait()];
  SetLogLevel(LogLevel::kInfo);
  EXPECT_EQ(ends.size(), 4u);  // stop, length, abort and error all happened
  EXPECT_EQ(engine->stats().free_blocks, 29);
  EXPECT_GT(engine->stats().num_preemptions, 0);
}

// Bug case C33: host memory grew with every request.
TEST(Engine, C33MemoryDoesNotGrowWithTheNumberOfRequests) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  class Counter final : public TokenSink {
   public:
    explicit Counter(std::atomic<int>& done) : done_(done) {}
    void OnToken(int32_t) override {}
    void OnFinish(FinishReason, std::optional<int32_t>, const Error*) override { ++done_; }

   private:
    std::atomic<int>& done_;
  };
  const auto engine = StartToy(SmallOptions());
  std::atomic<int> done{0};
  int submitted = 0;
  const auto serve = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Request request = MakeRequest(static_cast<uint32_t>(i), 3, 1);
      request.sink = std::make_unique<Counter>(done);
      const auto id = engine->Submit(std::move(request));
      ASSERT_TRUE(id);
      ++submitted;
      if (i % 7 == 0) engine->Abort(*id);
      while (submitted - done > 100) std::this_thread::yield();
    }
    while (done < submitted) std::this_thread::yield();
  };
  serve(5000);
  const int64_t before = ResidentBytes();
  serve(45000);
  EXPECT_LT(ResidentBytes() - before, int64_t{20} << 20);
}

}  // namespace
}  // namespace attest::testing
