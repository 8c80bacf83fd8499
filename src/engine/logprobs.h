// Logprobs of tokens, as clients compare them between servers: log-softmax in float32 of the logits as the
// model gave them, before masks, penalties and temperature. Those of a prompt are computed from the rows of
// the steps that prefill it, a few rows at a time, and only what was asked for is kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "model/step_batch.h"

namespace attest {

// `token` and the `num_top` best ids in the distribution of one row of logits. `position`: of the token in
// its sequence, for messages. kInternal as Sampler::Sample.
[[nodiscard]] Expected<TokenLogprobs> ScoreToken(std::span<const float> logits, int32_t token,
                                                 int32_t position, int32_t num_top);

// A row of a batch whose logits score a prompt token.
struct PromptRow {
  Sequence* seq = nullptr;
  int32_t row = 0;       // of the batch
  int32_t position = 0;  // of the token it scores: one behind its own
};

// The prompt tokens that a plan's rows can score and that were not scored before, in order. A chunk scores
// what it can; after a preemption what is known is not scored again. Overwrites `rows`.
void FindPromptRows(const StepPlan& plan, const StepBatch& batch, std::vector<PromptRow>& rows);

}  // namespace attest
