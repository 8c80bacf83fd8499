// What one request costs the others: a step that fails is run again for each sequence alone, so that its
// cause ends alone; K and V that were found wrong and are served on are shared with nobody; what prompts
// share is computed once.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/log.h"
#include "engine/engine.h"
#include "tests/engine/recorded_request.h"

namespace attest::testing {
namespace {

EngineOptions FaultOptions() {
  return {.block_size = 8,
          .num_blocks = 64,
          .max_model_len = 200,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 64,
          .vocab_size = kToyVocab};
}

std::shared_ptr<Record> Submit(Engine& engine, std::vector<int32_t> prompt, int32_t max_tokens) {
  auto record = std::make_shared<Record>();
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sink = std::make_unique<RecordSink>(record);
  const auto id = engine.Submit(std::move(request));
  EXPECT_TRUE(id) << id.error().message;
  return record;
}

std::unique_ptr<Engine> Start(const EngineOptions& options, ToyOptions toy) {
  toy.num_blocks = options.num_blocks;
  toy.block_size = options.block_size;
  toy.vocab_size = options.vocab_size;
  auto engine = Engine::Start(options, std::make_unique<ToyRunner>(toy));
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

// Refuses every step in which a sequence decodes its 45th token, as a kernel would whose contract ends there.
Status RefuseLength45(const StepBatch& batch) {
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    const bool decodes = batch.q_begin.length(seq) == 1;
    if (decodes && batch.kv_len[static_cast<size_t>(seq)] == 45)
      return Fail(ErrorCode::kUnsupported, "no kernel takes kv_len 45", "kv_len");
  }
  return {};
}

TEST(EngineFaults, ARefusedLengthEndsItsRequestAndNobodyElse) {
  SetLogLevel(LogLevel::kOff);
  const auto engine = Start(FaultOptions(), {.before_run = RefuseLength45});
  const auto healthy_engine = Start(FaultOptions(), {});
  std::vector<std::shared_ptr<Record>> records, expected;
  // The second reaches 45 tokens while the others decode beside it; the last has them in its prompt.
  for (const auto& [length, max_tokens] : {std::pair(10, 30), {35, 40}, {3, 30}, {20, 20}, {60, 10}}) {
    const std::vector<int32_t> prompt =
        RandomPrompt(static_cast<uint32_t>(length), static_cast<size_t>(length));
    records.push_back(Submit(*engine, prompt, max_tokens));
    expected.push_back(Submit(*healthy_engine, prompt, max_tokens));
  }
  for (size_t i = 0; i < records.size(); ++i) {
    records[i]->Wait();
    expected[i]->Wait();
    if (i == 1) {
      EXPECT_EQ(records[i]->reason, FinishReason::kError);
      EXPECT_EQ(records[i]->error, "no kernel takes kv_len 45");
      EXPECT_EQ(records[i]->tokens.size(), 10u);  // those of 35 to 44 tokens
    } else {
      EXPECT_EQ(records[i]->reason, FinishReason::kLength) << i << ": " << records[i]->error;
      EXPECT_EQ(records[i]->tokens, expected[i]->tokens) << i;
    }
  }
  const EngineStats stats = engine->stats();
  EXPECT_TRUE(stats.healthy);
  EXPECT_EQ(stats.failed_steps, 2);  // with its companions, then alone
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  SetLogLevel(LogLevel::kInfo);
}

// A runner whose second step is wrong and served on, as with --on-mismatch log.
class SuspectRunner final : public StepRunner {
 public:
  explicit SuspectRunner(const EngineOptions& options)
      : toy_({.num_blocks = options.num_blocks, .block_size = options.block_size, .vocab_size = kToyVocab}) {}
  Status Run(const StepBatch& batch, View<float, 2> logits) override {
    ++steps_;
    return toy_.Run(batch, logits);
  }
  StepVerdict TakeVerdict() override { return {.error = {}, .ends_sharing = steps_ == 2}; }

 private:
  ToyRunner toy_;
  int64_t steps_ = 0;
};

TEST(EngineFaults, BlocksThatWereFoundWrongAndAreServedOnAreNobodysPrefix) {
  SetLogLevel(LogLevel::kOff);
  auto engine = Engine::Start(FaultOptions(), std::make_unique<SuspectRunner>(FaultOptions()));
  ASSERT_TRUE(engine);
  const std::vector<int32_t> prompt = RandomPrompt(1, 40);
  for (int i = 0; i < 3; ++i) {
    const auto record = Submit(**engine, prompt, 6);
    record->Wait();
    EXPECT_EQ(record->reason, FinishReason::kLength);
  }
  EXPECT_EQ((*engine)->stats().prefix_cache_hits, 0);
  SetLogLevel(LogLevel::kInfo);
}

// The choices of one prompt arrive together, and so do prompts with one preamble: what they share is computed
// once.
TEST(EngineFaults, PromptsThatArriveTogetherComputeWhatTheyShareOnce) {
  for (const int32_t budget : {64, 512}) {
    ToyLog log;
    EngineOptions options = FaultOptions();
    options.max_num_batched_tokens = budget;
    options.num_blocks = 200;
    std::atomic<bool> open{false};
    const auto engine = Start(options, {.log = &log, .before_run = [&open](const StepBatch&) -> Status {
                                          while (!open) std::this_thread::yield();
                                          return {};
                                        }});
    const std::vector<int32_t> prompt = RandomPrompt(1, 101);
    const auto first = Submit(*engine, {3}, 3);  // holds the first step until all are there
    std::vector<std::shared_ptr<Record>> records;
    for (int i = 0; i < 5; ++i) records.push_back(Submit(*engine, prompt, 4));
    open = true;
    first->Wait();
    for (const auto& record : records) {
      record->Wait();
      EXPECT_EQ(record->reason, FinishReason::kLength);
      EXPECT_EQ(record->tokens, records.front()->tokens);
    }
    // The first computes 101 tokens, the others the five behind twelve blocks of 8; then four tokens each, of
    // which the last is not computed.
    EXPECT_EQ(log.tokens, 3 + 101 + 4 * 5 + 5 * 3) << "budget " << budget;
  }
}

}  // namespace
}  // namespace attest::testing
