// The step loop without a thread: Schedule, Run, Commit by hand, with every invariant of the scheduler and
// the block pool checked at each step. Test-only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "engine/commit.h"
#include "engine/engine.h"
#include "engine/prefix_caches.h"
#include "engine/prompt_scorer.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/step_batch.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {

// TokenLogprobs that can be compared: bit for bit, since logits are the same in any company.
struct Scored {
  int32_t token = 0, rank = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
  bool operator==(const Scored&) const = default;
};

inline Scored ScoredOf(const TokenLogprobs& scores) {
  Scored scored{.token = scores.token, .rank = scores.rank, .logprob = scores.logprob, .top = {}};
  for (const IdLogprob& entry : scores.top) scored.top.emplace_back(entry.id, entry.logprob);
  return scored;
}

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<Scored> logprobs;  // of the tokens and the stop token, where they are wanted
  std::vector<Scored> prompt;    // of the prompt, where they are wanted
  std::optional<FinishReason> reason;
  std::optional<int32_t> stop_token;
  std::string error;
  bool operator==(const Outcome&) const = default;
};

class RecordingSink final : public TokenSink {
 public:
  explicit RecordingSink(Outcome* outcome) : outcome_(outcome) {}
  void OnToken(int32_t token) override {
    EXPECT_FALSE(outcome_->reason) << "a token after the end";
    outcome_->tokens.push_back(token);
  }
  void OnLogprobs(TokenLogprobs logprobs) override {
    EXPECT_EQ(outcome_->logprobs.size(), outcome_->tokens.size());
    outcome_->logprobs.push_back(ScoredOf(logprobs));
  }
  void OnPromptLogprobs(std::vector<TokenLogprobs> logprobs) override {
    EXPECT_TRUE(outcome_->tokens.empty() && outcome_->prompt.empty())
        << "the prompt was scored late, or twice";
    for (const TokenLogprobs& scores : logprobs) outcome_->prompt.push_back(ScoredOf(scores));
  }
  void OnFinish(FinishReason reason, std::optional<int32_t> stop_token, const Error* error) override {
    EXPECT_FALSE(outcome_->reason) << "finished twice";
    outcome_->reason = reason;
    outcome_->stop_token = stop_token;
    if (error != nullptr) outcome_->error = error->message;
  }

 private:
  Outcome* outcome_;
};

// A request without its sink, so that it can be submitted many times.
struct RequestSpec {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::vector<int32_t> eos_ids;
  int32_t priority = 0;
  std::string cache_salt = {};
};

inline std::vector<int32_t> Prompt(int32_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % kToyVocab);
  return prompt;
}

// Greedy.
inline RequestSpec Spec(std::vector<int32_t> prompt, int32_t max_tokens) {
  RequestSpec spec{.prompt = std::move(prompt), .sampling = {}, .eos_ids = {}};
  spec.sampling.temperature = 0;
  spec.sampling.max_tokens = max_tokens;
  return spec;
}

class SequentialEngine {
 public:
  // `hash`: tests of collisions put a worse one in place of the cache's own.
  SequentialEngine(const EngineOptions& options, StepRunner& runner,
                   BlockHash (*hash)(std::span<const std::byte>, uint64_t) = &HashBytes)
      : options_(options),
        runner_(runner),
        pool_(std::move(*BlockPool::Create(options.num_blocks))),
        caches_(options, pool_, 1, hash),
        scheduler_({.block_size = options.block_size,
                    .max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = options.max_num_batched_tokens,
                    .long_prefill_tokens = options.long_prefill_tokens,
                    .policy = options.policy,
                    .windows = options.kv_windows},
                   pool_, caches_.pointers()),
        samplers_(1) {}

  Sequence* Add(const RequestSpec& spec, Outcome* outcome) {
    auto seq = std::make_unique<Sequence>();
    seq->id = ++next_id_;
    seq->tokens = spec.prompt;
    seq->prompt_len = static_cast<int32_t>(spec.prompt.size());
    seq->seed = spec.sampling.seed.value_or(0);
    seq->request.sampling = spec.sampling;
    seq->request.eos_ids = spec.eos_ids;
    seq->request.priority = spec.priority;
    const CacheKey keys[] = {{"salt", spec.cache_salt}};
    seq->tables.resize(options_.kv_windows.size());
    for (KvTable& table : seq->tables) table.chain.keys = JoinCacheKeys(keys);
    seq->request.sink = std::make_unique<RecordingSink>(outcome);
    return scheduler_.Add(std::move(seq));
  }

