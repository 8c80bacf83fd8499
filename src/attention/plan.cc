#include "attention/plan.h"
#include "attention/call.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace attest {
namespace {

// The kernels that accept the spec in one phase, whatever the lengths, in list order. At most the forced one.
class Candidates {
 public:
  Candidates(const AttentionRouter& router, const AttentionSpec& spec) : router_(router), spec_(spec) {}

  // The first one whose limits hold this sequence; nullptr when none does.
  const KernelEntry* For(AttentionPhase phase, int32_t q_len, int32_t kv_len) {
    for (const KernelEntry* entry : OfPhase(phase)) {
      const LengthLimits& limits = entry->contract.limits;
      if (limits.max_q_len && q_len > *limits.max_q_len) continue;
      if (limits.max_kv_len && kv_len > *limits.max_kv_len) continue;
      return entry;
    }
    return nullptr;
  }

 private:
  const std::vector<const KernelEntry*>& OfPhase(AttentionPhase phase) {
    auto& cached = by_phase_[static_cast<size_t>(phase)];
    if (!cached) {
      cached.emplace();
      const AttentionProblem problem{.spec = spec_, .phase = phase};
      const std::string& forced = router_.forced_for(phase);
      for (const KernelEntry* entry : KernelList()) {
        if (!forced.empty() && entry->contract.name != forced) continue;
        if (RefusalsOf(*entry, problem, router_.cpu(), router_.excluded()).empty()) {
          cached->push_back(entry);
        }
      }
    }
    return *cached;
  }

  const AttentionRouter& router_;
  const AttentionSpec& spec_;
  std::optional<std::vector<const KernelEntry*>> by_phase_[kNumAttentionPhases];
};

struct GroupKey {
  AttentionPhase phase = AttentionPhase::kDecode;
  const KernelEntry* entry = nullptr;
  int32_t uniform_q_len = 0;  // of kUniformDecode; 0 otherwise
  bool operator==(const GroupKey&) const = default;
};

struct GroupDraft {
  GroupKey key;
  AttentionProblem problem;
  std::vector<int32_t> seqs;
  int32_t num_tokens = 0;
};

void AddTo(GroupDraft& group, int32_t seq, int32_t q_len, int32_t kv_len) {
  AttentionProblem& problem = group.problem;
  const bool first = problem.num_seqs++ == 0;
  problem.min_q_len = first ? q_len : std::min(problem.min_q_len, q_len);
  problem.max_q_len = first ? q_len : std::max(problem.max_q_len, q_len);
  problem.min_kv_len = first ? kv_len : std::min(problem.min_kv_len, kv_len);
  problem.max_kv_len = first ? kv_len : std::max(problem.max_kv_len, kv_len);
  group.seqs.push_back(seq);
  group.num_tokens += q_len;
}

std::unexpected<Error> InvalidSequence(int32_t seq, const std::string& what, const char* field) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("sequence {}: {}", seq, what), field);
}

// Checks the table entries the rows of one sequence may read and returns the highest block among them.
Expected<int32_t> HighestBlock(const AttentionSpec& spec, const BlockTables& tables, int32_t seq,
                               int32_t q_len, int32_t kv_len, KeyRange keys) {
  const int64_t needed = (int64_t{kv_len} + spec.block_size - 1) / spec.block_size;
  if (needed > tables.row_stride) {
    return InvalidSequence(
        seq,
        fmt::format("its block table has {} entries, kv_len {} needs {}", tables.row_stride, kv_len, needed),
        "block_tables");
  }
  int32_t highest = -1;
  const auto scan = [&](int32_t key_begin, int32_t key_end) -> Status {
    key_begin = std::max(key_begin, keys.begin);
    key_end = std::min(key_end, keys.end);
    if (key_begin >= key_end) return {};
    for (int32_t i = key_begin / spec.block_size; i <= (key_end - 1) / spec.block_size; ++i) {
      const int32_t block = tables.row(seq)[i];
      if (block < 0 || block >= tables.num_blocks) {
        return InvalidSequence(seq,
                               fmt::format("block table entry {} is {}, expected a block id{}", i, block,
                                           block < 0 ? "" : fmt::format(" below {}", tables.num_blocks)),
                               "block_tables");
      }
      highest = std::max(highest, block);
    }
    return {};
  };
  // Entries left of the window may be stale and are not looked at.
  const VisibleKeys seen = KeysOfRows(MaskOf(spec), q_len, kv_len);
  ATTEST_RETURN_IF_ERROR(scan(seen.begin, seen.end));
  ATTEST_RETURN_IF_ERROR(scan(seen.sink_begin, seen.sink_end));
  return highest;
}

