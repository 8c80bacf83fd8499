#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <type_traits>

#include "attention/call.h"
#include "attention/plan.h"
#include "base/check.h"
#include "base/thread_team.h"
#include "kernels/cpu/append_kv.h"
#include "kernels/merge_states.h"
#include "tensor/convert.h"

namespace attest {
namespace {

// A quiet NaN that no arithmetic makes: a kernel that fails to write a row leaves it there.
constexpr uint32_t kPoison32 = 0x7fdead01u;
constexpr uint16_t kPoisonBf16 = 0x7fdeu;
constexpr uint16_t kPoisonF16 = 0x7eadu;

template <class Fn>
void ForEachOwnedRow(const AttentionPlan& plan, Fn fn) {
  for (const PlanGroup& group : plan.groups()) {
    for (const int32_t seq : group.seqs) {
      for (int32_t token = plan.lengths().q_begin->begin(seq); token < plan.lengths().q_begin->end(seq);
           ++token) {
        for (int head = 0; head < plan.spec().q_heads; ++head) fn(group, seq, token, head);
      }
    }
  }
}

void PoisonOutputs(const AttentionPlan& plan, const AttentionParams& params) {
  ForEachOwnedRow(plan, [&](const PlanGroup&, int32_t, int32_t token, int head) {
    std::byte* row = params.OutRow(token, head);
    for (int d = 0; d < params.v_head_dim; ++d) {
      if (params.out_dtype == DType::kF32) {
        std::memcpy(row + 4 * d, &kPoison32, 4);
      } else {
        std::memcpy(row + 2 * d, params.out_dtype == DType::kBF16 ? &kPoisonBf16 : &kPoisonF16, 2);
      }
    }
    if (params.lse.data != nullptr) std::memcpy(params.lse.At(head, token), &kPoison32, 4);
  });
}

// Every element of every owned row has been written.
void CheckWritten(const AttentionPlan& plan, const AttentionParams& params) {
  ForEachOwnedRow(plan, [&](const PlanGroup& group, int32_t seq, int32_t token, int head) {
    const std::byte* row = params.OutRow(token, head);
    bool written =
        params.lse.data == nullptr || std::bit_cast<uint32_t>(*params.lse.At(head, token)) != kPoison32;
    for (int d = 0; d < params.v_head_dim; ++d) {
      if (params.out_dtype == DType::kF32) {
        written = written && std::memcmp(row + 4 * d, &kPoison32, 4) != 0;
      } else {
        const uint16_t poison = params.out_dtype == DType::kBF16 ? kPoisonBf16 : kPoisonF16;
        written = written && std::memcmp(row + 2 * d, &poison, 2) != 0;
      }
    }
    if (!written) {
      CheckFailed(__FILE__, __LINE__,
                  fmt::format("attention kernel {} did not write sequence {} row {} head {} ({})",
                              group.route.name(), seq, token - plan.lengths().q_begin->begin(seq), head,
                              AttentionPhaseName(group.problem.phase)));
    }
  });
}

// Merges the splits of a tile in their order, whichever thread finished last, and counts the sink once.
void Merge(const AttentionParams& params, const CutMerge& merge, const AttentionScratch& scratch) {
  const int group = params.q_heads / params.kv_heads;
  ATTEST_CHECK_EQ(group * params.kv_heads, params.q_heads);
  const int64_t state_rows = int64_t{merge.row_end - merge.row_begin} * group;
  for (int64_t i = 0; i < state_rows; ++i) {
    const int head = merge.kv_head * group + static_cast<int>(i % group);
    const int64_t token = params.q_begin->begin(merge.seq) + merge.row_begin + i / group;
    float* first = scratch.partial_out + (merge.partial_row + i) * params.v_head_dim;
    const StateRow states{.out = first,
                          .out_stride = state_rows * params.v_head_dim,
                          .lse = scratch.partial_lse + merge.partial_row + i,
                          .lse_stride = state_rows,
                          .n = merge.num_splits};
    const std::optional<float> sink =
        params.sinks != nullptr ? std::optional<float>(params.sinks[head]) : std::nullopt;
    const float lse = MergeStateRow(states, sink, params.v_head_dim, first);
    RowFromFloats(first, params.out_dtype, params.v_head_dim, params.OutRow(token, head));
    if (params.lse.data != nullptr) *params.lse.At(head, token) = lse;
  }
}

Status BadParam(const char* field, const std::string& what) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("attention {} {}", field, what), field);
}