  // One step; the plan stays readable until the next call.
  const StepPlan& Step() {
    const Sequence* first = scheduler_.running().empty() ? nullptr : scheduler_.running().front().get();
    const StepPlan& plan = scheduler_.Schedule();
    CheckPlan(plan, first);
    CheckPool();
    BuildStepBatch(plan, options_.block_size, batch_);
    logits_.assign(batch_.logit_rows.size() * static_cast<size_t>(options_.vocab_size), 0.0f);
    const auto logits = View<float, 2>::Dense(
        logits_.data(), {static_cast<int64_t>(batch_.logit_rows.size()), options_.vocab_size});
    Status status = runner_.Run(batch_, logits);
    std::vector<Expected<int32_t>> tokens;
    if (status) {
      if (on_logits) on_logits(plan, logits);
      MakeSampleJobs(plan, logits, jobs_);
      tokens.assign(jobs_.size(), -1);
      SampleAll(jobs_, samplers_, nullptr, tokens);
      tile_.resize(static_cast<size_t>(kTileRows * options_.vocab_size));
      status = prompt_scorer_.Score(plan, batch_, runner_,
                                    View<float, 2>::Dense(tile_.data(), {kTileRows, options_.vocab_size}),
                                    scheduler_);
    }
    if (status) {
      Commit(plan, tokens, {}, options_.max_model_len, scheduler_, result_);
    } else {
      CommitFailure(plan, status.error(), scheduler_);
    }
    ++steps_;
    Deliver();
    return plan;
  }

  void Abort(Sequence* seq) {
    scheduler_.Finish(*seq, FinishReason::kAbort);
    Deliver();
  }