Status CheckLengths(const AttentionSpec& spec, const AttentionLengths& lengths) {
  if (lengths.q_begin == nullptr) return Fail(ErrorCode::kInvalidArgument, "q_begin is absent", "q_begin");
  const int num_seqs = lengths.q_begin->num_seqs();
  if (std::ssize(lengths.kv_len) != num_seqs) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("kv_len has {} entries, expected num_seqs = {}", lengths.kv_len.size(), num_seqs),
                "kv_len");
  }
  if (spec.layout != KvLayout::kContiguous && lengths.block_tables.num_seqs != num_seqs) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("block_tables has {} rows, expected num_seqs = {}", lengths.block_tables.num_seqs,
                            num_seqs),
                "block_tables");
  }
  for (const auto& [name, values] : {std::pair{"kv_begin", lengths.kv_begin}, {"kv_end", lengths.kv_end}}) {
    if (!values.empty() && std::ssize(values) != num_seqs) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{} has {} entries, expected num_seqs = {} or none", name, values.size(), num_seqs),
          name);
    }
  }
  if (lengths.owned) {
    int32_t previous = -1;
    for (const int32_t seq : lengths.owned->seqs) {
      if (seq <= previous || seq >= num_seqs) {
        return Fail(ErrorCode::kInvalidArgument,
                    fmt::format("owned sequence {} after {}, expected ascending ids below {}", seq, previous,
                                num_seqs),
                    "owned");
      }
      previous = seq;
    }
  }
  return {};
}

KeyRange KeysOf(const AttentionLengths& lengths, int32_t seq) {
  const auto i = static_cast<size_t>(seq);
  return {.begin = lengths.kv_begin.empty() ? 0 : lengths.kv_begin[i],
          .end = lengths.kv_end.empty() ? lengths.kv_len[i] : lengths.kv_end[i]};
}

