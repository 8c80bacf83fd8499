#include "engine/engine.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "cache/block_pool.h"
#include "engine/commit.h"
#include "engine/limits.h"
#include "engine/prefix_caches.h"
#include "engine/prompt_scorer.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/step_batch.h"
#include "tensor/buffer.h"

namespace attest {

namespace {

using Clock = std::chrono::steady_clock;

double SecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Rows of logits that one Run may be asked for.
int64_t MaxLogitRows(const EngineOptions& options) {
  return std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<StepRunner> runner, EngineObserver* observer,
             BlockPool pool, Buffer logits)
      : options_(options),
        runner_(std::move(runner)),
        observer_(observer),
        pool_(std::move(pool)),
        caches_(options, pool_, std::random_device{}()),
        scheduler_({.block_size = options.block_size,
                    .max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = options.max_num_batched_tokens,
                    .long_prefill_tokens = options.long_prefill_tokens,
                    .policy = options.policy,
                    .windows = options.kv_windows},
                   pool_, caches_.pointers()),
        logits_(std::move(logits)),
        samplers_(static_cast<size_t>(runner_->team() != nullptr ? runner_->team()->size() : 1)),
        next_seed_(std::random_device{}()) {
    PublishStats();
    thread_ = std::thread([this] { Loop(); });
  }

  ~EngineImpl() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  Expected<RequestId> Submit(Request request) override;
  void Abort(RequestId id) override { End(id, FinishReason::kAbort); }
  void EndText(RequestId id) override { End(id, FinishReason::kStop); }
  bool ResetPrefixCache() override {
    std::future<bool> done;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;
      done = resets_.emplace_back().get_future();
    }
    wake_.notify_one();
    return done.get();
  }
  void Drain() override {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  [[nodiscard]] bool drained() const override {
    const std::lock_guard lock(mutex_);
    return draining_ && in_flight_ == 0;
  }
  [[nodiscard]] EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.num_waiting += static_cast<int64_t>(inbox_.size());
    return stats;
  }
  [[nodiscard]] const EngineOptions& options() const override { return options_; }

 private:
  // Engine thread.
  void Loop();
  bool ResetCacheIfUnused();
  struct Ended {  // by its reader
    RequestId id = 0;
    FinishReason reason = FinishReason::kAbort;
  };
  void End(RequestId id, FinishReason reason);
  void Accept(std::vector<std::unique_ptr<Sequence>> arrived, const std::vector<Ended>& ended);
  void Step();
  Status RunAndCommit(const StepPlan& plan, StepRecord& record);
  void RecomputeAll();
  void StopServing(const Error& error);
  void EndSharing();
  void RunOneByOne(std::vector<ScheduledSeq> shares);
  Status RunAndNote(const StepPlan& plan, StepRecord& record);
  void FailAll(const Error& error);
  void NoteScheduled(const StepPlan& plan, Clock::time_point now);
  void DeliverFinished();
  void PublishStats();

  const EngineOptions options_;
  const std::unique_ptr<StepRunner> runner_;
  EngineObserver* const observer_;

  // Engine thread only.
  BlockPool pool_;
  PrefixCaches caches_;
  Scheduler scheduler_;
  StepBatch batch_;
  PromptScorer prompt_scorer_;
  Buffer logits_;
  std::vector<Sampler> samplers_;
  std::vector<SampleJob> jobs_;
  std::vector<Expected<int32_t>> sampled_;
  CommitResult commit_;
  std::unordered_map<RequestId, Sequence*> by_id_;
  EngineStats counters_;
  int consecutive_failures_ = 0;
  bool shares_ = true;               // the prefix cache is in use, where there is one
  std::optional<Error> stop_error_;  // set once: every request ends with it
  int32_t newly_scheduled_ = 0;      // left the queue since the last PublishStats, by a step or by an end
  int32_t newly_finished_ = 0;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<Ended> ended_;
  std::vector<std::promise<bool>> resets_;  // of the prefix cache
  EngineStats stats_;
  RequestId next_id_ = 1;
  uint64_t next_seed_;
  int64_t queued_ = 0;     // never scheduled yet
  int64_t in_flight_ = 0;  // submitted, OnFinish not called yet
  bool draining_ = false;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses everything above
};

