// The prefix cache and the policies through the whole step loop, over a model whose text changes with any K
// or V that is not the right one.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/sequential_engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

using Ids = std::vector<int32_t>;

EngineOptions CacheOptions() {
  return {.block_size = 16,
          .num_blocks = 2000,
          .max_model_len = 2000,
          .max_num_seqs = 64,
          .max_num_batched_tokens = 512,
          .vocab_size = kToyVocab};
}

// An engine with its runner.
struct Rig {
  explicit Rig(const EngineOptions& options, decltype(PrefixCacheOptions::hash) hash = &HashBytes)
      : runner({.num_blocks = options.num_blocks, .block_size = options.block_size, .vocab_size = kToyVocab}),
        engine(options, runner, hash) {}
  // One after the other.
  std::vector<Outcome> Serve(const std::vector<RequestSpec>& specs) {
    std::vector<Outcome> outcomes(specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      engine.Add(specs[i], &outcomes[i]);
      engine.Finish(10000);
    }
    return outcomes;
  }
  std::vector<Outcome> ServeTogether(const std::vector<RequestSpec>& specs) {
    std::vector<Outcome> outcomes(specs.size());
    for (size_t i = 0; i < specs.size(); ++i) engine.Add(specs[i], &outcomes[i]);
    engine.Finish(100000);
    return outcomes;
  }
  ToyRunner runner;
  SequentialEngine engine;
};

std::vector<Outcome> WithoutCache(const std::vector<RequestSpec>& specs) {
  EngineOptions options = CacheOptions();
  options.prefix_caching = false;
  return Rig(options).Serve(specs);
}

// Bug case C05: prompt logprobs with the prefix cache, of the wrong tokens or none: cached tokens have no
// logits.
TEST(PrefixCacheEngine, C05ARequestForPromptLogprobsComputesEveryPromptToken) {
  for (const int32_t length : {15, 16, 17, 32, 33}) {
    Rig rig(CacheOptions());
    RequestSpec spec = Spec(Prompt(length, 1), 4);
    spec.sampling.prompt_logprobs = 0;
    int64_t computed = 0;
    rig.engine.on_logits = [&](const StepPlan& plan, View<const float, 2>) { computed += plan.num_tokens; };
    const auto outcomes = rig.Serve({spec, spec});
    EXPECT_EQ(computed, 2 * (length + 3)) << length;
    EXPECT_EQ(outcomes[0], outcomes[1]) << length;
    EXPECT_EQ(std::ssize(outcomes[0].prompt), length - 1);
    EXPECT_EQ(rig.engine.scheduler().cache_queries(), 0);
    computed = 0;
    spec.sampling.prompt_logprobs.reset();
    EXPECT_EQ(rig.Serve({spec})[0].tokens, outcomes[0].tokens);
    EXPECT_EQ(computed, length + 3 - (length - 1) / 16 * 16) << "what it computed is shared all the same";
  }
}

// Bug case C09: greedy answers change after an earlier batch was stopped by the front end.
TEST(PrefixCacheEngine, C09SequencesStoppedInTheMiddleLeaveNothingWrong) {
  Rig rig(CacheOptions());
  const RequestSpec first = Spec(Prompt(100, 1), 50), second = Spec(Prompt(70, 2), 50);
  for (int steps = 1; steps < 40; steps += 3) {
    std::vector<Outcome> stopped(2);
    Sequence* a = rig.engine.Add(first, &stopped[0]);
    Sequence* b = rig.engine.Add(second, &stopped[1]);
    for (int i = 0; i < steps; ++i) rig.engine.Step();
    rig.engine.Abort(a);
    rig.engine.Abort(b);
    // The next turns of the same chats find what was generated, whose newest token was never computed.
    std::vector<RequestSpec> next{first, second};
    for (size_t i = 0; i < 2; ++i) {
      for (const int32_t id : stopped[i].tokens) next[i].prompt.push_back(id);
      for (const int32_t id : Prompt(3, 90)) next[i].prompt.push_back(id);
      next[i].sampling.max_tokens = 4;
    }
    EXPECT_EQ(rig.Serve(next), WithoutCache(next)) << steps;
  }
  EXPECT_EQ(rig.Serve({first, second}), WithoutCache({first, second}));
  EXPECT_GT(rig.engine.scheduler().cache_hits(), 0);
}

// Bug case C24, with the cache: preempted requests come back with missing text.
TEST(PrefixCacheEngine, C24PreemptedSequencesComeBackWholeAndFindTheirOwnBlocks) {
  EngineOptions options = CacheOptions();
  options.num_blocks = 12;
  Rig rig(options);
  std::vector<RequestSpec> specs;
  for (uint32_t i = 0; i < 3; ++i) specs.push_back(Spec(Prompt(40, 20 + i), 60));
  int64_t computed = 0;
  rig.engine.on_logits = [&](const StepPlan& plan, View<const float, 2>) { computed += plan.num_tokens; };
  EXPECT_EQ(rig.ServeTogether(specs), WithoutCache(specs));
  EXPECT_GE(rig.engine.scheduler().num_preemptions(), 1);
  const int64_t with = computed;
  options.prefix_caching = false;
  Rig plain(options);
  computed = 0;
  plain.engine.on_logits = [&](const StepPlan& plan, View<const float, 2>) { computed += plan.num_tokens; };
  plain.ServeTogether(specs);
  EXPECT_LE(with, computed);
}