int64_t RoundUp64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Expected<AttentionPlanPtr> PlanAttention(const AttentionRouter& router, const AttentionSpec& spec,
                                         const AttentionLengths& lengths, int num_threads,
                                         PlanScratch scratch) {
  ATTEST_CHECK_GE(num_threads, 1);
  ATTEST_RETURN_IF_ERROR(ValidateSpec(spec));
  ATTEST_RETURN_IF_ERROR(CheckLengths(spec, lengths));
  AttentionPlanPtr plan(new AttentionPlan);
  plan->spec_ = spec;
  plan->lengths_ = lengths;
  plan->num_threads_ = num_threads;

  Candidates candidates(router, spec);
  std::vector<GroupDraft> drafts;
  const auto add = [&](int32_t seq) -> Status {
    const int32_t q_len = lengths.q_begin->length(seq);
    const int32_t kv_len = lengths.kv_len[static_cast<size_t>(seq)];
    if (q_len > kMaxSeqTokens) {
      return InvalidSequence(seq, fmt::format("q_len is {}, expected <= {}", q_len, kMaxSeqTokens), "q_len");
    }
    if (kv_len < 0 || kv_len > kMaxSeqTokens) {
      return InvalidSequence(seq, fmt::format("kv_len is {}, expected 0 to {}", kv_len, kMaxSeqTokens),
                             "kv_len");
    }
    const KeyRange keys = KeysOf(lengths, seq);
    if (keys.begin < 0 || keys.begin > keys.end || keys.end > kv_len) {
      return InvalidSequence(
          seq,
          fmt::format("keys [{}, {}) are not a range within its kv_len {}", keys.begin, keys.end, kv_len),
          lengths.kv_begin.empty() ? "kv_end" : "kv_begin");
    }
    if (q_len == 0) return {};  // padding: no row to write, and no part in any minimum
    if (spec.layout != KvLayout::kContiguous) {
      ATTEST_ASSIGN_OR_RETURN(const int32_t highest,
                              HighestBlock(spec, lengths.block_tables, seq, q_len, kv_len, keys));
      plan->highest_block_ = std::max(plan->highest_block_, highest);
    }
    GroupKey key{.phase = RoutePhaseOf(q_len, kv_len)};
    if (key.phase == AttentionPhase::kUniformDecode) key.uniform_q_len = q_len;
    key.entry = candidates.For(key.phase, q_len, kv_len);
    if (key.entry == nullptr) {  // let Choose say why, for this sequence alone
      const AttentionProblem problem{.spec = spec,
                                     .phase = key.phase,
                                     .num_seqs = 1,
                                     .min_q_len = q_len,
                                     .max_q_len = q_len,
                                     .min_kv_len = kv_len,
                                     .max_kv_len = kv_len};
      auto route = Choose(problem, router.cpu(), router.forced_for(key.phase), router.excluded());
      ATTEST_CHECK(!route);
      route.error().message = fmt::format("sequence {}: {}", seq, route.error().message);
      return std::unexpected(std::move(route).error());
    }
    auto draft = std::ranges::find(drafts, key, &GroupDraft::key);
    if (draft == drafts.end()) {
      drafts.push_back({.key = key, .problem = {.spec = spec, .phase = key.phase}, .seqs = {}});
      draft = drafts.end() - 1;
    }
    AddTo(*draft, seq, q_len, kv_len);
    return {};
  };
  if (lengths.owned) {
    for (const int32_t seq : lengths.owned->seqs) ATTEST_RETURN_IF_ERROR(add(seq));
  } else {
    for (int32_t seq = 0; seq < lengths.q_begin->num_seqs(); ++seq) ATTEST_RETURN_IF_ERROR(add(seq));
  }

  Cut cut;
  for (GroupDraft& draft : drafts) {
    ATTEST_ASSIGN_OR_RETURN(const Route route,
                            Choose(draft.problem, router.cpu(), draft.key.entry->contract.name));
    const auto group = static_cast<int32_t>(plan->groups_.size());
    const AttentionKernel& kernel = *route.entry().kernel;
    const size_t first_item = cut.items.size();
    for (const int32_t seq : draft.seqs) {
      const int64_t rows = lengths.q_begin->length(seq);
      const int64_t row_tile = std::max(1, kernel.row_tile(ShapeOf(spec)));
      const int64_t tiles = (rows + row_tile - 1) / row_tile;  // rounded up: the last may be shorter
      const int64_t items = std::ssize(cut.items) + tiles * spec.kv_heads;
      if (items > kMaxPlanItems) {
        return Fail(ErrorCode::kResourceExhausted,
                    fmt::format("sequence {}: the plan has {} work items or more, limit {}", seq, items,
                                kMaxPlanItems),
                    "q_len");
      }
      const bool is_part = !lengths.kv_begin.empty() || !lengths.kv_end.empty();
      CutSequence(spec, kernel, seq, lengths.q_begin->length(seq), lengths.kv_len[static_cast<size_t>(seq)],
                  cut, is_part ? std::optional(KeysOf(lengths, seq)) : std::nullopt);
    }
    for (size_t i = first_item; i < cut.items.size(); ++i) plan->items_.push_back({group, cut.items[i]});
    for (size_t i = plan->merges_.size(); i < cut.merges.size(); ++i)
      plan->merges_.push_back({group, cut.merges[i]});
    plan->thread_scratch_bytes_ =
        std::max(plan->thread_scratch_bytes_, RoundUp64(kernel.thread_scratch_bytes(ShapeOf(spec))));
    plan->groups_.push_back({.route = route,
                             .problem = draft.problem,
                             .seqs = std::move(draft.seqs),
                             .num_tokens = draft.num_tokens});
  }
  // Longest first, so that the last items to start are the short ones. Stable: equal items keep their order
  // in memory.
  std::ranges::stable_sort(plan->items_, std::greater{}, [](const PlanItem& item) { return item.cut.cost; });

  plan->partial_rows_ = cut.partial_rows;
  plan->scratch_bytes_ = CallLayoutOf(*plan).bytes;
  if (scratch == PlanScratch::kOwned) {
    plan->scratch_.reset(new (std::align_val_t{64}) std::byte[static_cast<size_t>(plan->scratch_bytes_)]);
  }
  return plan;
}

void AttentionPlanDeleter::operator()(AttentionPlan* plan) const { delete plan; }

std::vector<PlannedRoute> PlannedRoutes(const AttentionPlan& plan) {
  std::vector<PlannedRoute> routes;
  for (const PlanGroup& group : plan.groups()) {
    routes.push_back({.phase = group.problem.phase,
                      .kernel = group.route.name(),
                      .num_seqs = group.problem.num_seqs,
                      .num_tokens = group.num_tokens});
  }
  return routes;
}

}  // namespace attest
