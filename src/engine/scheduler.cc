#include "engine/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace attest {

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool& pool, std::vector<PrefixCache*> caches)
    : options_(options), pool_(pool), caches_(std::move(caches)) {
  ATTEST_CHECK(caches_.empty() || caches_.size() == options_.windows.size());
  ATTEST_CHECK_GT(options.block_size, 0);
  ATTEST_CHECK_GT(options.max_num_seqs, 0);
  ATTEST_CHECK_GT(options.max_num_batched_tokens, 0);
}

Sequence* Scheduler::Add(std::unique_ptr<Sequence> seq) {
  ATTEST_CHECK_LE(PeakBlocksFor(seq->known()), pool_.num_usable());  // it would wait for ever
  ATTEST_CHECK_EQ(seq->tables.size(), options_.windows.size());
  Sequence* const added = seq.get();
  Enqueue(std::move(seq));
  return added;
}

// Ids ascend with arrival.
bool Scheduler::GoesBefore(const Sequence& a, const Sequence& b) const {
  if (options_.policy == SchedulingPolicy::kPriority && a.request.priority != b.request.priority) {
    return a.request.priority < b.request.priority;
  }
  return a.id < b.id;
}

void Scheduler::Enqueue(std::unique_ptr<Sequence> seq) {
  seq->state = SequenceState::kWaiting;
  const auto at = std::ranges::upper_bound(
      waiting_, seq, [this](const auto& a, const auto& b) { return GoesBefore(*a, *b); });
  waiting_.insert(at, std::move(seq));
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

// Tokens of its backlog that a sequence computes in this step, of which `budget` are left. The cap is a part
// of what is left: of the whole budget, two long prompts would leave nothing to the short ones behind them.
int32_t Scheduler::ShareOf(const Sequence& seq, int32_t budget, bool others_follow) const {
  const int32_t share = std::min(seq.known() - seq.computed, budget);
  if (!others_follow) return share;
  return std::min(share, options_.long_prefill_tokens > 0 ? options_.long_prefill_tokens
                                                          : std::max(1, budget - budget / 4));
}

// Blocks to take before `tokens` tokens of the sequence can be computed.
int64_t Scheduler::Missing(const Sequence& seq, int64_t tokens) const {
  int64_t missing = 0;
  for (const KvTable& table : seq.tables) missing += BlocksFor(tokens) - std::ssize(table.blocks);
  return missing;
}

// REQUIRES: as many are free.
void Scheduler::TakeBlocks(Sequence& seq, int64_t tokens) {
  for (KvTable& table : seq.tables) {
    const int64_t wanted = BlocksFor(tokens) - std::ssize(table.blocks);
    if (wanted <= 0) continue;
    const Status taken = pool_.Take(wanted, table.blocks);
    ATTEST_CHECK(taken.has_value());
  }
}

// Blocks that no row from the next one on sees. What they hold was published, so a later request may still
// find it, until somebody needs the memory.
void Scheduler::GiveBackPassed(Sequence& seq) {
  for (size_t g = 0; g < seq.tables.size(); ++g) {
    KvTable& table = seq.tables[g];
    const auto first =
        static_cast<size_t>(FirstSeen(options_.windows[g], seq.computed) / options_.block_size);
    if (first <= table.num_passed) continue;
    const std::span passed = std::span(table.blocks).subspan(table.num_passed, first - table.num_passed);
    pool_.Release(passed);
    std::ranges::fill(passed, kNullBlock);
    table.num_passed = first;
  }
}

void Scheduler::ReleaseAll(Sequence& seq) {
  for (KvTable& table : seq.tables) {
    pool_.Release(table.blocks);
    table.blocks.clear();
    table.num_passed = 0;
    PrefixCache::Detach(table.chain);
  }
}

void Scheduler::ScheduleRunning(int32_t& budget) {
  const auto max_num_seqs = static_cast<size_t>(options_.max_num_seqs);
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& seq = *running_[i];
    const bool others_follow =
        i + 1 < running_.size() || (!waiting_.empty() && running_.size() < max_num_seqs);
    const int32_t count = ShareOf(seq, budget, others_follow);
    ATTEST_CHECK_GT(count, 0);  // a running sequence always has its newest token to compute
    GiveBackPassed(seq);
    const int64_t wanted = Missing(seq, int64_t{seq.computed} + count);
    while (wanted > pool_.num_free() && i < running_.size()) PreemptLast();
    if (i >= running_.size()) return;  // it was the last itself
    TakeBlocks(seq, int64_t{seq.computed} + count);
    Plan(seq, count, budget);
  }
}