// Bug case C27 through the loop: with one hash for everything all answers are still right.
TEST(PrefixCacheEngine, C27AnswersAreRightWhenEveryHashCollides) {
  Rig rig(CacheOptions(),
          [](std::span<const std::byte>, uint64_t) { return BlockHash{.low = 1, .high = 1}; });
  std::vector<RequestSpec> specs;
  for (uint32_t i = 0; i < 30; ++i) {
    Ids prompt = Prompt(48, i % 3);
    for (const int32_t id : Prompt(static_cast<int32_t>(1 + i), 7)) prompt.push_back(id);
    specs.push_back(Spec(std::move(prompt), 5));
  }
  EXPECT_EQ(rig.Serve(specs), WithoutCache(specs));
  EXPECT_GE(rig.engine.scheduler().cache_hits(), 27 * 48);
}

// Bug case C28: repeated prompts give garbage at lengths around chunk and block borders.
TEST(PrefixCacheEngine, C28TheSecondAnswerEqualsTheFirstAroundEveryBorder) {
  for (const int32_t length : {1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025}) {
    Rig rig(CacheOptions());
    const RequestSpec spec = Spec(Prompt(length, 3), 18);
    const auto outcomes = rig.Serve({spec, spec, spec});
    EXPECT_EQ(outcomes[1], outcomes[0]) << length;
    EXPECT_EQ(outcomes[2], outcomes[0]) << length;
    EXPECT_EQ(outcomes[0], WithoutCache({spec})[0]) << length;
    EXPECT_EQ(rig.engine.scheduler().cache_hits(), 2 * ((length - 1) / 16 * 16)) << length;
  }
}

// Bug cases C29 and A33: many requests in flight share a long prefix.
TEST(PrefixCacheEngine, C29ManyThatShareAPrefixInFlightGetTheirOwnTexts) {
  EngineOptions options = CacheOptions();
  options.max_num_seqs = 100;
  Rig rig(options);
  const Ids shared = Prompt(200, 4);
  std::vector<RequestSpec> specs;
  for (uint32_t i = 0; i < 100; ++i) {
    Ids prompt = shared;
    for (const int32_t id : Prompt(static_cast<int32_t>(i % 20), 100 + i)) prompt.push_back(id);
    specs.push_back(Spec(std::move(prompt), 6));
  }
  EXPECT_EQ(rig.ServeTogether(specs), WithoutCache(specs));
  EXPECT_GT(rig.engine.scheduler().cache_hits(), 90 * 192);  // all but those of the first step
}

// Bug case A43: text from other prompts when the pool is so small that every step evicts.
TEST(PrefixCacheEngine, A43ForeignTextNeverAppearsInAFullPool) {
  EngineOptions options = CacheOptions();
  options.block_size = 4;
  options.num_blocks = 26;
  options.max_num_batched_tokens = 48;
  options.max_num_seqs = 5;
  Rig rig(options);
  std::vector<RequestSpec> specs;
  for (uint32_t i = 0; i < 96; ++i) {
    Ids prompt = Prompt(24, i % 4);
    for (const int32_t id : Prompt(static_cast<int32_t>(1 + i % 9), i)) prompt.push_back(id);
    specs.push_back(Spec(std::move(prompt), static_cast<int32_t>(4 + i % 13)));
  }
  EXPECT_EQ(rig.ServeTogether(specs), WithoutCache(specs));
  EXPECT_GT(rig.engine.scheduler().cache_hits(), 0);
  EXPECT_GT(rig.engine.scheduler().num_preemptions(), 0);
}

TEST(PrefixCacheEngine, AFailedStepLeavesNothingOfItselfInTheCache) {
  class WritesThenFails final : public StepRunner {
   public:
    explicit WritesThenFails(const ToyOptions& toy) : toy_(toy) {}
    Status Run(const StepBatch& batch, View<float, 2> logits) override {
      return ++runs_ != 2 ? toy_.Run(batch, logits) : FailHalfWay(toy_, batch, logits);
    }

   private:
    ToyRunner toy_;
    int runs_ = 0;
  };
  EngineOptions options = CacheOptions();
  options.max_num_batched_tokens = 64;
  WritesThenFails runner({.num_blocks = options.num_blocks, .block_size = 16, .vocab_size = kToyVocab});
  SequentialEngine engine(options, runner);
  const RequestSpec spec = Spec(Prompt(200, 5), 10);
  Outcome broken, again;
  engine.Add(spec, &broken);
  engine.Finish(100);
  EXPECT_EQ(broken.reason, FinishReason::kError);
  EXPECT_EQ(engine.cache()->num_blocks(), 4);  // the first step's 64 tokens
  engine.Add(spec, &again);
  engine.Finish(100);
  EXPECT_EQ(engine.scheduler().cache_hits(), 64);
  EXPECT_EQ(again, WithoutCache({spec})[0]);
}