template <class T>
Status CheckRows(const char* field, const View<T, 3>& view, int64_t tokens, int64_t heads, int64_t dim) {
  if (view.shape != std::array<int64_t, 3>{tokens, heads, dim}) {
    return BadParam(field, fmt::format("has shape [{}, {}, {}], expected [{}, {}, {}]", view.shape[0],
                                       view.shape[1], view.shape[2], tokens, heads, dim));
  }
  if (view.size() > 0 && view.data == nullptr) return BadParam(field, "is absent");
  if (view.stride[2] != 1)
    return BadParam(field, fmt::format("has innermost stride {}, expected 1", view.stride[2]));
  return {};
}

Status CheckPaged(const AttentionSpec& spec, const PagedKv& kv, int32_t highest_block) {
  if (kv.dtype != spec.kv_dtype || kv.block_size != spec.block_size || kv.kv_heads != spec.kv_heads ||
      kv.head_dim != spec.head_dim || kv.v_head_dim != spec.v_head_dim) {
    return BadParam("kv",
                    fmt::format("is {} block {} heads {} dims {}/{}, the plan's spec has {} {} {} {}/{}",
                                DTypeName(kv.dtype), kv.block_size, kv.kv_heads, kv.head_dim, kv.v_head_dim,
                                DTypeName(spec.kv_dtype), spec.block_size, spec.kv_heads, spec.head_dim,
                                spec.v_head_dim));
  }
  if (highest_block >= kv.num_blocks) {
    return BadParam("block_tables", fmt::format("names block {}, kv has {}", highest_block, kv.num_blocks));
  }
  if (spec.layout == KvLayout::kPagedHnd &&
      (kv.k.slot_stride != spec.head_dim || kv.v.slot_stride != spec.v_head_dim)) {
    return BadParam("kv", fmt::format("has slot strides {}/{}, layout paged_hnd promises {}/{}",
                                      kv.k.slot_stride, kv.v.slot_stride, spec.head_dim, spec.v_head_dim));
  }
  return {};
}

Status CheckContiguous(const AttentionSpec& spec, const ContiguousKv& kv, std::span<const int32_t> kv_len) {
  if (kv.dtype != spec.kv_dtype) {
    return BadParam(
        "kv", fmt::format("is {}, the plan's spec has {}", DTypeName(kv.dtype), DTypeName(spec.kv_dtype)));
  }
  if (kv.k_begin.size() != kv_len.size() + 1) {
    return BadParam("k_begin",
                    fmt::format("has {} entries, expected {}", kv.k_begin.size(), kv_len.size() + 1));
  }
  if (kv.k_begin[0] != 0) return BadParam("k_begin", fmt::format("starts at {}, expected 0", kv.k_begin[0]));
  for (size_t i = 0; i < kv_len.size(); ++i) {
    if (kv.k_begin[i + 1] - kv.k_begin[i] != kv_len[i]) {
      return BadParam("k_begin", fmt::format("gives sequence {} {} keys, kv_len says {}", i,
                                             kv.k_begin[i + 1] - kv.k_begin[i], kv_len[i]));
    }
  }
  return {};
}

Status CheckPresence(const char* field, bool given, bool declared) {
  if (given == declared) return {};
  return BadParam(field,
                  declared ? "is absent, the spec declares it" : "is given, the spec does not declare it");
}

}  // namespace

