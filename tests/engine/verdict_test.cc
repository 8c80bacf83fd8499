// What the engine does with a step that was found wrong. The toy model is made wrong by giving it other
// tokens than the batch has, which spoils the KV cache and the logits alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

using Action = StepVerdict::Action;

struct Plot {
  int64_t first_wrong = 1;  // steps [first_wrong, last_wrong] are wrong, from 1; the last one is noticed
  int64_t last_wrong = 0;
  Action action = Action::kCommit;
};

class WrongRunner final : public StepRunner {
 public:
  // The first step waits for `gate`, so that how many requests take part in a step does not depend on how
  // fast they were submitted; null: it does not wait.
  WrongRunner(const EngineOptions& options, const Plot& plot, std::shared_ptr<std::latch> gate = nullptr)
      : gate_(std::move(gate)),
        toy_({.num_blocks = options.num_blocks, .block_size = options.block_size, .vocab_size = kToyVocab}),
        plot_(plot) {}

  Status Run(const StepBatch& batch, View<float, 2> logits) override {
    if (gate_ != nullptr) gate_->wait();
    ++step_;
    if (step_ < plot_.first_wrong || step_ > plot_.last_wrong) return toy_.Run(batch, logits);
    StepBatch wrong = batch;
    for (int32_t& token : wrong.tokens) token = static_cast<int32_t>((token + 1) % kToyVocab);
    return toy_.Run(wrong, logits);
  }
  StepVerdict TakeVerdict() override {
    if (step_ != plot_.last_wrong) return {};
    return {.action = plot_.action,
            .error = {.code = ErrorCode::kInternal, .message = "a kernel is wrong", .field = ""}};
  }

 private:
  const std::shared_ptr<std::latch> gate_;
  ToyRunner toy_;
  const Plot plot_;
  int64_t step_ = 0;
};

struct Outcome {
  std::vector<int32_t> tokens;
  size_t kept = 0;  // tokens that were there when the sink refused to take them back
  std::optional<FinishReason> reason;
  std::string error;
};

struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Outcome> outcomes;
};

class BoardSink final : public TokenSink {
 public:
  BoardSink(Board& board, size_t index, bool may_retract)
      : board_(board), index_(index), may_retract_(may_retract) {}
  void OnToken(int32_t token) override {
    const std::lock_guard lock(board_.mutex);
    board_.outcomes[index_].tokens.push_back(token);
  }
  bool Retract() override {
    const std::lock_guard lock(board_.mutex);
    Outcome& outcome = board_.outcomes[index_];
    if (may_retract_) {
      outcome.tokens.clear();
    } else {
      outcome.kept = outcome.tokens.size();
    }
    return may_retract_;
  }
  void OnFinish(FinishReason reason, std::optional<int32_t>, const Error* error) override {
    const std::lock_guard lock(board_.mutex);
    board_.outcomes[index_].reason = reason;
    if (error != nullptr) board_.outcomes[index_].error = error->message;
    board_.changed.notify_all();
  }

 private:
  Board& board_;
  const size_t index_;
  const bool may_retract_;
};

EngineOptions VerdictOptions(int64_t num_blocks = 64) {
  return {.block_size = 8,
          .num_blocks = num_blocks,
          .max_model_len = 200,
          .max_num_seqs = 4,  // some wait
          .max_num_batched_tokens = 32,
          .vocab_size = kToyVocab};
}

constexpr size_t kRequests = 7;
constexpr int32_t kTokens = 24;

std::vector<int32_t> PromptOf(size_t index) {
  std::mt19937 random(static_cast<uint32_t>(index));
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < 3 + 11 * index; ++i) prompt.push_back(static_cast<int32_t>(random() % kToyVocab));
  return prompt;
}

Request RequestOf(size_t index, std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = index % 2 == 0 ? 0.0f : 1.0f;
  request.sampling.seed = static_cast<int64_t>(index);
  request.sampling.max_tokens = max_tokens;
  return request;
}