// One prompt whose rows are not written must not fail every later one that begins with it.
TEST(PrefixCacheEngine, ASequenceWithoutLogitsTakesItsBlocksOutOfTheCache) {
  class SkipsOnce final : public StepRunner {
   public:
    explicit SkipsOnce(const ToyOptions& toy) : toy_(toy) {}
    Status Run(const StepBatch& batch, View<float, 2> logits) override {
      ATTEST_RETURN_IF_ERROR(toy_.Run(batch, logits));
      if (++runs_ == 4) *logits.At(0) = std::numeric_limits<float>::quiet_NaN();
      return {};
    }

   private:
    ToyRunner toy_;
    int runs_ = 0;
  };
  EngineOptions options = CacheOptions();
  options.max_num_batched_tokens = 64;
  SkipsOnce runner({.num_blocks = options.num_blocks, .block_size = 16, .vocab_size = kToyVocab});
  SequentialEngine engine(options, runner);
  const RequestSpec spec = Spec(Prompt(200, 5), 10);
  Outcome broken, again;
  engine.Add(spec, &broken);
  for (int i = 0; i < 3; ++i) engine.Step();
  EXPECT_EQ(engine.cache()->num_blocks(), 12);
  engine.Step();
  EXPECT_EQ(broken.reason, FinishReason::kError);
  EXPECT_EQ(engine.cache()->num_blocks(), 0);
  engine.Add(spec, &again);
  engine.Finish(100);
  EXPECT_EQ(engine.scheduler().cache_hits(), 0);
  EXPECT_EQ(again, WithoutCache({spec})[0]);
}

TEST(PrefixCacheEngine, RequestsShareOnlyWithinTheirSalt) {
  Rig rig(CacheOptions());
  RequestSpec spec = Spec(Prompt(50, 6), 3);
  const auto cached = [&](const std::string& salt) {
    spec.cache_salt = salt;
    const int64_t before = rig.engine.scheduler().cache_hits();
    rig.Serve({spec});
    return rig.engine.scheduler().cache_hits() - before;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("a"), 48);
  EXPECT_EQ(cached(""), 48);
}

std::string Order(const StepPlan& plan, const std::vector<Sequence*>& seqs) {
  std::string order;
  for (const ScheduledSeq& share : plan.seqs) {
    order += static_cast<char>('A' + (std::ranges::find(seqs, share.seq) - seqs.begin()));
  }
  return order;
}

TEST(Policy, PriorityGoesFirstAndArrivalDecidesBetweenEquals) {
  EngineOptions options = CacheOptions();
  options.max_num_seqs = 2;
  for (const auto& [policy, first, second] :
       {std::tuple{SchedulingPolicy::kPriority, "DB", "EC"}, {SchedulingPolicy::kFcfs, "AB", "CD"}}) {
    options.policy = policy;
    Rig rig(options);
    std::vector<Outcome> outcomes(5);
    std::vector<Sequence*> seqs;
    for (const int32_t priority : {7, 0, 3, -1, 0}) {
      RequestSpec spec = Spec(Prompt(10, 1 + static_cast<uint32_t>(seqs.size())), 2);
      spec.priority = priority;
      seqs.push_back(rig.engine.Add(spec, &outcomes[seqs.size()]));
    }
    EXPECT_EQ(Order(rig.engine.Step(), seqs), first);
    rig.engine.Step();
    EXPECT_EQ(Order(rig.engine.Step(), seqs), second);
    rig.engine.Finish(100);
  }
}

TEST(Policy, TheLeastUrgentGivesItsBlocksBackThoughItCameFirst) {
  EngineOptions options = CacheOptions();
  options.block_size = 4;
  options.num_blocks = 6;
  options.policy = SchedulingPolicy::kPriority;
  Rig rig(options);
  std::vector<Outcome> outcomes(2);
  std::vector<Sequence*> seqs;
  RequestSpec relaxed = Spec(Prompt(8, 1), 8), urgent = Spec(Prompt(8, 2), 8);
  relaxed.priority = 1;
  seqs.push_back(rig.engine.Add(relaxed, &outcomes[0]));
  rig.engine.Step();
  seqs.push_back(rig.engine.Add(urgent, &outcomes[1]));
  EXPECT_EQ(Order(rig.engine.Step(), seqs), "AB");  // admitted behind the one that ran already, for this step
  EXPECT_EQ(rig.engine.scheduler().running()[0].get(), seqs[1]);
  EXPECT_EQ(Order(rig.engine.Step(), seqs), "B");  // it needs a third block: A, with three of five, gives way
  EXPECT_EQ(seqs[0]->num_preemptions, 1);
  EXPECT_EQ(seqs[1]->num_preemptions, 0);
  rig.engine.Finish(100);
  EXPECT_EQ(outcomes, WithoutCache({relaxed, urgent}));
}

}  // namespace
}  // namespace attest::testing
