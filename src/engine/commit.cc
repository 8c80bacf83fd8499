#include "engine/commit.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace attest {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool EndsSequence(const Sequence& seq, int32_t token) {
  const SamplingParams& sampling = seq.request.sampling;
  return Contains(sampling.stop_token_ids, token) ||
         (!sampling.ignore_eos && Contains(seq.request.eos_ids, token));
}

void RecordTime(Sequence& seq, Sequence::TimePoint now, CommitResult& result) {
  const auto seconds = [now](Sequence::TimePoint since) {
    return std::chrono::duration<double>(now - since).count();
  };
  if (seq.first_token) {
    result.inter_token_seconds.push_back(seconds(*seq.last_token));
  } else {
    seq.first_token = now;
    result.time_to_first_token_seconds.push_back(seconds(seq.arrival));
    result.prompt_tokens += seq.prompt_len;
    result.prompt_tokens_cached += seq.cached.value_or(0);
    seq.request.sink->OnPromptDone(seq.cached.value_or(0));
  }
  seq.last_token = now;
}

}  // namespace

void MakeSampleJobs(const StepPlan& plan, View<float, 2> logits, std::vector<SampleJob>& jobs) {
  jobs.clear();
  for (const ScheduledSeq& share : plan.seqs) {
    if (!share.samples) continue;
    Sequence& seq = *share.seq;
    const SamplingParams& sampling = seq.request.sampling;
    SampleJob job{.logits = {logits.At(jobs.size()), static_cast<size_t>(logits.shape[1])},
                  .params = &sampling,
                  .seed = seq.seed,
                  .position = seq.known(),
                  .banned = {},
                  .tokens = seq.tokens,
                  .prompt_len = seq.prompt_len,
                  .logprobs = sampling.logprobs ? &seq.newest_logprobs : nullptr};
    if (seq.generated() < sampling.min_tokens) {
      job.banned[0] = sampling.stop_token_ids;
      if (!sampling.ignore_eos) job.banned[1] = seq.request.eos_ids;
    }
    jobs.push_back(job);
  }
  ATTEST_CHECK_EQ(static_cast<int64_t>(jobs.size()), logits.shape[0]);
}

void Commit(const StepPlan& plan, std::span<const Expected<int32_t>> tokens, Sequence::TimePoint now,
            int32_t max_model_len, Scheduler& scheduler, CommitResult& result) {
  result.num_sampled = 0;
  result.prompt_tokens = 0;
  result.prompt_tokens_cached = 0;
  result.time_to_first_token_seconds.clear();
  result.inter_token_seconds.clear();
  size_t next = 0;
  for (const ScheduledSeq& share : plan.seqs) {
    Sequence& seq = *share.seq;
    if (seq.finish || (share.samples && !tokens[next])) {
      if (!seq.finish) {
        seq.error = tokens[next].error();
        scheduler.Finish(seq, FinishReason::kError);
      }
      if (share.samples) ++next;
      // Logits of it, or of its prompt, were not numbers; what led to them may be in the cache. A request
      // whose own masks left nothing to draw says nothing about them.
      if (seq.error->code != ErrorCode::kInvalidArgument) scheduler.Distrust(seq);
      continue;
    }
    scheduler.Advance(share);
    if (!share.samples) continue;
    const Expected<int32_t>& token = tokens[next++];
    if (seq.request.sampling.prompt_logprobs && seq.generated() == 0) {
      seq.request.sink->OnPromptLogprobs(std::exchange(seq.prompt_logprobs, {}));
    }
    if (seq.request.sampling.logprobs) seq.request.sink->OnLogprobs(std::move(seq.newest_logprobs));
    seq.tokens.push_back(*token);
    ++result.num_sampled;
    RecordTime(seq, now, result);
    if (EndsSequence(seq, *token)) {
      seq.stop_token = *token;
      scheduler.Finish(seq, FinishReason::kStop);  // also when it is the last one allowed
      continue;
    }
    seq.request.sink->OnToken(*token);
    if (seq.generated() >= seq.request.sampling.max_tokens || seq.known() >= max_model_len) {
      scheduler.Finish(seq, FinishReason::kLength);
    }
  }
  ATTEST_CHECK_EQ(next, tokens.size());
}

void CommitFailure(const StepPlan& plan, const Error& error, Scheduler& scheduler) {
  for (const ScheduledSeq& share : plan.seqs) {
    share.seq->error = error;
    scheduler.Finish(*share.seq, FinishReason::kError);
  }
}

}  // namespace attest
