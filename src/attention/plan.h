// The attention of one step: groups of sequences, each with a validated Route, and their work items in the
// order in which threads take them. Made once per step by PlanAttention, used by every layer with the same
// spec. A plan owns the scratch of one call (unless the callers bring theirs), so AttendParams is
// called by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/dispatch.h"
#include "attention/work_items.h"

namespace attest {

// Sequences of one phase whose route is one kernel.
struct PlanGroup {
  Route route;
  AttentionProblem problem;   // exact lengths of the group
  std::vector<int32_t> seqs;  // ascending
  int32_t num_tokens = 0;
};

struct PlanItem {
  int32_t group = 0;
  CutItem cut;
};

struct PlanMerge {
  int32_t group = 0;
  CutMerge cut;
};

class AttentionPlan {
 public:
  [[nodiscard]] const AttentionSpec& spec() const { return spec_; }
  [[nodiscard]] std::span<const PlanGroup> groups() const { return groups_; }
  // Dearest first; threads take the next one when they are done.
  [[nodiscard]] std::span<const PlanItem> items() const { return items_; }
  [[nodiscard]] std::span<const PlanMerge> merges() const { return merges_; }
  [[nodiscard]] const AttentionLengths& lengths() const { return lengths_; }
  [[nodiscard]] int num_threads() const { return num_threads_; }
  // Of one call (attention/call.h).
  [[nodiscard]] int64_t scratch_bytes() const { return scratch_bytes_; }
  // The highest block id of the table entries that may be read, -1 when none is.
  [[nodiscard]] int32_t highest_block() const { return highest_block_; }

 private:
  friend Expected<AttentionPlanPtr> PlanAttention(const AttentionRouter& router, const AttentionSpec& spec,
                                                  const AttentionLengths& lengths, int num_threads,
                                                  PlanScratch scratch);
  friend Status ValidateParams(const AttentionPlan& plan, const AttentionParams& params);
  friend void AttendParams(const AttentionPlan& plan, const AttentionParams& params, ThreadTeam& team,
                           bool poison_outputs);
  friend struct CallLayout CallLayoutOf(const AttentionPlan& plan);
  friend class AttentionCall;
  AttentionPlan() = default;

  struct FreeScratch {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };

  AttentionSpec spec_;
  AttentionLengths lengths_;
  int num_threads_ = 1;
  int32_t highest_block_ = -1;  // of the table entries that may be read
  std::vector<PlanGroup> groups_;
  std::vector<PlanItem> items_;
  std::vector<PlanMerge> merges_;
  std::unique_ptr<std::byte[], FreeScratch> scratch_;
  int64_t scratch_bytes_ = 0;
  int64_t thread_scratch_bytes_ = 0;  // per thread, a multiple of 64
  int64_t partial_rows_ = 0;
};

// The library's way in: any dtype, pages or contiguous K and V, LSE. Fill the tensors, alibi_slopes, sinks
// and descales; lengths, tables, heads, scale and mask come from the plan. REQUIRES: ValidateParams accepts.
void AttendParams(const AttentionPlan& plan, const AttentionParams& params, ThreadTeam& team,
                  bool poison_outputs = kPoisonOutputs);

// What the kernels of a plan receive: `params` with lengths, tables, heads, scale and mask filled in. Only
// `owned` is left out, which differs from group to group.
[[nodiscard]] AttentionParams CompleteParams(const AttentionPlan& plan, AttentionParams params);
// The same for one layer of the engine.
[[nodiscard]] AttentionParams ParamsOf(const AttentionPlan& plan, const AttendArgs& args);

// Whether tensors fit the plan, without reading any element: shapes, dtypes, strides, the presence of each
// optional input. kInvalidArgument names the field.
[[nodiscard]] Status ValidateParams(const AttentionPlan& plan, const AttentionParams& params);

}  // namespace attest
