#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace attest {

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool& pool)
    : options_(options),
      share_cap_(options.long_prefill_tokens > 0
                     ? options.long_prefill_tokens
                     : std::max(1, options.max_num_batched_tokens - options.max_num_batched_tokens / 4)),
      pool_(pool) {
  ATTEST_CHECK_GT(options.block_size, 0);
  ATTEST_CHECK_GT(options.max_num_seqs, 0);
  ATTEST_CHECK_GT(options.max_num_batched_tokens, 0);
}

Sequence* Scheduler::Add(std::unique_ptr<Sequence> seq) {
  ATTEST_CHECK_LE(BlocksFor(seq->known()), pool_.num_usable());  // it would wait for ever
  seq->state = SequenceState::kWaiting;
  waiting_.push_back(std::move(seq));
  return waiting_.back().get();
}

const StepPlan& Scheduler::Schedule() {
  plan_.seqs.clear();
  plan_.num_tokens = 0;
  plan_.num_preempted = 0;
  int32_t budget = options_.max_num_batched_tokens;
  ScheduleRunning(budget);
  // What a preemption freed belongs to those who run; admitting here would take it from them again.
  if (plan_.num_preempted == 0) AdmitWaiting(budget);
  ATTEST_CHECK(!plan_.seqs.empty() || idle());  // the first in line can always go on
  return plan_;
}

// Tokens of its backlog that a sequence computes in this step.
int32_t Scheduler::ShareOf(const Sequence& seq, int32_t budget, bool others_follow) const {
  const int32_t share = std::min(seq.known() - seq.computed, budget);
  return others_follow ? std::min(share, share_cap_) : share;
}

void Scheduler::ScheduleRunning(int32_t& budget) {
  const auto max_num_seqs = static_cast<size_t>(options_.max_num_seqs);
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& seq = *running_[i];
    const bool others_follow =
        i + 1 < running_.size() || (!waiting_.empty() && running_.size() < max_num_seqs);
    const int32_t count = ShareOf(seq, budget, others_follow);
    ATTEST_CHECK_GT(count, 0);  // a running sequence always has its newest token to compute
    const int64_t wanted = BlocksFor(int64_t{seq.computed} + count) - static_cast<int64_t>(seq.blocks.size());
    while (wanted > pool_.num_free() && i < running_.size()) PreemptLast();
    if (i >= running_.size()) return;  // it was the last itself
    if (wanted > 0) {
      const Status taken = pool_.Take(wanted, seq.blocks);
      ATTEST_CHECK(taken.has_value());
    }
    Plan(seq, count, budget);
  }
}

void Scheduler::AdmitWaiting(int32_t& budget) {
  while (!waiting_.empty() && budget > 0 && running_.size() < static_cast<size_t>(options_.max_num_seqs)) {
    Sequence& seq = *waiting_.front();
    // The whole known sequence must fit, even if only a chunk is computed now: half a prompt that cannot go
    // on would hold blocks that others need.
    if (BlocksFor(seq.known()) > pool_.num_free()) return;
    const int32_t count = ShareOf(seq, budget, waiting_.size() > 1);
    const Status taken = pool_.Take(BlocksFor(count), seq.blocks);
    ATTEST_CHECK(taken.has_value());
    seq.state = SequenceState::kRunning;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Plan(seq, count, budget);
  }
}

void Scheduler::Plan(Sequence& seq, int32_t count, int32_t& budget) {
  plan_.seqs.push_back(
      {.seq = &seq, .begin = seq.computed, .count = count, .samples = seq.computed + count == seq.known()});
  plan_.num_tokens += count;
  budget -= count;
}

// The victims of a step come from the end of the list and were not planned yet, so no planned row loses its
// blocks; each goes to the front of the queue, which keeps their order of arrival.
void Scheduler::PreemptLast() {
  std::unique_ptr<Sequence> seq = std::move(running_.back());
  running_.pop_back();
  pool_.Release(seq->blocks);
  seq->blocks.clear();
  seq->computed = 0;
  seq->state = SequenceState::kWaiting;
  ++seq->num_preemptions;
  ++num_preemptions_;
  ++plan_.num_preempted;
  waiting_.push_front(std::move(seq));
}

void Scheduler::Finish(Sequence& seq, FinishReason reason) {
  if (seq.finish) return;
  seq.finish = reason;
  any_finished_ = true;
  any_waiting_finished_ |= seq.state == SequenceState::kWaiting;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::TakeFinished() {
  std::vector<std::unique_ptr<Sequence>> finished;
  if (!any_finished_) return finished;
  const auto sweep = [&](auto& list) {
    auto keep = list.begin();
    for (auto& seq : list) {
      if (seq->finish) {
        pool_.Release(seq->blocks);
        seq->blocks.clear();
        seq->state = SequenceState::kFinished;
        finished.push_back(std::move(seq));
      } else {
        if (&*keep != &seq) *keep = std::move(seq);
        ++keep;
      }
    }
    list.erase(keep, list.end());
  };
  sweep(running_);
  if (any_waiting_finished_) sweep(waiting_);
  any_finished_ = any_waiting_finished_ = false;
  return finished;
}

}  // namespace attest