// Seeds that nobody gave: distinct, and 63 bits so that they print as they are given (splitmix64).
int64_t DrawSeed(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<int64_t>((z ^ (z >> 31)) >> 1);
}

Expected<RequestId> EngineImpl::Submit(Request request) {
  ATTEST_RETURN_IF_ERROR(CheckRequest(request, options_));
  auto seq = std::make_unique<Sequence>();
  seq->arrival = Clock::now();
  seq->prompt_len = static_cast<int32_t>(request.prompt.size());
  seq->tokens = std::move(request.prompt);
  seq->request = std::move(request);
  seq->tables.resize(options_.kv_windows.size());
  if (options_.prefix_caching) {
    const CacheKey keys[] = {{"model", options_.cache_key}, {"salt", seq->request.cache_salt}};
    const std::string joined = JoinCacheKeys(keys);
    for (KvTable& table : seq->tables) table.chain.keys = joined;
  }
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (draining_ || stopping_) {
      return Fail(ErrorCode::kUnavailable, "the engine is draining and takes no new requests");
    }
    if (!stats_.stopped_because.empty()) {
      return Fail(ErrorCode::kUnavailable, fmt::format("the engine has stopped: {}", stats_.stopped_because));
    }
    if (queued_ >= options_.max_queue) {
      return Fail(ErrorCode::kUnavailable,
                  fmt::format("{} requests wait already; max_queue is {}", queued_, options_.max_queue));
    }
    id = next_id_++;
    seq->id = id;
    seq->seed = seq->request.sampling.seed ? *seq->request.sampling.seed : DrawSeed(next_seed_);
    ++queued_;
    ++in_flight_;
    inbox_.push_back(std::move(seq));
  }
  wake_.notify_one();
  return id;
}

void EngineImpl::End(RequestId id, FinishReason reason) {
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back({.id = id, .reason = reason});
  }
  wake_.notify_one();
}

void EngineImpl::Loop() {
  runner_->OnThreadStart();
  for (;;) {
    std::vector<std::unique_ptr<Sequence>> arrived;
    std::vector<Ended> ended;
    std::vector<std::promise<bool>> resets;
    bool stop = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] {
        return stopping_ || !inbox_.empty() || !ended_.empty() || !resets_.empty() || !scheduler_.idle();
      });
      arrived.swap(inbox_);
      ended.swap(ended_);
      resets.swap(resets_);
      stop = stopping_;
    }
    Accept(std::move(arrived), ended);
    if (stop_error_) FailAll(*stop_error_);
    if (stop) {
      for (const auto& [id, seq] : by_id_) scheduler_.Finish(*seq, FinishReason::kAbort);
    }
    DeliverFinished();
    for (std::promise<bool>& reset : resets) reset.set_value(ResetCacheIfUnused());
    if (stop) break;
    if (!scheduler_.idle()) Step();
    PublishStats();
  }
  PublishStats();
  ATTEST_CHECK_EQ(pool_.num_free(), pool_.num_usable());  // a block that is not back by now has leaked
}

bool EngineImpl::ResetCacheIfUnused() {
  if (pool_.num_used() > 0 && !caches_.empty()) return false;
  caches_.Clear();
  return true;
}

void EngineImpl::Accept(std::vector<std::unique_ptr<Sequence>> arrived, const std::vector<Ended>& ended) {
  for (auto& seq : arrived) {
    const RequestId id = seq->id;
    by_id_.emplace(id, scheduler_.Add(std::move(seq)));
  }
  for (const Ended& end : ended) {
    if (const auto found = by_id_.find(end.id); found != by_id_.end()) {
      scheduler_.Finish(*found->second, end.reason);
    }
  }
}

void EngineImpl::Step() {
  const Clock::time_point begin = Clock::now();
  const StepPlan& plan = scheduler_.Schedule();
  BuildStepBatch(plan, options_.block_size, batch_);
  NoteScheduled(plan, begin);

  StepRecord record;
  record.num_preempted = plan.num_preempted;
  record.schedule_seconds = SecondsBetween(begin, Clock::now());
  if (const Status status = RunAndNote(plan, record); !status) {
    ++consecutive_failures_;  // once for the plan, however many of it fail alone
    if (plan.seqs.size() > 1) {
      RunOneByOne(plan.seqs);
    } else {
      CommitFailure(plan, status.error(), scheduler_);
    }
  }
  DeliverFinished();
}

