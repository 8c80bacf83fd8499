// Schedule, the first verb of a step: decides who runs, for how many tokens, in which blocks. Pure host logic
// on sequences and the block pool; it knows no model, no clock and no thread.
//
// There are no phases. A sequence has known tokens and computed tokens, and each step lets the second catch
// up with the first under the step's token budget; prefill, chunked prefill, decode and the recomputation
// after a preemption are all this one rule.
//
// There is one order, and running sequences, the queue and preemption all follow it: by arrival (fcfs), or by
// priority and then arrival. Running sequences go first, then waiting ones, which do not overtake. When
// blocks run out the last of the running sequences gives all of its own back and returns to its place in the
// queue with its generated tokens kept; they are computed again later, behind what the prefix cache still
// has.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_groups.h"
#include "cache/prefix_cache.h"
#include "engine/engine.h"
#include "engine/sequence.h"

namespace attest {

struct SchedulerOptions {
  int block_size = 16;
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 2048;
  int32_t long_prefill_tokens = 0;  // EngineOptions::long_prefill_tokens
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  std::vector<KvWindow> windows = {std::nullopt};  // one per KV group; blocks behind a window are given back
};

// One sequence's share of a step: tokens [begin, begin + count) of its known tokens are computed.
struct ScheduledSeq {
  Sequence* seq = nullptr;
  int32_t begin = 0;
  int32_t count = 0;
  bool samples = false;  // the share reaches the last known token: the next one is sampled from its logits
};

// Valid until the next Schedule or TakeFinished.
struct StepPlan {
  std::vector<ScheduledSeq> seqs;
  int32_t num_tokens = 0;
  int32_t num_preempted = 0;
};

class Scheduler {
 public:
  // `caches`: one per KV group, or none. REQUIRES: positive limits; pool and caches outlive the scheduler.
  Scheduler(const SchedulerOptions& options, BlockPool& pool, std::vector<PrefixCache*> caches = {});

  // To its place in the queue. REQUIRES: the sequence fits the pool when it alone runs; it has one table per
  // KV group.
  Sequence* Add(std::unique_ptr<Sequence> seq);

  // Plans one step. Blocks for every planned token are taken here; `computed` of a sequence that runs does
  // not move before Commit, so a step that failed to run leaves sequences as they were. One that is admitted
  // begins behind what the prefix cache has. Empty only when nothing waits or runs.
  const StepPlan& Schedule();
  // The tokens of this share were computed: its full blocks may be shared from now on. REQUIRES: Run
  // succeeded.
  void Advance(const ScheduledSeq& share);
  // From now on no sequence shares what it computes, and none begins behind what another computed.
  void StopSharing() { shares_ = false; }
  // What the sequence computed is not to be shared: its logits were not numbers.
  void Distrust(Sequence& seq);

  // Sends every running sequence back to the queue, in its order, to be computed again from its first token:
  // what the KV cache holds is not to be trusted. Returns how many. Ends the plan in use.
  int32_t RequeueAll();

  // Marks a sequence as over. It keeps its place and its blocks until TakeFinished, so a plan in use stays
  // whole. The first reason stays.
  void Finish(Sequence& seq, FinishReason reason);
  // Removes the sequences marked by Finish, with their blocks released. One pass over the running ones, and
  // over the queue only when one of its own was marked.
  std::vector<std::unique_ptr<Sequence>> TakeFinished();

  [[nodiscard]] const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  [[nodiscard]] const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  [[nodiscard]] bool idle() const { return running_.empty() && waiting_.empty(); }
  [[nodiscard]] int64_t num_preemptions() const { return num_preemptions_; }
  // Tokens of sequences that looked into the prefix cache at their first admission, and those found there.
  [[nodiscard]] int64_t cache_queries() const { return cache_queries_; }
  [[nodiscard]] int64_t cache_hits() const { return cache_hits_; }

 private:
  [[nodiscard]] int64_t BlocksFor(int64_t tokens) const {
    return (tokens + options_.block_size - 1) / options_.block_size;
  }
  [[nodiscard]] int64_t PeakBlocksFor(int64_t tokens) const {
    return PeakBlocks({.windows = options_.windows,
                       .block_size = options_.block_size,
                       .max_step_tokens = options_.max_num_batched_tokens},
                      tokens);
  }
  [[nodiscard]] int64_t Missing(const Sequence& seq, int64_t tokens) const;
  void TakeBlocks(Sequence& seq, int64_t tokens);
  void GiveBackPassed(Sequence& seq);
  void ReleaseAll(Sequence& seq);
  [[nodiscard]] size_t FindHits(Sequence& seq, std::vector<std::vector<int32_t>>& hits);
  [[nodiscard]] int32_t ShareOf(const Sequence& seq, int32_t budget, bool others_follow) const;
  void ScheduleRunning(int32_t& budget);
  void AdmitWaiting(int32_t& budget);
  bool FindPlace(Sequence& seq);
  [[nodiscard]] bool IsBeingComputed(const Sequence& seq) const;
  [[nodiscard]] static int32_t MostFromCache(const Sequence& seq);
  void PreemptLast();
  [[nodiscard]] bool GoesBefore(const Sequence& a, const Sequence& b) const;
  void Enqueue(std::unique_ptr<Sequence> seq);
  void RequeueLast();
  void Plan(Sequence& seq, int32_t count, int32_t& budget);

  const SchedulerOptions options_;
  BlockPool& pool_;
  const std::vector<PrefixCache*> caches_;
  bool shares_ = true;                              // uses the caches
  std::vector<std::unique_ptr<Sequence>> running_;  // both in the order of the policy
  std::deque<std::unique_ptr<Sequence>> waiting_;
  bool any_finished_ = false;
  bool any_waiting_finished_ = false;
  StepPlan plan_;
  int64_t num_preemptions_ = 0;
  int64_t cache_queries_ = 0, cache_hits_ = 0;
};

}  // namespace attest
