#include "attention/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "attention/plan.h"
#include "base/check.h"
#include "tensor/cu_seqlens.h"

namespace attest {
namespace {

// Of an output that the file does not hold: v_head_dim alone can make it 65,536 times the file's size.
constexpr int64_t kMaxOutBytes = int64_t{1} << 30;

// The tensors of a case as views, with an output of its own. The case outlives it.
class CaseCall {
 public:
  static Expected<std::unique_ptr<CaseCall>> Make(const AttentionCaseFile& c, const AttentionRouter& router,
                                                  int num_threads) {
    ATTEST_ASSIGN_OR_RETURN(CuSeqlens q_begin, CuSeqlens::FromLengths(c.q_len));
    const int64_t out_bytes =
        int64_t{q_begin.total()} * c.spec.q_heads * c.spec.v_head_dim * BlockBytes(c.spec.out_dtype);
    if (c.out.empty() && out_bytes > kMaxOutBytes) {
      return Fail(ErrorCode::kResourceExhausted,
                  fmt::format("v_head_dim is {}: the output takes {} bytes, at most {} are computed",
                              c.spec.v_head_dim, out_bytes, kMaxOutBytes),
                  "v_head_dim");
    }
    auto call = std::unique_ptr<CaseCall>(new CaseCall(c, std::move(q_begin)));
    const AttentionLengths lengths{.q_begin = &call->q_begin_,
                                   .kv_len = c.kv_len,
                                   .block_tables = {.ids = c.block_tables.data(),
                                                    .row_stride = c.table_width,
                                                    .num_seqs = static_cast<int>(c.q_len.size())},
                                   .owned = {}};
    ATTEST_ASSIGN_OR_RETURN(call->plan_, PlanAttention(router, c.spec, lengths, num_threads));
    // The case was checked when it was read, the table by the plan: what is left to refuse is a block that
    // the case does not have.
    ATTEST_RETURN_IF_ERROR(ValidateParams(*call->plan_, call->Tensors()));
    return call;
  }

  [[nodiscard]] const AttentionPlan& plan() const { return *plan_; }
  [[nodiscard]] std::vector<std::byte>& out() { return out_; }

  // What AttendParams takes.
  [[nodiscard]] AttentionParams Tensors() {
    const AttentionSpec& spec = case_.spec;
    const int64_t tokens = q_begin_.total();
    AttentionParams params;
    params.q = View<const std::byte, 3>::Dense(case_.q.data(), {tokens, spec.q_heads, spec.head_dim});
    params.q_dtype = spec.q_dtype;
    params.out = View<std::byte, 3>::Dense(out_.data(), {tokens, spec.q_heads, spec.v_head_dim});
    params.out_dtype = spec.out_dtype;
    if (spec.wants_lse) params.lse = View<float, 2>::Dense(lse_.data(), {spec.q_heads, tokens});
    if (spec.layout == KvLayout::kContiguous) {
      params.contiguous = &contiguous_;
    } else {
      params.paged = &paged_;
    }
    if (spec.has_alibi) params.alibi_slopes = case_.alibi_slopes.data();
    if (spec.has_sinks) params.sinks = case_.sinks.data();
    if (spec.has_k_descale) params.k_descale = {case_.k_descale.data(), spec.kv_heads, 1};
    if (spec.has_v_descale) params.v_descale = {case_.v_descale.data(), spec.kv_heads, 1};
    return params;
  }

 private:
  CaseCall(const AttentionCaseFile& c, CuSeqlens q_begin) : case_(c), q_begin_(std::move(q_begin)) {
    const AttentionSpec& spec = c.spec;
    const auto rows = static_cast<size_t>(q_begin_.total()) * static_cast<size_t>(spec.q_heads);
    out_.resize(rows * static_cast<size_t>(spec.v_head_dim) *
                static_cast<size_t>(BlockBytes(spec.out_dtype)));
    if (spec.wants_lse) lse_.resize(rows);
    k_begin_.push_back(0);
    for (const int32_t kv_len : c.kv_len) k_begin_.push_back(k_begin_.back() + kv_len);
    const bool hnd = spec.layout == KvLayout::kPagedHnd;
    // Kernels read pages through non-const pointers, but only read.
    const auto pages = [&](const std::vector<std::byte>& data, int64_t dim) -> KvPages {
      return {.data = const_cast<std::byte*>(data.data()),
              .block_stride = int64_t{spec.block_size} * spec.kv_heads * dim,
              .head_stride = hnd ? spec.block_size * dim : dim,
              .slot_stride = hnd ? dim : spec.kv_heads * dim};
    };
    paged_ = {.k = pages(c.k, spec.head_dim),
              .v = pages(c.v, spec.v_head_dim),
              .dtype = spec.kv_dtype,
              .num_blocks = c.num_blocks,
              .block_size = spec.block_size,
              .kv_heads = spec.kv_heads,
              .head_dim = spec.head_dim,
              .v_head_dim = spec.v_head_dim};
    contiguous_ = {.k = c.k.data(),
                   .v = c.v.data(),
                   .dtype = spec.kv_dtype,
                   .k_token_stride = int64_t{spec.kv_heads} * spec.head_dim,
                   .k_head_stride = spec.head_dim,
                   .v_token_stride = int64_t{spec.kv_heads} * spec.v_head_dim,
                   .v_head_stride = spec.v_head_dim,
                   .k_begin = k_begin_};
  }