Status ValidateParams(const AttentionPlan& plan, const AttentionParams& params) {
  const AttentionSpec& spec = plan.spec_;
  const int64_t tokens = plan.lengths_.q_begin->total();
  ATTEST_RETURN_IF_ERROR(CheckRows("q", params.q, tokens, spec.q_heads, spec.head_dim));
  ATTEST_RETURN_IF_ERROR(CheckRows("out", params.out, tokens, spec.q_heads, spec.v_head_dim));
  if (params.q_dtype != spec.q_dtype) {
    return BadParam("q_dtype",
                    fmt::format("is {}, expected {}", DTypeName(params.q_dtype), DTypeName(spec.q_dtype)));
  }
  if (params.out_dtype != spec.out_dtype) {
    return BadParam("out_dtype", fmt::format("is {}, expected {}", DTypeName(params.out_dtype),
                                             DTypeName(spec.out_dtype)));
  }
  ATTEST_RETURN_IF_ERROR(CheckPresence("lse", params.lse.data != nullptr, spec.wants_lse));
  if (spec.wants_lse && params.lse.shape != std::array<int64_t, 2>{spec.q_heads, tokens}) {
    return BadParam("lse", fmt::format("has shape [{}, {}], expected [{}, {}]", params.lse.shape[0],
                                       params.lse.shape[1], spec.q_heads, tokens));
  }
  ATTEST_RETURN_IF_ERROR(CheckPresence("alibi_slopes", params.alibi_slopes != nullptr, spec.has_alibi));
  ATTEST_RETURN_IF_ERROR(CheckPresence("sinks", params.sinks != nullptr, spec.has_sinks));
  ATTEST_RETURN_IF_ERROR(CheckPresence("k_descale", params.k_descale.data != nullptr, spec.has_k_descale));
  ATTEST_RETURN_IF_ERROR(CheckPresence("v_descale", params.v_descale.data != nullptr, spec.has_v_descale));
  const bool contiguous = spec.layout == KvLayout::kContiguous;
  ATTEST_RETURN_IF_ERROR(CheckPresence("paged kv", params.paged != nullptr, !contiguous));
  ATTEST_RETURN_IF_ERROR(CheckPresence("contiguous kv", params.contiguous != nullptr, contiguous));
  if (contiguous) return CheckContiguous(spec, *params.contiguous, plan.lengths_.kv_len);
  return CheckPaged(spec, *params.paged, plan.highest_block_);
}

CallLayout CallLayoutOf(const AttentionPlan& plan) {
  CallLayout layout;
  const auto take = [&layout](int64_t bytes) {
    const int64_t at = layout.bytes;
    layout.bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  layout.thread_bytes = plan.thread_scratch_bytes_;
  take(layout.thread_bytes * plan.num_threads_);
  layout.partial_out = take(plan.partial_rows_ * plan.spec_.v_head_dim * 4);
  layout.partial_lse = take(plan.partial_rows_ * 4);
  layout.counters = take(std::ssize(plan.merges_) * 4);
  layout.params = take(std::ssize(plan.groups_) * static_cast<int64_t>(sizeof(AttentionParams)));
  return layout;
}

static_assert(sizeof(std::atomic<int32_t>) == 4 && std::is_trivially_copyable_v<AttentionParams> &&
              alignof(AttentionParams) <= 64);

AttentionParams CompleteParams(const AttentionPlan& plan, AttentionParams params) {
  const AttentionSpec& spec = plan.spec();
  params.block_tables = plan.lengths().block_tables;
  params.q_begin = plan.lengths().q_begin;
  params.kv_len = plan.lengths().kv_len;
  params.q_heads = spec.q_heads;
  params.kv_heads = spec.kv_heads;
  params.head_dim = spec.head_dim;
  params.v_head_dim = spec.v_head_dim;
  params.scale = spec.scale;
  params.mask = MaskOf(spec);
  params.softcap = spec.softcap;
  return params;
}

AttentionParams ParamsOf(const AttentionPlan& plan, const AttendArgs& args) {
  AttentionParams params;
  params.q = {.data = reinterpret_cast<const std::byte*>(args.q.data),
              .shape = args.q.shape,
              .stride = args.q.stride};
  params.out = {.data = reinterpret_cast<std::byte*>(args.out.data),
                .shape = args.out.shape,
                .stride = args.out.stride};
  params.paged = args.kv;
  params.alibi_slopes = args.alibi_slopes;
  params.sinks = args.sinks;
  if (args.kv != nullptr) {
    params.k_descale = {.data = args.kv->k_scales, .seq_stride = 0, .head_stride = 1};
    params.v_descale = {.data = args.kv->v_scales, .seq_stride = 0, .head_stride = 1};
  }
  return CompleteParams(plan, params);
}

AttentionCall::AttentionCall(const AttentionPlan& plan, const AttentionParams& params, std::byte* workspace)
    : plan_(&plan),
      params_(CompleteParams(plan, params)),
      workspace_(workspace),
      layout_(CallLayoutOf(plan)) {
  auto* by_group = reinterpret_cast<AttentionParams*>(workspace + layout_.params);
  for (size_t i = 0; i < plan.groups_.size(); ++i) {
    std::construct_at(by_group + i, params_)->owned = {plan.groups_[i].seqs};
  }
  by_group_ = {by_group, plan.groups_.size()};
  auto* done = reinterpret_cast<std::atomic<int32_t>*>(workspace + layout_.counters);
  for (size_t i = 0; i < plan.merges_.size(); ++i) std::construct_at(done + i, 0);
  done_ = {done, plan.merges_.size()};
}

void AttentionCall::RunShare(int share) {
  const AttentionPlan& plan = *plan_;
  const AttentionScratch scratch{
      .thread = {workspace_ + share * layout_.thread_bytes, static_cast<size_t>(layout_.thread_bytes)},
      .partial_out = reinterpret_cast<float*>(workspace_ + layout_.partial_out),
      .partial_lse = reinterpret_cast<float*>(workspace_ + layout_.partial_lse),
  };
  for (;;) {
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= plan.items_.size()) return;
    const PlanItem& item = plan.items_[i];
    const auto group = static_cast<size_t>(item.group);
    plan.groups_[group].route.entry().kernel->run(by_group_[group], item.cut.work, scratch);
    if (item.cut.work.num_splits == 1) continue;
    const auto merge = static_cast<size_t>(item.cut.merge);
    if (done_[merge].fetch_add(1, std::memory_order_acq_rel) + 1 == item.cut.work.num_splits) {
      Merge(by_group_[group], plan.merges_[merge].cut, scratch);
    }
  }
}

