// The only way to attention for the engine and the model: make a Router at load, a plan once per step, attend
// once per layer. Everything below (contracts, dispatch, kernels) is reached through here.
//
// A plan belongs to one step and one spec; it holds validated Routes, so a kernel that cannot do the call has
// said so before anything ran.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/problem.h"
#include "base/error.h"
#include "base/thread_team.h"
#include "device/cpu.h"
#include "kernels/attention_params.h"

namespace attest {

struct KernelEntry;  // attention/dispatch.h: name, contract, launch function

// Which kernels this process may use. A value: immutable after Create, replaced as a whole by its owner.
class AttentionRouter {
 public:
  // `forced` names the one kernel that must run ("" lets the contract choose), or one per phase:
  // "decode=attention_decode_avx2,prefill=attention_general"; phases not named keep their choice. An unknown
  // name is an error that lists the known ones; so is a kernel this CPU lacks.
  static Expected<AttentionRouter> Create(const CpuFeatures& cpu, std::string_view forced = "");

  // Start-up check: every phase the engine can produce has a route for this spec. The error prints every
  // kernel with every reason it refused.
  [[nodiscard]] Status CheckSpec(const AttentionSpec& spec) const;

  // The same without one kernel, whose rows were found wrong: the contracts choose as if it were not in the
  // list, and a forced name that is excluded refuses every call.
  [[nodiscard]] AttentionRouter Without(std::string_view kernel) const;
  [[nodiscard]] std::span<const std::string> excluded() const { return excluded_; }

  [[nodiscard]] const CpuFeatures& cpu() const { return cpu_; }
  // The kernel forced for one phase, "" when the contract chooses.
  [[nodiscard]] const std::string& forced_for(AttentionPhase phase) const {
    return forced_by_phase_[static_cast<size_t>(phase)];
  }

 private:
  CpuFeatures cpu_;
  std::array<std::string, kNumAttentionPhases> forced_by_phase_;
  std::vector<std::string> excluded_;
};

// The lengths of one step; views stay valid while the plan is used.
struct AttentionLengths {
  const CuSeqlens* q_begin = nullptr;  // [num_seqs + 1]
  std::span<const int32_t> kv_len;     // [num_seqs]
  BlockTables block_tables;            // rows for every sequence; unused with contiguous K and V
  // The sequences this plan computes; absent: all of them. Rows of the others are not touched.
  std::optional<OwnedSeqs> owned = {};
  // Only keys [kv_begin, kv_end) of each sequence take part, [num_seqs] each or empty for all; positions and
  // masks stay those of the whole sequence. Calls over ranges that cover the keys, with an LSE, merge into
  // the call over all (kernels/merge_states.h): chunked contexts and shared prefixes. A sink belongs to one
  // of them.
  std::span<const int32_t> kv_begin = {};
  std::span<const int32_t> kv_end = {};
};

class AttentionPlan;  // attention/plan.h: groups of sequences by phase, each with its Route and work items

struct AttentionPlanDeleter {
  void operator()(AttentionPlan* plan) const;
};
using AttentionPlanPtr = std::unique_ptr<AttentionPlan, AttentionPlanDeleter>;

enum class PlanScratch {
  kOwned,    // the plan holds the memory of one call at a time
  kCallers,  // every call brings its own (attention/call.h)
};

// Splits the sequences by phase, chooses a route for each group and cuts its work for `num_threads`. Pure: no
// device access. kInvalidArgument names the sequence whose lengths are out of range or whose table is too
// short; kUnsupported lists each kernel with its reasons. The kernel of a sequence depends on the spec and
// its own two lengths, never on its companions; where its work is cut, too (attention/work_items.h).
// kResourceExhausted: more than kMaxPlanItems items.
[[nodiscard]] Expected<AttentionPlanPtr> PlanAttention(const AttentionRouter& router,
                                                       const AttentionSpec& spec,
                                                       const AttentionLengths& lengths, int num_threads,
                                                       PlanScratch scratch = PlanScratch::kOwned);

// Whether Attend fills the rows it owns with a NaN of its own before the kernels run and stops the process,
// naming the kernel and the row, when one is still there after. On in debug and sanitizer builds.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kPoisonOutputs = true;
#else
inline constexpr bool kPoisonOutputs = false;
#endif

// One layer. q [num_tokens, q_heads, head_dim] f32, out [num_tokens, q_heads, v_head_dim] f32, every row of
// every sequence of the plan is written. REQUIRES: kv matches the plan's spec; K and V of this step are
// appended.
struct AttendArgs {
  View<const float, 3> q;
  View<float, 3> out;
  const PagedKv* kv = nullptr;
  const float* alibi_slopes = nullptr;
  const float* sinks = nullptr;
  bool poison_outputs = kPoisonOutputs;
};
void Attend(const AttentionPlan& plan, const AttendArgs& args, ThreadTeam& team);

// The only writer of KV pages: row t of k and v goes to slot slots[t] (block * block_size + offset),
// divided by the scales of the pages and converted to their dtype; a negative slot writes nothing. k
// [num_tokens, kv_heads, head_dim], v [.., v_head_dim]. Returns how many NaNs the dtype could not hold (int8;
// 0 is stored for them): unless that is 0, what was appended is not what the caller had. REQUIRES: slots[t] <
// num_blocks * block_size; no slot twice.
int64_t AppendKv(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots,
                 const PagedKv& kv, ThreadTeam& team);

// The names of the kernels a plan runs, by phase, for metrics and logs: {"decode", "attn_decode_avx2"}, ...
struct PlannedRoute {
  AttentionPhase phase;
  std::string_view kernel;
  int num_seqs = 0;
  int num_tokens = 0;
};
[[nodiscard]] std::vector<PlannedRoute> PlannedRoutes(const AttentionPlan& plan);

}  // namespace attest