  // Runs until nothing is left. `max_steps` bounds it: someone starves otherwise.
  void Finish(int64_t max_steps) {
    for (int64_t i = 0; !scheduler_.idle(); ++i) {
      ASSERT_LT(i, max_steps) << "not finished";
      Step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(pool_.num_free(), pool_.num_usable()) << "blocks leaked";
  }

  void ClearCache() {
    caches_.Clear();
    has_cleared_ = true;
    CheckPool();
  }

  // Sees the logits of every step before they are sampled; one row per sequence that samples, in plan order.
  std::function<void(const StepPlan&, View<const float, 2>)> on_logits;
  bool checks_invariants = true;  // most of the time of a small step

  [[nodiscard]] Scheduler& scheduler() { return scheduler_; }
  [[nodiscard]] BlockPool& pool() { return pool_; }
  [[nodiscard]] PrefixCache* cache(size_t group = 0) {
    return caches_.empty() ? nullptr : caches_.all()[group].get();
  }
  [[nodiscard]] int64_t steps() const { return steps_; }

 private:
  void Deliver() {
    for (const auto& seq : scheduler_.TakeFinished()) {
      for (const KvTable& table : seq->tables) EXPECT_TRUE(table.blocks.empty());
      seq->request.sink->OnFinish(*seq->finish, seq->stop_token, seq->error ? &*seq->error : nullptr);
    }
    CheckPool();
  }

  void CheckPlan(const StepPlan& plan, const Sequence* first) {
    if (!checks_invariants) return;
    ASSERT_FALSE(plan.seqs.empty());
    ASSERT_TRUE(first == nullptr || plan.seqs[0].seq == first) << "the oldest sequence was passed over";
    ASSERT_LE(plan.num_tokens, options_.max_num_batched_tokens);
    ASSERT_LE(scheduler_.running().size(), static_cast<size_t>(options_.max_num_seqs));
    std::set<const Sequence*> seen;
    int32_t total = 0;
    for (const ScheduledSeq& share : plan.seqs) {
      ASSERT_TRUE(seen.insert(share.seq).second);
      ASSERT_EQ(share.seq->state, SequenceState::kRunning);
      ASSERT_EQ(share.begin, share.seq->computed);
      ASSERT_GE(share.count, 1);
      ASSERT_LE(share.begin + share.count, share.seq->known());
      ASSERT_EQ(share.samples, share.begin + share.count == share.seq->known());
      const int32_t end = share.begin + share.count;
      for (size_t g = 0; g < share.seq->tables.size(); ++g) {
        const std::vector<int32_t>& blocks = share.seq->tables[g].blocks;
        ASSERT_EQ(static_cast<int32_t>(blocks.size()), (end + options_.block_size - 1) / options_.block_size);
        for (int32_t at = share.begin / options_.block_size; at * options_.block_size < end; ++at) {
          const int32_t block = blocks[static_cast<size_t>(at)];
          ASSERT_EQ(pool_.refs(block), 1) << "block " << block << " is shared and would be written";
          ASSERT_FALSE(pool_.is_kept(block)) << "block " << block << " is in the cache and would be written";
        }
        if (const KvWindow& window = options_.kv_windows[g]) {
          // At most the keys from the first that its first row sees to its last, which touch at most so many.
          const int64_t keys = int64_t{*window} - 1 + share.count;
          ASSERT_LE(std::ssize(blocks) - std::ranges::count(blocks, kNullBlock),
                    (keys - 1 + options_.block_size - 1) / options_.block_size + 1);
        }
        // Every key that the first row sees is there, and nothing that no row sees is held.
        const int32_t first_seen = FirstSeen(options_.kv_windows[g], share.begin) / options_.block_size;
        for (int32_t at = 0; at < static_cast<int32_t>(blocks.size()); ++at) {
          ASSERT_EQ(blocks[static_cast<size_t>(at)] == kNullBlock, at < first_seen)
              << "group " << g << ", block " << at << " of a row at " << share.begin;
        }
      }
      total += share.count;
    }
    ASSERT_EQ(total, plan.num_tokens);
  }

  void CheckPool() {
    if (!checks_invariants) return;
    std::map<int32_t, int32_t> owners;
    for (const auto& seq : scheduler_.running()) {
      std::set<int32_t> own;
      for (const KvTable& table : seq->tables) {
        for (const int32_t block : table.blocks) {
          if (block == kNullBlock) continue;
          ASSERT_TRUE(own.insert(block).second) << "block " << block << " twice in the tables of a sequence";
          ++owners[block];
        }
      }
    }
    for (const auto& seq : scheduler_.waiting()) {
      for (const KvTable& table : seq->tables) ASSERT_TRUE(table.blocks.empty());
      ASSERT_EQ(seq->computed, 0);
    }
    for (const auto& [block, count] : owners) {
      ASSERT_EQ(pool_.refs(block), count);
      ASSERT_TRUE(count == 1 || pool_.is_kept(block) || has_cleared_)
          << "block " << block << " was never published";
    }
    ASSERT_EQ(static_cast<int64_t>(owners.size()), pool_.num_used());
    ASSERT_EQ(pool_.num_free() + pool_.num_used() + 1, options_.num_blocks);
    ASSERT_FALSE(owners.contains(kNullBlock));
    for (const int32_t block : pool_.FreeList()) ASSERT_FALSE(owners.contains(block)) << block;
    int64_t kept = 0;
    for (int32_t block = 1; block < options_.num_blocks; ++block) {
      const auto knowing =
          std::ranges::count_if(caches_.all(), [block](const auto& cache) { return cache->Knows(block); });
      ASSERT_EQ(knowing, pool_.is_kept(block) ? 1 : 0) << block;
      kept += pool_.is_kept(block) ? 1 : 0;
    }
    int64_t cached = 0;
    for (const auto& cache : caches_.all()) cached += cache->num_blocks();
    ASSERT_EQ(kept, cached);
  }

  const EngineOptions options_;
  StepRunner& runner_;
  BlockPool pool_;
  PrefixCaches caches_;
  Scheduler scheduler_;
  StepBatch batch_;
  static constexpr int64_t kTileRows = 3;  // prompts are scored in several parts
  PromptScorer prompt_scorer_;
  std::vector<float> logits_, tile_;
  std::vector<SampleJob> jobs_;
  std::vector<Sampler> samplers_;
  CommitResult result_;
  RequestId next_id_ = 0;
  int64_t steps_ = 0;
  bool has_cleared_ = false;
};

inline ToyOptions SizesOf(const EngineOptions& options) {
  return {.num_blocks = options.num_blocks,
          .block_size = options.block_size,
          .vocab_size = options.vocab_size,
          .windows = options.kv_windows};
}

// What a request gets from a toy engine that nobody else uses, in one chunk and without a prefix cache.
inline Outcome RunAlone(const RequestSpec& spec, const std::vector<KvWindow>& windows = {std::nullopt}) {
  const EngineOptions options{.block_size = 16,
                              .num_blocks = 100,
                              .max_model_len = 1000,
                              .max_num_seqs = 1,
                              .max_num_batched_tokens = 4096,
                              .vocab_size = kToyVocab,
                              .kv_windows = windows,
                              .prefix_caching = false};
  ToyRunner runner(SizesOf(options));
  SequentialEngine engine(options, runner);
  Outcome outcome;
  engine.Add(spec, &outcome);
  engine.Finish(2000);
  return outcome;
}

}  // namespace attest::testing