void AttendParams(const AttentionPlan& plan, const AttentionParams& params, ThreadTeam& team,
                  bool poison_outputs) {
  if (const Status valid = ValidateParams(plan, params); !valid) {
    CheckFailed(__FILE__, __LINE__, valid.error().message);
  }
  ATTEST_CHECK_LE(team.size(), plan.num_threads_);
  ATTEST_CHECK(plan.scratch_ != nullptr);
  AttentionCall call(plan, params, plan.scratch_.get());
  if (poison_outputs) PoisonOutputs(plan, call.params());
  if (plan.items_.size() == 1) {
    call.RunShare(0);  // a region would only wake threads that find nothing to do
  } else if (!plan.items_.empty()) {
    team.Run([&call](int rank) { call.RunShare(rank); });
  }
  if (poison_outputs) CheckWritten(plan, call.params());
}

void Attend(const AttentionPlan& plan, const AttendArgs& args, ThreadTeam& team) {
  AttendParams(plan, ParamsOf(plan, args), team, args.poison_outputs);
}

int64_t AppendKv(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots,
                 const PagedKv& kv, ThreadTeam& team) {
  const auto rows = std::ssize(slots);
  ATTEST_CHECK((k.shape == std::array<int64_t, 3>{rows, kv.kv_heads, kv.head_dim}));
  ATTEST_CHECK((v.shape == std::array<int64_t, 3>{rows, kv.kv_heads, kv.v_head_dim}));
  ATTEST_CHECK_EQ(k.stride[2], 1);
  ATTEST_CHECK_EQ(v.stride[2], 1);
  // A region costs 0.3 us; 64 rows of a small model convert in about that.
  constexpr int64_t kRowsPerThread = 64;
  if (rows <= kRowsPerThread || team.size() == 1) {
    return AppendKvRows(k, v, slots, kv, 0, rows);
  }
  std::atomic<int64_t> lost = 0;
  team.Run([&](int rank) {
    const IndexRange range = PartitionRange(rows, rank, team.size());
    lost += AppendKvRows(k, v, slots, kv, range.begin, range.end);
  });
  return lost;
}

}  // namespace attest
