// Commit, the third verb of a step: applies what Run and the sampler produced to the sequences and their
// sinks, and marks those that are over. Engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "tensor/view.h"

namespace attest {

// The sampling work of a plan: one job per sequence that samples, in plan order, on rows of `logits`. An id
// that would end a sequence is banned while it has fewer than min_tokens generated tokens.
void MakeSampleJobs(const StepPlan& plan, View<float, 2> logits, std::vector<SampleJob>& jobs);

// What a step produced, for counters.
struct CommitResult {
  int32_t num_sampled = 0;
  int64_t prompt_tokens = 0;  // of the sequences whose first token this was
  int64_t prompt_tokens_cached = 0;
  std::vector<double> time_to_first_token_seconds;
  std::vector<double> inter_token_seconds;
};

// tokens[i] belongs to the i-th sequence of the plan that samples. A sequence whose token is an error ends
// with kError; the others go on. Overwrites `result`.
void Commit(const StepPlan& plan, std::span<const Expected<int32_t>> tokens, Sequence::TimePoint now,
            int32_t max_model_len, Scheduler& scheduler, CommitResult& result);

// A step that failed to run: its sequences end with kError, everyone else is untouched.
void CommitFailure(const StepPlan& plan, const Error& error, Scheduler& scheduler);

}  // namespace attest