std::vector<Outcome> ServeAll(const EngineOptions& options, const Plot& plot, bool may_retract,
                              EngineStats* stats = nullptr) {
  Board board;
  board.outcomes.resize(kRequests);
  const auto all_submitted = std::make_shared<std::latch>(1);
  auto engine = Engine::Start(options, std::make_unique<WrongRunner>(options, plot, all_submitted));
  EXPECT_TRUE(engine);
  for (size_t i = 0; i < kRequests; ++i) {
    Request request = RequestOf(i, PromptOf(i), kTokens);
    request.sink = std::make_unique<BoardSink>(board, i, may_retract);
    EXPECT_TRUE((*engine)->Submit(std::move(request)));
  }
  all_submitted->count_down();
  std::unique_lock lock(board.mutex);
  EXPECT_TRUE(board.changed.wait_for(lock, std::chrono::seconds(60), [&] {
    return std::ranges::all_of(board.outcomes, [](const Outcome& o) { return o.reason.has_value(); });
  }));
  if (stats != nullptr) *stats = (*engine)->stats();
  lock.unlock();
  engine->reset();
  return std::move(board.outcomes);
}

std::vector<Outcome> ServeClean() { return ServeAll(VerdictOptions(), {}, false); }

// The first request ends before anybody notices that its steps were wrong; its blocks are in the prefix cache
// when the third one asks with the same prompt.
TEST(Verdict, BlocksOfAWrongKernelAreNobodysPrefix) {
  const std::vector<int32_t> prompt = PromptOf(4);
  const auto serve = [&](const Plot& plot) {
    auto engine = Engine::Start(VerdictOptions(), std::make_unique<WrongRunner>(VerdictOptions(), plot));
    EXPECT_TRUE(engine);
    Board board;
    board.outcomes.resize(3);
    for (size_t i = 0; i < 3; ++i) {
      Request request = RequestOf(0, i == 1 ? PromptOf(2) : prompt, 6);
      request.sink = std::make_unique<BoardSink>(board, i, true);
      EXPECT_TRUE((*engine)->Submit(std::move(request)));
      std::unique_lock lock(board.mutex);
      EXPECT_TRUE(board.changed.wait_for(lock, std::chrono::seconds(60),
                                         [&] { return board.outcomes[i].reason.has_value(); }));
    }
    const EngineStats stats = (*engine)->stats();
    engine->reset();
    return std::pair(board.outcomes[2].tokens, stats);
  };
  const auto [clean, clean_stats] = serve({});
  EXPECT_EQ(clean_stats.prefix_cache_hits, 40);  // 47 tokens in blocks of 8
  // A prompt of 47 tokens takes two steps of 32, and six tokens take five more: step 8 is the second
  // request's.
  const auto [tokens, stats] = serve({.first_wrong = 1, .last_wrong = 8, .action = Action::kRecomputeAll});
  EXPECT_EQ(stats.discarded_steps, 1);
  EXPECT_EQ(stats.prefix_cache_hits, 0);
  EXPECT_EQ(tokens, clean);
}

TEST(Verdict, AWrongStepThatRunsAgainLeavesNoTrace) {
  const std::vector<Outcome> clean = ServeClean();
  for (const int64_t step : {1, 2, 5, 20}) {
    EngineStats stats;
    const auto outcomes =
        ServeAll(VerdictOptions(), {.first_wrong = step, .last_wrong = step, .action = Action::kRunAgain},
                 false, &stats);
    for (size_t i = 0; i < kRequests; ++i) EXPECT_EQ(outcomes[i].tokens, clean[i].tokens) << step << " " << i;
    EXPECT_EQ(stats.discarded_steps, 1);
    EXPECT_EQ(stats.recomputed_seqs, 0);
    EXPECT_EQ(stats.retracted_tokens, 0);
    EXPECT_EQ(stats.generation_tokens, int64_t{kRequests} * kTokens);
  }
}

// The control: without a verdict the wrong steps show in the text.
TEST(Verdict, AWrongStepThatIsCommittedChangesTheText) {
  const std::vector<Outcome> clean = ServeClean();
  const auto outcomes =
      ServeAll(VerdictOptions(), {.first_wrong = 1, .last_wrong = 8, .action = Action::kCommit}, true);
  EXPECT_NE(outcomes[0].tokens, clean[0].tokens);
}