Status EngineImpl::RunAndNote(const StepPlan& plan, StepRecord& record) {
  record.num_seqs = batch_.num_seqs();
  record.num_tokens = batch_.num_tokens();
  Status status = RunAndCommit(plan, record);
  if (!status) {
    LogError(fmt::format("step of {} sequences, {} tokens failed: {}", record.num_seqs, record.num_tokens,
                         status.error().message));
    record.failed = true;
    ++counters_.failed_steps;
  } else {
    consecutive_failures_ = 0;
  }
  ++counters_.steps;
  if (observer_ != nullptr) observer_->OnStep(record);
  return status;
}

// A step that failed left its sequences as they were. One of them may be the cause (a length that no kernel
// takes), and the others are not to end with it: each runs alone, and those that fail again end.
void EngineImpl::RunOneByOne(std::vector<ScheduledSeq> shares) {
  for (const ScheduledSeq& share : shares) {
    const StepPlan alone{.seqs = {share}, .num_tokens = share.count, .num_preempted = 0};
    BuildStepBatch(alone, options_.block_size, batch_);
    StepRecord record;
    if (const Status status = RunAndNote(alone, record); !status) {
      CommitFailure(alone, status.error(), scheduler_);
    }
    if (record.discarded) return;  // found wrong: the plan is void, and what is left runs in later steps
  }
}

Status EngineImpl::RunAndCommit(const StepPlan& plan, StepRecord& record) {
  const Clock::time_point begin = Clock::now();
  const auto rows = static_cast<int64_t>(batch_.logit_rows.size());
  const auto logits = View<float, 2>::Dense(logits_.as<float>(), {rows, options_.vocab_size});
  PoisonLogits(logits);
  ATTEST_RETURN_IF_ERROR(runner_->Run(batch_, logits));
  const Clock::time_point ran = Clock::now();
  record.run_seconds = SecondsBetween(begin, ran);
  record.routes = runner_->last_routes();
  const StepVerdict verdict = runner_->TakeVerdict();
  if (verdict.ends_sharing) EndSharing();
  if (verdict.action != StepVerdict::Action::kCommit) {
    // The plan is not committed: its sequences stay where they were, with the blocks they were given.
    record.discarded = true;
    ++counters_.discarded_steps;
    if (verdict.action == StepVerdict::Action::kRecomputeAll) RecomputeAll();
    if (verdict.action == StepVerdict::Action::kStop) StopServing(verdict.error);
    return {};
  }

  MakeSampleJobs(plan, logits, jobs_);
  sampled_.assign(jobs_.size(), int32_t{-1});
  SampleAll(jobs_, samplers_, runner_->team(), sampled_);
  const auto tile = View<float, 2>::Dense(logits_.as<float>(), {MaxLogitRows(options_), options_.vocab_size});
  ATTEST_RETURN_IF_ERROR(prompt_scorer_.Score(plan, batch_, *runner_, tile, scheduler_));
  const Clock::time_point now = Clock::now();
  Commit(plan, sampled_, now, options_.max_model_len, scheduler_, commit_);
  counters_.prompt_tokens += commit_.prompt_tokens;
  counters_.prompt_tokens_cached += commit_.prompt_tokens_cached;
  counters_.generation_tokens += commit_.num_sampled;
  record.num_sampled = commit_.num_sampled;
  record.time_to_first_token_seconds = commit_.time_to_first_token_seconds;
  record.inter_token_seconds = commit_.inter_token_seconds;
  record.commit_seconds = SecondsBetween(ran, Clock::now());
  return {};
}

// Tokens that a sink takes back are drawn again from the same seeds and positions, as if they had never been.
void EngineImpl::RecomputeAll() {
  caches_.Clear();  // wrong K and V are nobody's prefix
  counters_.recomputed_seqs += scheduler_.RequeueAll();
  for (const std::unique_ptr<Sequence>& seq : scheduler_.waiting()) {
    if (seq->finish || (seq->generated() > 0 && !seq->request.sink->Retract())) continue;
    counters_.retracted_tokens += seq->generated();
    seq->tokens.resize(static_cast<size_t>(seq->prompt_len));
    for (KvTable& table : seq->tables) {
      PrefixCache::Truncate(table.chain, static_cast<size_t>(seq->prompt_len / options_.block_size));
    }
    seq->prompt_logprobs.clear();
    seq->num_scored = 1;
  }
}

