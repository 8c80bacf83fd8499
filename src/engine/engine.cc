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
#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/step_batch.h"
#include "tensor/buffer.h"

namespace attest {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

namespace {

using Clock = std::chrono::steady_clock;

double SecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Rows of logits that one Run may be asked for.
int64_t MaxLogitRows(const EngineOptions& options) {
  return std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

// Calls fn(i) for i in [0, count), on the team's threads when there is one.
template <class Fn>
void ForEachIndex(ThreadTeam* team, int64_t count, Fn&& fn) {
  if (team == nullptr) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  team->Run([&](int rank) {
    const IndexRange range = PartitionRange(count, rank, team->size());
    for (int64_t i = range.begin; i < range.end; ++i) fn(i);
  });
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<StepRunner> runner, EngineObserver* observer,
             BlockPool pool, Buffer logits)
      : options_(options),
        runner_(std::move(runner)),
        observer_(observer),
        pool_(std::move(pool)),
        cache_(options.prefix_caching
                   ? std::make_unique<PrefixCache>(
                         PrefixCacheOptions{.block_size = options.block_size, .seed = std::random_device{}()},
                         pool_)
                   : nullptr),
        scheduler_({.block_size = options.block_size,
                    .max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = options.max_num_batched_tokens,
                    .long_prefill_tokens = options.long_prefill_tokens,
                    .policy = options.policy},
                   pool_, cache_.get()),
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
  void Abort(RequestId id) override;
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
  void Accept(std::vector<std::unique_ptr<Sequence>> arrived, const std::vector<RequestId>& aborted);
  void Step();
  Status RunAndCommit(const StepPlan& plan, StepRecord& record);
  Status ScorePrompts(const StepPlan& plan);
  void Poison(View<float, 2> logits) const;
  void RecomputeAll();
  void StopServing(const Error& error);
  void FailAll(const Error& error);
  void NoteScheduled(const StepPlan& plan, Clock::time_point now);
  void DeliverFinished();
  void PublishStats();

  const EngineOptions options_;
  const std::unique_ptr<StepRunner> runner_;
  EngineObserver* const observer_;

  // Engine thread only.
  BlockPool pool_;
  const std::unique_ptr<PrefixCache> cache_;  // null: off
  Scheduler scheduler_;
  StepBatch batch_;
  std::vector<PromptRow> prompt_rows_;
  Buffer logits_;
  std::vector<Sampler> samplers_;
  std::vector<SampleJob> jobs_;
  std::vector<Expected<int32_t>> sampled_;
  CommitResult commit_;
  std::unordered_map<RequestId, Sequence*> by_id_;
  EngineStats counters_;
  int consecutive_failures_ = 0;
  std::optional<Error> stop_error_;  // set once: every request ends with it
  int32_t newly_scheduled_ = 0;      // left the queue since the last PublishStats, by a step or by an end
  int32_t newly_finished_ = 0;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> aborts_;
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
  if (cache_ != nullptr) {
    const CacheKey keys[] = {{"model", options_.cache_key}, {"salt", seq->request.cache_salt}};
    seq->chain.keys = JoinCacheKeys(keys);
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

void EngineImpl::Abort(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    aborts_.push_back(id);
  }
  wake_.notify_one();
}

void EngineImpl::Loop() {
  runner_->OnThreadStart();
  for (;;) {
    std::vector<std::unique_ptr<Sequence>> arrived;
    std::vector<RequestId> aborted;
    std::vector<std::promise<bool>> resets;
    bool stop = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] {
        return stopping_ || !inbox_.empty() || !aborts_.empty() || !resets_.empty() || !scheduler_.idle();
      });
      arrived.swap(inbox_);
      aborted.swap(aborts_);
      resets.swap(resets_);
      stop = stopping_;
    }
    Accept(std::move(arrived), aborted);
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
  if (cache_ == nullptr) return true;  // nothing is cached
  if (pool_.num_used() > 0) return false;
  cache_->Clear();
  return true;
}

void EngineImpl::Accept(std::vector<std::unique_ptr<Sequence>> arrived,
                        const std::vector<RequestId>& aborted) {
  for (auto& seq : arrived) {
    const RequestId id = seq->id;
    by_id_.emplace(id, scheduler_.Add(std::move(seq)));
  }
  for (const RequestId id : aborted) {
    if (const auto found = by_id_.find(id); found != by_id_.end()) {
      scheduler_.Finish(*found->second, FinishReason::kAbort);
    }
  }
}

void EngineImpl::Step() {
  const Clock::time_point begin = Clock::now();
  const StepPlan& plan = scheduler_.Schedule();
  BuildStepBatch(plan, options_.block_size, batch_);
  NoteScheduled(plan, begin);

  StepRecord record;
  record.num_seqs = batch_.num_seqs();
  record.num_tokens = batch_.num_tokens();
  record.num_preempted = plan.num_preempted;
  record.schedule_seconds = SecondsBetween(begin, Clock::now());
  if (const Status status = RunAndCommit(plan, record); !status) {
    LogError(fmt::format("step of {} sequences, {} tokens failed: {}", record.num_seqs, record.num_tokens,
                         status.error().message));
    CommitFailure(plan, status.error(), scheduler_);
    record.failed = true;
    ++counters_.failed_steps;
    ++consecutive_failures_;
  } else {
    consecutive_failures_ = 0;
  }
  ++counters_.steps;
  if (observer_ != nullptr) observer_->OnStep(record);
  DeliverFinished();
}

Status EngineImpl::RunAndCommit(const StepPlan& plan, StepRecord& record) {
  const Clock::time_point begin = Clock::now();
  const auto rows = static_cast<int64_t>(batch_.logit_rows.size());
  const auto logits = View<float, 2>::Dense(logits_.as<float>(), {rows, options_.vocab_size});
  Poison(logits);
  ATTEST_RETURN_IF_ERROR(runner_->Run(batch_, logits));
  const Clock::time_point ran = Clock::now();
  record.run_seconds = SecondsBetween(begin, ran);
  record.routes = runner_->last_routes();
  if (const StepVerdict verdict = runner_->TakeVerdict(); verdict.action != StepVerdict::Action::kCommit) {
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
  ATTEST_RETURN_IF_ERROR(ScorePrompts(plan));
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

// A row that the runner leaves alone must not pass for logits: NaN is refused.
void EngineImpl::Poison(View<float, 2> logits) const {
  for (int64_t row = 0; row < logits.shape[0]; ++row) {
    *logits.At(row, 0) = *logits.At(row, options_.vocab_size - 1) = std::numeric_limits<float>::quiet_NaN();
  }
}

// The logits of all rows of a prompt may be gigabytes; here they pass through the buffer of the sampled rows,
// which are done with, a few at a time.
Status EngineImpl::ScorePrompts(const StepPlan& plan) {
  FindPromptRows(plan, batch_, prompt_rows_);
  const size_t tile = static_cast<size_t>(MaxLogitRows(options_));
  std::vector<int32_t> rows;
  std::vector<Expected<TokenLogprobs>> scores;
  for (size_t begin = 0; begin < prompt_rows_.size(); begin += tile) {
    const std::span part =
        std::span(prompt_rows_).subspan(begin, std::min(tile, prompt_rows_.size() - begin));
    rows.clear();
    for (const PromptRow& row : part) rows.push_back(row.row);
    const auto logits = View<float, 2>::Dense(logits_.as<float>(), {std::ssize(rows), options_.vocab_size});
    Poison(logits);
    ATTEST_RETURN_IF_ERROR(runner_->Logits(batch_, rows, logits));
    scores.assign(part.size(), TokenLogprobs{});
    const auto score = [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      const Sequence& seq = *part[at].seq;
      scores[at] = ScoreToken({logits.At(i), static_cast<size_t>(options_.vocab_size)},
                              seq.tokens[static_cast<size_t>(part[at].position)], part[at].position,
                              *seq.request.sampling.prompt_logprobs);
    };
    ForEachIndex(runner_->team(), std::ssize(part), score);
    for (size_t i = 0; i < part.size(); ++i) {
      Sequence& seq = *part[i].seq;
      if (seq.finish) continue;
      if (!scores[i]) {
        seq.error = scores[i].error();
        scheduler_.Finish(seq, FinishReason::kError);
        continue;
      }
      seq.prompt_logprobs.push_back(std::move(*scores[i]));
      ++seq.num_scored;
    }
  }
  return {};
}

// Tokens that a sink takes back are drawn again from the same seeds and positions, as if they had never been.
void EngineImpl::RecomputeAll() {
  if (cache_ != nullptr) cache_->Clear();  // wrong K and V are nobody's prefix
  counters_.recomputed_seqs += scheduler_.RequeueAll();
  for (const std::unique_ptr<Sequence>& seq : scheduler_.waiting()) {
    if (seq->finish || (seq->generated() > 0 && !seq->request.sink->Retract())) continue;
    counters_.retracted_tokens += seq->generated();
    seq->tokens.resize(static_cast<size_t>(seq->prompt_len));
    PrefixCache::Truncate(seq->chain, static_cast<size_t>(seq->prompt_len / options_.block_size));
    seq->prompt_logprobs.clear();
    seq->num_scored = 1;
  }
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