void Scheduler::AdmitWaiting(int32_t& budget) {
  for (size_t i = 0;
       i < waiting_.size() && budget > 0 && running_.size() < static_cast<size_t>(options_.max_num_seqs);) {
    Sequence& seq = *waiting_[i];
    if (IsBeingComputed(seq)) {
      ++i;
      continue;
    }
    if (!FindPlace(seq)) return;
    GiveBackPassed(seq);  // a window of one token does not even see the last block of the hit
    const int32_t count = ShareOf(seq, budget, waiting_.size() > 1);
    TakeBlocks(seq, int64_t{seq.computed} + count);
    seq.state = SequenceState::kRunning;
    const auto at = std::ranges::upper_bound(
        running_, waiting_[i], [this](const auto& a, const auto& b) { return GoesBefore(*a, *b); });
    running_.insert(at, std::move(waiting_[i]));
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    Plan(seq, count, budget);
  }
}

// Whether a running sequence is computing a block that this one will need, so that waiting for it spares the
// work: the choices of one prompt, or prompts with one preamble that arrive together, compute it once.
// Bounded, since running sequences make progress; a less urgent one is not waited for, as it may not.
bool Scheduler::IsBeingComputed(const Sequence& seq) const {
  if (caches_.empty() || !shares_) return false;
  const auto block_size = static_cast<size_t>(options_.block_size);
  const size_t usable = static_cast<size_t>(std::max(MostFromCache(seq), 0)) / block_size * block_size;
  return std::ranges::any_of(running_, [&](const std::unique_ptr<Sequence>& other) {
    if (other->computed >= other->prompt_len || other->finish || GoesBefore(seq, *other)) return false;
    const size_t next = (static_cast<size_t>(other->computed) / block_size + 1) * block_size;
    return next <= usable && next <= other->tokens.size() &&
           other->tables.front().chain.keys == seq.tables.front().chain.keys &&
           std::equal(seq.tokens.begin(), seq.tokens.begin() + static_cast<std::ptrdiff_t>(next),
                      other->tokens.begin());
  });
}

// Logits come from computing a token, so the last one is not taken from the cache, nor, where the prompt is
// to be scored, any whose row scores a token that has no logprobs yet.
int32_t Scheduler::MostFromCache(const Sequence& seq) {
  const bool to_score = seq.request.sampling.prompt_logprobs && seq.num_scored < seq.prompt_len;
  return (to_score ? seq.num_scored : seq.known()) - 1;
}

// The longest beginning, in blocks, that every KV group can go on behind: a full one has all of its blocks,
// one with a window those that the next row sees, and the last. Blocks that no row will see are left out.
size_t Scheduler::FindHits(Sequence& seq, std::vector<std::vector<int32_t>>& hits) {
  const auto block_size = static_cast<size_t>(options_.block_size);
  size_t most = static_cast<size_t>(seq.known());
  for (size_t g = 0; g < hits.size(); ++g) {
    hits[g] = caches_[g]->Find(seq.tables[g].chain, seq.tokens, MostFromCache(seq));
    most = std::min(most, hits[g].size());
  }
  const auto first_seen = [&](size_t g, size_t count) {
    const auto computed = static_cast<int32_t>(count * block_size);
    return std::min(static_cast<size_t>(FirstSeen(options_.windows[g], computed)) / block_size, count - 1);
  };
  // unbroken[g][i]: the first of the blocks before the i-th of which none is gone. Filled once, since a
  // window may span thousands of blocks and as many beginnings may be tried.
  std::vector<std::vector<size_t>> unbroken(hits.size());
  for (size_t g = 0; g < hits.size(); ++g) {
    unbroken[g].assign(most + 1, 0);
    for (size_t i = 0; i < most; ++i) unbroken[g][i + 1] = hits[g][i] == kNullBlock ? i + 1 : unbroken[g][i];
  }
  const auto all_have = [&](size_t count) {
    for (size_t g = 0; g < hits.size(); ++g) {
      if (unbroken[g][count] > first_seen(g, count)) return false;
    }
    return true;
  };
  while (most > 0 && !all_have(most)) --most;
  for (size_t g = 0; g < hits.size(); ++g) {
    hits[g].resize(most);
    if (most > 0) std::fill_n(hits[g].begin(), first_seen(g, most), kNullBlock);
  }
  return most;
}