  const AttentionCaseFile& case_;
  const CuSeqlens q_begin_;
  std::vector<int32_t> k_begin_;
  PagedKv paged_;
  ContiguousKv contiguous_;
  std::vector<std::byte> out_;
  std::vector<float> lse_;
  AttentionPlanPtr plan_;
};

struct Row {
  const PlanGroup* group = nullptr;
  int32_t seq = 0, row = 0;
  int head = 0;
};

ReplayReport Judge(const AttentionPlan& plan, const AttentionParams& params, ThreadTeam& team) {
  const CuSeqlens& q_begin = *plan.lengths().q_begin;
  std::vector<const PlanGroup*> group_of(static_cast<size_t>(q_begin.num_seqs()));
  for (const PlanGroup& group : plan.groups()) {
    for (const int32_t seq : group.seqs) group_of[static_cast<size_t>(seq)] = &group;
  }
  std::vector<Row> rows;
  for (int seq = 0; seq < q_begin.num_seqs(); ++seq) {
    for (int32_t row = 0; row < q_begin.length(seq); ++row) {
      for (int head = 0; head < plan.spec().q_heads; ++head) {
        rows.push_back({.group = group_of[static_cast<size_t>(seq)], .seq = seq, .row = row, .head = head});
      }
    }
  }
  std::vector<RowVerdict> verdicts(rows.size());
  std::vector<RowChecker> checkers(static_cast<size_t>(team.size()));
  std::atomic<size_t> next{0};
  team.Run([&](int rank) {
    for (size_t i = next.fetch_add(1); i < rows.size(); i = next.fetch_add(1)) {
      const Row& at = rows[i];
      verdicts[i] = checkers[static_cast<size_t>(rank)].Check(
          params, at.group->route.entry().contract.arithmetic, at.seq, at.row, at.head);
    }
  });

  ReplayReport report{.routes = PlannedRoutes(plan), .rows = std::ssize(rows), .first = {}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowVerdict& verdict = verdicts[i];
    if (!verdict.verifiable) {
      ++report.unverifiable_rows;
      continue;
    }
    report.worst_ratio = std::max(report.worst_ratio, verdict.ratio);
    if (verdict.ok()) continue;
    ++report.wrong_rows;
    if (report.first) continue;
    report.first = ReplayDifference{.kernel = rows[i].group->route.name(),
                                    .phase = rows[i].group->problem.phase,
                                    .seq = rows[i].seq,
                                    .row = rows[i].row,
                                    .head = rows[i].head,
                                    .dim = verdict.first_wrong_dim,
                                    .verdict = verdict};
  }
  return report;
}

}  // namespace

Expected<ReplayReport> ReplayCase(const AttentionCaseFile& attention_case, const AttentionRouter& router,
                                  ThreadTeam& team) {
  ATTEST_ASSIGN_OR_RETURN(const auto call, CaseCall::Make(attention_case, router, team.size()));
  const AttentionParams params = call->Tensors();
  AttendParams(call->plan(), params, team);
  return Judge(call->plan(), CompleteParams(call->plan(), params), team);
}

Expected<ReplayReport> JudgeRecorded(const AttentionCaseFile& attention_case, const AttentionRouter& router,
                                     ThreadTeam& team) {
  if (attention_case.out.empty()) {
    return Fail(ErrorCode::kNotFound, "the case has no recorded output", "out");
  }
  ATTEST_ASSIGN_OR_RETURN(const auto call, CaseCall::Make(attention_case, router, team.size()));
  call->out() = attention_case.out;
  AttentionParams params = CompleteParams(call->plan(), call->Tensors());
  params.lse = {};  // a case records none
  return Judge(call->plan(), params, team);
}

}  // namespace attest
