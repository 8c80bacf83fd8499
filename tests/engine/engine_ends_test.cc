// How requests and engines end, and that nothing is lost when they do.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/log.h"
#include "device/memory.h"
#include "tests/engine/toy_engine.h"
#include "tests/support/sanitizers.h"

namespace attest::testing {
namespace {

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

TEST(Engine, ATextThatItsReaderEndsCountsAsStopped) {
  Gate gate{.step = 4};
  const auto engine = StartToy(SmallOptions(), {.before_run = gate.Hook()});
  const Ticket ticket = MustSubmit(*engine, MakeRequest(1, 10, 180));
  gate.WaitUntilInside();
  engine->EndText(ticket.id);
  gate.open = true;
  EXPECT_EQ(ticket.box->Wait(), FinishReason::kStop);
  EXPECT_EQ(engine->stats().finished[static_cast<size_t>(FinishReason::kStop)], 1);
  EXPECT_EQ(engine->stats().steps, 4);
  EXPECT_EQ(engine->stats().free_blocks, 63);
  engine->EndText(ticket.id);  // finished: ignored
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
