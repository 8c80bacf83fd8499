// Turns a plan into the flat arrays the model reads (model/step_batch.h).
#pragma once

#include "engine/scheduler.h"
#include "model/step_batch.h"

namespace attest {

// Overwrites `batch`, whose storage is reused from step to step. Rows are in the order of plan.seqs;
// logit_rows has the last row of each sequence that samples, in the same order.
void BuildStepBatch(const StepPlan& plan, int block_size, StepBatch& batch);

}  // namespace attest
