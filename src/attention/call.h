// One call of a plan, cut into shares that threads run. A plan is read-only here: calls of one plan may run
// at the same time, each in a workspace of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/plan.h"

namespace attest {

// The memory of one call, in this order; every part starts at a multiple of 64 bytes.
struct CallLayout {
  int64_t thread_bytes = 0;  // of one share; shares follow each other
  int64_t partial_out = 0, partial_lse = 0;
  int64_t counters = 0;  // [merges] splits of a merge that are done
  int64_t params = 0;    // [groups] AttentionParams
  int64_t bytes = 0;
};
[[nodiscard]] CallLayout CallLayoutOf(const AttentionPlan& plan);

// Made by one thread, which then lets each share run once: on one thread after another or on several at the
// same time. The call is done when every share has returned. There is no barrier between shares: each takes
// work items until none is left.
class AttentionCall {
 public:
  // `params` as for AttendParams. REQUIRES: ValidateParams accepts; `workspace` has plan.scratch_bytes()
  // bytes, is aligned to 64 and belongs to this call until its last share has returned.
  AttentionCall(const AttentionPlan& plan, const AttentionParams& params, std::byte* workspace);
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  [[nodiscard]] int num_shares() const { return plan_->num_threads(); }
  // REQUIRES: 0 <= share < num_shares(), each at most once. A share that is left out leaves its scratch
  // unused; its items are taken by the others.
  void RunShare(int share);
  // The params of a call with everything that the plan fills in.
  [[nodiscard]] const AttentionParams& params() const { return params_; }

 private:
  const AttentionPlan* plan_;
  AttentionParams params_;
  std::byte* workspace_;
  CallLayout layout_;
  std::span<AttentionParams> by_group_;
  std::span<std::atomic<int32_t>> done_;
  std::atomic<size_t> next_{0};
};

}  // namespace attest