TEST(Verdict, TokensThatNobodyReadAreTakenBackAndComeOutRight) {
  const std::vector<Outcome> clean = ServeClean();
  for (const int64_t blocks : {64, 20}) {  // 20: some are preempted while others run
    for (const int64_t noticed : {1, 3, 9, 30}) {
      SCOPED_TRACE(noticed);
      EngineStats stats;
      const auto outcomes =
          ServeAll(VerdictOptions(blocks),
                   {.first_wrong = 1, .last_wrong = noticed, .action = Action::kRecomputeAll}, true, &stats);
      for (size_t i = 0; i < kRequests; ++i) {
        // One that had ended before the wrong kernel was noticed is past help.
        if (outcomes[i].tokens != clean[i].tokens) {
          EXPECT_GT(noticed, int64_t{kTokens}) << i;
        }
      }
      EXPECT_EQ(outcomes[kRequests - 1].tokens, clean[kRequests - 1].tokens);
      EXPECT_EQ(stats.discarded_steps, 1);
      EXPECT_GE(stats.recomputed_seqs, 1);
      EXPECT_EQ(stats.retracted_tokens > 0, noticed > 1);
      EXPECT_EQ(stats.free_blocks, stats.total_blocks);
    }
  }
}

// What was read stays; what follows is what a right kernel makes of the prompt and it.
TEST(Verdict, TokensThatWereReadStayAndTheRestFollowsFromThem) {
  const auto outcomes =
      ServeAll(VerdictOptions(), {.first_wrong = 1, .last_wrong = 9, .action = Action::kRecomputeAll}, false);
  int continued = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    const Outcome& outcome = outcomes[i];
    ASSERT_EQ(outcome.tokens.size(), static_cast<size_t>(kTokens));
    if (outcome.kept == 0) continue;
    ++continued;
    std::vector<int32_t> prompt = PromptOf(i);
    prompt.insert(prompt.end(), outcome.tokens.begin(),
                  outcome.tokens.begin() + static_cast<std::ptrdiff_t>(outcome.kept));
    Board board;
    board.outcomes.resize(1);
    auto engine = Engine::Start(VerdictOptions(), std::make_unique<WrongRunner>(VerdictOptions(), Plot{}));
    Request request = RequestOf(i, prompt, kTokens - static_cast<int32_t>(outcome.kept));
    request.sink = std::make_unique<BoardSink>(board, 0, false);
    ASSERT_TRUE((*engine)->Submit(std::move(request)));
    std::unique_lock lock(board.mutex);
    ASSERT_TRUE(board.changed.wait_for(lock, std::chrono::seconds(60),
                                       [&] { return board.outcomes[0].reason.has_value(); }));
    EXPECT_EQ(std::vector<int32_t>(outcome.tokens.begin() + static_cast<std::ptrdiff_t>(outcome.kept),
                                   outcome.tokens.end()),
              board.outcomes[0].tokens);
  }
  EXPECT_GE(continued, 2);
}

TEST(Verdict, AnEngineThatStopsEndsEveryRequestWithTheReasonAndTakesNoMore) {
  SetLogLevel(LogLevel::kOff);
  Board board;
  board.outcomes.resize(kRequests + 1);
  auto engine = Engine::Start(
      VerdictOptions(),
      std::make_unique<WrongRunner>(VerdictOptions(), Plot{.last_wrong = 3, .action = Action::kStop}));
  ASSERT_TRUE(engine);
  for (size_t i = 0; i < kRequests; ++i) {
    Request request = RequestOf(i, PromptOf(i), kTokens);
    request.sink = std::make_unique<BoardSink>(board, i, true);
    (void)(*engine)->Submit(std::move(request));  // the last may come when it has stopped already
  }
  for (int i = 0; i < 10000 && (*engine)->stats().stopped_because.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ((*engine)->stats().stopped_because, "a kernel is wrong");
  EXPECT_FALSE((*engine)->stats().healthy);
  Request late = RequestOf(0, PromptOf(0), kTokens);
  late.sink = std::make_unique<BoardSink>(board, kRequests, true);
  const auto refused = (*engine)->Submit(std::move(late));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("a kernel is wrong"), std::string::npos);
  engine->reset();  // checks that no block has leaked
  EXPECT_EQ(board.outcomes[0].reason, FinishReason::kError);
  EXPECT_EQ(board.outcomes[0].error, "a kernel is wrong");
  EXPECT_LT(board.outcomes[0].tokens.size(), 3u);
  SetLogLevel(LogLevel::kInfo);
}

}  // namespace
}  // namespace attest::testing