// Gives the sequence the blocks that the prefix caches have for it. False, with nothing taken, when the rest
// of it would not fit: the whole known sequence must, even if only a chunk is computed now, because half a
// prompt that cannot go on would hold blocks that others need.
bool Scheduler::FindPlace(Sequence& seq) {
  if (pool_.num_free() == 0) return false;  // the last token is computed in any case, in a block of its own
  std::vector<std::vector<int32_t>> hits(seq.tables.size());
  const bool looks = !caches_.empty() && shares_;
  const size_t num_hits = looks ? FindHits(seq, hits) : 0;
  int64_t used_hits = 0, free_hits = 0, unseen = 0;  // unseen: blocks to take if none were given back
  for (const std::vector<int32_t>& group : hits) {
    unseen += BlocksFor(seq.known()) - std::ssize(group);
    for (const int32_t block : group) {
      used_hits += block != kNullBlock;
      free_hits += block != kNullBlock && pool_.refs(block) == 0;  // it is one of the free blocks
    }
  }
  const int64_t wanted = std::min(PeakBlocksFor(seq.known()) - used_hits, unseen);
  if (wanted + free_hits > pool_.num_free()) return false;
  seq.computed = static_cast<int32_t>(num_hits) * options_.block_size;
  for (size_t g = 0; g < seq.tables.size(); ++g) {
    KvTable& table = seq.tables[g];
    if (looks) caches_[g]->Use(table.chain, hits[g]);
    table.num_passed = static_cast<size_t>(
        std::ranges::find_if(hits[g], [](int32_t block) { return block != kNullBlock; }) - hits[g].begin());
    table.blocks = std::move(hits[g]);
  }
  if (!seq.cached) {
    seq.cached = seq.computed;
    if (looks && !seq.request.sampling.prompt_logprobs) {
      cache_queries_ += seq.known();
      cache_hits_ += seq.computed;
    }
  }
  return true;
}

void Scheduler::Advance(const ScheduledSeq& share) {
  Sequence& seq = *share.seq;
  ATTEST_CHECK_EQ(seq.computed, share.begin);
  seq.computed += share.count;
  for (size_t g = 0; shares_ && g < caches_.size(); ++g) {
    caches_[g]->Publish(seq.tables[g].chain, std::span(seq.tokens).first(static_cast<size_t>(seq.computed)),
                        seq.tables[g].blocks);
  }
}

void Scheduler::Distrust(Sequence& seq) {
  for (size_t g = 0; g < caches_.size(); ++g) {
    caches_[g]->Withdraw(seq.tables[g].chain, seq.tables[g].blocks);
    // Blocks that its window has passed are nobody's, and may be in the cache: they cannot be told from
    // others'.
    if (seq.tables[g].num_passed > 0) caches_[g]->Clear();
  }
}

void Scheduler::Plan(Sequence& seq, int32_t count, int32_t& budget) {
  plan_.seqs.push_back(
      {.seq = &seq, .begin = seq.computed, .count = count, .samples = seq.computed + count == seq.known()});
  plan_.num_tokens += count;
  budget -= count;
}

// The victims of a step come from the end of the list and were not planned yet, so no planned row loses its
// blocks.
void Scheduler::PreemptLast() {
  ++running_.back()->num_preemptions;
  ++num_preemptions_;
  ++plan_.num_preempted;
  RequeueLast();
}

void Scheduler::RequeueLast() {
  std::unique_ptr<Sequence> seq = std::move(running_.back());
  running_.pop_back();
  ReleaseAll(*seq);
  seq->computed = 0;
  any_waiting_finished_ |= seq->finish.has_value();
  Enqueue(std::move(seq));
}

int32_t Scheduler::RequeueAll() {
  plan_.seqs.clear();
  const auto count = static_cast<int32_t>(running_.size());
  while (!running_.empty()) RequeueLast();
  return count;
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
        ReleaseAll(*seq);
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
