// Logprobs of prompts: asks the runner for the logits of the rows that a step computed and scores them.
// Engine thread only.
#pragma once

#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/logprobs.h"
#include "engine/scheduler.h"

namespace attest {

// A row that the runner leaves alone must not pass for logits: NaN is refused.
void PoisonLogits(View<float, 2> logits);

class PromptScorer {
 public:
  // The logits of all rows of a prompt may be gigabytes; here they pass through `tile` (the buffer of the
  // sampled rows, which are done with), as many rows at a time as it has. A sequence whose logits are not
  // numbers ends; an error is the runner's.
  Status Score(const StepPlan& plan, const StepBatch& batch, StepRunner& runner, View<float, 2> tile,
               Scheduler& scheduler);

 private:
  std::vector<PromptRow> rows_;
};

}  // namespace attest