void EngineImpl::EndSharing() {
  if (!std::exchange(shares_, false) || caches_.empty()) return;
  LogWarning("the prefix cache is off until this process ends: wrong rows were found and are served on");
  caches_.Clear();
  scheduler_.StopSharing();
}

void EngineImpl::StopServing(const Error& error) {
  LogError(fmt::format("the engine stops: {}", error.message));
  counters_.stopped_because = error.message;
  stop_error_ = error;
  FailAll(error);
}

void EngineImpl::FailAll(const Error& error) {
  for (const auto& [id, seq] : by_id_) {
    if (seq->finish) continue;
    seq->error = error;
    scheduler_.Finish(*seq, FinishReason::kError);
  }
}

void EngineImpl::NoteScheduled(const StepPlan& plan, Clock::time_point now) {
  for (const ScheduledSeq& share : plan.seqs) {
    if (share.seq->first_scheduled) continue;
    share.seq->first_scheduled = now;
    ++newly_scheduled_;
  }
}

// Counters, stats and the observer know of a finished request before its sink does, so whoever waits for the
// sink reads numbers that include it.
void EngineImpl::DeliverFinished() {
  const std::vector<std::unique_ptr<Sequence>> finished = scheduler_.TakeFinished();
  if (finished.empty()) return;
  const Clock::time_point now = Clock::now();
  for (const std::unique_ptr<Sequence>& seq : finished) {
    by_id_.erase(seq->id);
    if (!seq->first_scheduled) ++newly_scheduled_;
    ++counters_.finished[static_cast<size_t>(*seq->finish)];
    if (observer_ == nullptr) continue;
    observer_->OnRequestFinished({.id = seq->id,
                                  .reason = *seq->finish,
                                  .prompt_tokens = seq->prompt_len,
                                  .cached_tokens = seq->cached.value_or(0),
                                  .generation_tokens = seq->generated(),
                                  .max_tokens = seq->request.sampling.max_tokens,
                                  .num_preemptions = seq->num_preemptions,
                                  .seed = seq->seed,
                                  .arrival = seq->arrival,
                                  .first_scheduled = seq->first_scheduled,
                                  .first_token = seq->first_token,
                                  .last_token = seq->last_token,
                                  .finish = now});
  }
  PublishStats();
  for (const std::unique_ptr<Sequence>& seq : finished) {
    seq->request.sink->OnFinish(*seq->finish, seq->stop_token, seq->error ? &*seq->error : nullptr);
    ++newly_finished_;
  }
}

void EngineImpl::PublishStats() {
  counters_.num_running = static_cast<int64_t>(scheduler_.running().size());
  counters_.num_waiting = static_cast<int64_t>(scheduler_.waiting().size());
  counters_.free_blocks = pool_.num_free();
  counters_.total_blocks = pool_.num_usable();
  counters_.num_preemptions = scheduler_.num_preemptions();
  counters_.prefix_cache_queries = scheduler_.cache_queries();
  counters_.prefix_cache_hits = scheduler_.cache_hits();
  counters_.healthy = consecutive_failures_ < 3 && !stop_error_;
  const std::lock_guard lock(mutex_);
  stats_ = counters_;
  queued_ -= std::exchange(newly_scheduled_, 0);
  in_flight_ -= std::exchange(newly_finished_, 0);
}

}  // namespace

Expected<std::unique_ptr<Engine>> Engine::Start(const EngineOptions& options,
                                                std::unique_ptr<StepRunner> runner,
                                                EngineObserver* observer) {
  ATTEST_RETURN_IF_ERROR(CheckOptions(options));
  if (runner == nullptr) return Fail(ErrorCode::kInvalidArgument, "no runner given", "runner");
  ATTEST_ASSIGN_OR_RETURN(BlockPool pool, BlockPool::Create(options.num_blocks));
  const int64_t rows = MaxLogitRows(options);
  ATTEST_ASSIGN_OR_RETURN(Buffer logits, Buffer::Allocate(rows * options.vocab_size * int64_t{sizeof(float)},
                                                          "logits of a step"));
  return std::make_unique<EngineImpl>(options, std::move(runner), observer, std::move(pool),
                                      std::move(logits));
}

}  // namespace attest
