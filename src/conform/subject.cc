#include "conform/subject.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "kernels/merge_states.h"

namespace attest::conform {
namespace {

class KernelSubject final : public Subject {
 public:
  explicit KernelSubject(const KernelEntry& entry) : entry_(entry), name_(entry.contract.name) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] AttentionArithmetic arithmetic() const override { return entry_.contract.arithmetic; }
  [[nodiscard]] bool is_bit_stable() const override { return true; }
  [[nodiscard]] bool takes_owned() const override { return true; }
  [[nodiscard]] const KernelEntry* entry() const override { return &entry_; }
  [[nodiscard]] std::vector<Reason> Refusals(const AttentionProblem& problem) override {
    return Check(entry_.contract, problem, ThisCpu());
  }
  [[nodiscard]] std::vector<Reason> RefusalsOfMixed(const AttentionProblem&) override { return {}; }
  [[nodiscard]] Status Attend(const AttentionSpec& spec, const AttentionLengths& lengths,
                              const AttentionParams& params, int num_threads) override {
    ATTEST_ASSIGN_OR_RETURN(const AttentionRouter router, AttentionRouter::Create(ThisCpu(), name_));
    ATTEST_ASSIGN_OR_RETURN(const AttentionPlanPtr plan, PlanAttention(router, spec, lengths, num_threads));
    for (const PlannedRoute& route : PlannedRoutes(*plan)) {
      if (route.kernel != name_) {
        return Fail(ErrorCode::kInternal, fmt::format("{} was forced, {} would run", name_, route.kernel));
      }
    }
    ATTEST_RETURN_IF_ERROR(ValidateParams(*plan, params));
    AttendParams(*plan, params, Team(num_threads), /*poison_outputs=*/false);
    return {};
  }

 private:
  const KernelEntry& entry_;
  const std::string name_;
};

void Mark(PhaseSet& set, AttentionPhase phase) {
  switch (phase) {
    case AttentionPhase::kDecode:
      set.decode = true;
      return;
    case AttentionPhase::kPrefill:
      set.prefill = true;
      return;
    case AttentionPhase::kExtend:
      set.extend = true;
      return;
    case AttentionPhase::kUniformDecode:
      set.uniform_decode = true;
      return;
  }
}

// The same call restricted to sequences [begin, end), which lie next to each other in every tensor.
struct SubCall {
  CuSeqlens q_begin;
  std::vector<int32_t> k_begin;
  ContiguousKv contiguous;
  AttentionLengths lengths;
  AttentionParams params;

  SubCall(const AttentionLengths& whole, const AttentionParams& tensors, int32_t begin, int32_t end)
      : lengths(whole), params(tensors) {
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    std::vector<int32_t> q_len;
    for (int32_t seq = begin; seq < end; ++seq) q_len.push_back(whole.q_begin->length(seq));
    q_begin = CuSeqlens::FromLengths(q_len).value();
    lengths.q_begin = &q_begin;
    lengths.kv_len = whole.kv_len.subspan(first, count);
    lengths.block_tables.num_seqs = end - begin;
    if (lengths.block_tables.ids != nullptr)
      lengths.block_tables.ids += begin * lengths.block_tables.row_stride;
    const int64_t token = whole.q_begin->begin(begin);
    params.q.data = params.QRow(token, 0);
    params.out.data = params.OutRow(token, 0);
    params.q.shape[0] = params.out.shape[0] = q_begin.total();
    if (params.lse.data != nullptr) {
      params.lse.data += token * params.lse.stride[1];
      params.lse.shape[1] = q_begin.total();
    }
    if (params.k_descale.data != nullptr) params.k_descale.data += begin * params.k_descale.seq_stride;
    if (params.v_descale.data != nullptr) params.v_descale.data += begin * params.v_descale.seq_stride;
    if (params.contiguous != nullptr) {
      contiguous = *params.contiguous;
      const int64_t key = contiguous.k_begin[first];
      for (size_t i = first; i <= first + count; ++i)
        k_begin.push_back(contiguous.k_begin[i] - static_cast<int32_t>(key));
      contiguous.k_begin = k_begin;
      const int bytes = BlockBytes(contiguous.dtype);
      contiguous.k = static_cast<const std::byte*>(contiguous.k) + key * contiguous.k_token_stride * bytes;
      contiguous.v = static_cast<const std::byte*>(contiguous.v) + key * contiguous.v_token_stride * bytes;
      params.contiguous = &contiguous;
    }
  }
  SubCall(const SubCall&) = delete;
};

// The outputs as numbers; notes what was written outside the rows of `ran`.
AttentionResult Collect(AttentionBatch& batch, const AttentionBatch::Output& output, float fill,
                        const std::vector<bool>& ran) {
  AttentionResult result;
  const AttentionSpec& spec = batch.spec();
  if (!output.out.GuardsIntact() || !output.lse.GuardsIntact())
    result.violation = "wrote outside its outputs";
  if (!batch.PaddingUntouched(output, fill)) result.violation = "wrote between the rows of out";
  if (spec.wants_lse)
    result.lse.resize(static_cast<size_t>(spec.q_heads) * static_cast<size_t>(batch.num_tokens()));
  result.out.reserve(static_cast<size_t>(batch.num_tokens()) *
                     static_cast<size_t>(spec.q_heads * spec.v_head_dim));
  uint32_t encoded = 0;  // the fill as it reads back
  EncodeElement(&encoded, spec.out_dtype, 0, fill);
  const double filled = ReferenceElement(&encoded, spec.out_dtype, 0);
  const auto is_fill = [](double value, double of) {
    return value == of || (std::isnan(value) && std::isnan(of));
  };
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    const bool seq_ran = ran.empty() || ran[static_cast<size_t>(seq)];
    for (int32_t token = batch.q_begin().begin(seq); token < batch.q_begin().end(seq); ++token) {
      for (int head = 0; head < spec.q_heads; ++head) {
        bool touched = false;
        for (int d = 0; d < spec.v_head_dim; ++d) {
          const double value = batch.OutElement(output, token, head, d);
          touched = touched || !is_fill(value, filled);
          result.out.push_back(seq_ran ? value : 0.0);
        }
        if (spec.wants_lse) {
          const double lse = batch.LseElement(output, token, head);
          touched = touched || !is_fill(lse, fill);
          result.lse[static_cast<size_t>(head) * static_cast<size_t>(batch.num_tokens()) +
                     static_cast<size_t>(token)] = seq_ran ? lse : 0.0;
        }
        if (touched && !seq_ran) {
          result.violation = fmt::format("wrote token {} of sequence {}, which it was not given", token, seq);
        }
      }
      result.token_ran.push_back(seq_ran);
    }
  }
  return result;
}

}  // namespace

const CpuFeatures& ThisCpu() {
  static const CpuFeatures cpu = DetectCpu();
  return cpu;
}

std::vector<const KernelEntry*> RunnableKernels() {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry* entry : KernelList()) {
    if (HasIsa(ThisCpu(), entry->contract.isa)) kernels.push_back(entry);
  }
  return kernels;
}

std::unique_ptr<Subject> MakeKernelSubject(const KernelEntry& entry) {
  return std::make_unique<KernelSubject>(entry);
}

std::vector<std::unique_ptr<Subject>> RunnableSubjects() {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const KernelEntry* entry : RunnableKernels()) subjects.push_back(MakeKernelSubject(*entry));
  return subjects;
}

ThreadTeam& Team(int num_threads) {
  // A forked child has the memory of its parent's teams, but not their threads: those are left alone.
  using Teams = std::map<int, std::unique_ptr<ThreadTeam>>;
  static Teams* teams = nullptr;
  static pid_t owner = 0;
  if (owner != getpid()) {
    teams = new Teams;
    owner = getpid();
  }
  auto& team = (*teams)[num_threads];
  // Trials share a small machine: do not pin, and go to sleep at once.
  if (!team) {
    team = std::make_unique<ThreadTeam>(
        ThreadTeamOptions{.num_threads = num_threads, .pin = false, .spin_us = 20});
  }
  return *team;
}

AttentionProblem ProblemOf(const AttentionSpec& spec, const AttentionLengths& lengths, AttentionPhase phase,
                           const std::vector<int32_t>& seqs) {
  AttentionProblem problem{.spec = spec, .phase = phase};
  for (const int32_t seq : seqs) {
    const int32_t q_len = lengths.q_begin->length(seq), kv_len = lengths.kv_len[static_cast<size_t>(seq)];
    if (q_len == 0) continue;
    const bool first = problem.num_seqs++ == 0;
    problem.min_q_len = first ? q_len : std::min(problem.min_q_len, q_len);
    problem.max_q_len = first ? q_len : std::max(problem.max_q_len, q_len);
    problem.min_kv_len = first ? kv_len : std::min(problem.min_kv_len, kv_len);
    problem.max_kv_len = first ? kv_len : std::max(problem.max_kv_len, kv_len);
  }
  return problem;
}

Expected<SubjectRun> RunSubject(Subject& subject, AttentionBatch& batch, const RunOptions& options) {
  const AttentionSpec& spec = batch.spec();
  const AttentionLengths lengths = batch.lengths();
  SubjectRun run;
  std::vector<bool> takes(static_cast<size_t>(batch.num_seqs()), false);  // and has a phase it accepts
  std::vector<int32_t> accepted;                                          // with rows, ascending
  for (const AttentionPhase phase : kAttentionPhases) {
    std::vector<int32_t> seqs;
    for (int32_t seq = 0; seq < batch.num_seqs(); ++seq) {
      const bool is_owned = !options.owned || std::ranges::find(*options.owned, seq) != options.owned->end();
      const int32_t q_len = batch.q_begin().length(seq);
      if (is_owned && q_len > 0 && RoutePhaseOf(q_len, batch.kv_len()[static_cast<size_t>(seq)]) == phase)
        seqs.push_back(seq);
    }
    if (seqs.empty()) continue;
    std::vector<Reason> reasons = subject.Refusals(ProblemOf(spec, lengths, phase, seqs));
    if (!reasons.empty()) {
      std::ranges::move(reasons, std::back_inserter(run.refusals));
      continue;
    }
    Mark(run.phases, phase);
    for (const int32_t seq : seqs) takes[static_cast<size_t>(seq)] = true;
    accepted.insert(accepted.end(), seqs.begin(), seqs.end());
  }
  std::ranges::sort(accepted);
  subject.AskForSplits(options.num_splits);
  const AttentionBatch::Output output = batch.MakeOutput(options.fill);
  const AttentionParams tensors = batch.Tensors(output);
  if (!accepted.empty() && subject.takes_owned()) {
    AttentionLengths owned = lengths;
    owned.owned = OwnedSeqs{accepted};
    ATTEST_RETURN_IF_ERROR(subject.Attend(spec, owned, tensors, options.num_threads));
  } else if (!accepted.empty()) {
    // As few calls as it takes: sequences that stand together, of all phases or else of one at a time.
    const auto phase_of = [&](int32_t seq) {
      return RoutePhaseOf(batch.q_begin().length(seq), batch.kv_len()[static_cast<size_t>(seq)]);
    };
    const bool mixed =
        subject.RefusalsOfMixed(ProblemOf(spec, lengths, AttentionPhase::kExtend, accepted)).empty();
    for (int32_t begin = 0; begin < batch.num_seqs();) {
      int32_t end = begin;
      std::optional<AttentionPhase> phase;
      for (; end < batch.num_seqs(); ++end) {
        const bool has_rows = batch.q_begin().length(end) > 0;
        if (has_rows && !takes[static_cast<size_t>(end)]) break;
        if (has_rows && !mixed && phase && phase_of(end) != *phase) break;
        if (has_rows) phase = phase_of(end);
      }
      if (phase) {
        const SubCall call(lengths, tensors, begin, end);
        ATTEST_RETURN_IF_ERROR(subject.Attend(spec, call.lengths, call.params, options.num_threads));
      }
      begin = std::max(end, begin + 1);
    }
  }
  run.result = Collect(batch, output, options.fill, takes);
  return run;
}

std::string ForcedWherePossible(const KernelEntry& entry, const AttentionSpec& spec) {
  std::string forced;
  bool any = false;
  for (const AttentionPhase phase : kAttentionPhases) {
    const AttentionProblem problem{.spec = spec, .phase = phase};
    const bool accepts = Check(entry.contract, problem, ThisCpu()).empty();
    any = any || accepts;
    forced += forced.empty() ? "" : ",";
    forced += std::string(AttentionPhaseName(phase)) + "=" +
              (accepts ? std::string(entry.contract.name) : "attention_general");
  }
  return any ? forced : "";
}

Expected<AttentionResult> RunForced(AttentionBatch& batch, const std::string& forced,
                                    const RunOptions& options) {
  ATTEST_ASSIGN_OR_RETURN(const AttentionRouter router, AttentionRouter::Create(ThisCpu(), forced));
  AttentionLengths lengths = batch.lengths();
  if (options.owned) lengths.owned = OwnedSeqs{*options.owned};
  ATTEST_ASSIGN_OR_RETURN(const AttentionPlanPtr plan,
                          PlanAttention(router, batch.spec(), lengths, options.num_threads));
  const AttentionBatch::Output output = batch.MakeOutput(options.fill);
  const AttentionParams params = batch.Tensors(output);
  ATTEST_RETURN_IF_ERROR(ValidateParams(*plan, params));
  AttendParams(*plan, params, Team(options.num_threads), /*poison_outputs=*/false);
  AttentionResult result = Collect(batch, output, options.fill, {});
  result.routes = PlannedRoutes(*plan);
  return result;
}

AttentionResult RunSplits(AttentionBatch& batch, const KernelEntry& entry, const std::vector<int32_t>& cuts) {
  const AttentionSpec& spec = batch.spec();
  const AttentionShape shape = ShapeOf(spec);
  const int32_t rows = batch.q_begin().length(0);
  ATTEST_CHECK_LE(rows, entry.kernel->row_tile(shape));
  const auto splits = static_cast<int64_t>(cuts.size()) - 1;
  const int64_t state_rows = int64_t{rows} * shape.group();
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  AttentionParams params = batch.Params(output);
  const std::vector<int32_t> owned{0};
  params.owned = {owned};
  const GuardedBytes thread(entry.kernel->thread_scratch_bytes(shape) + 64);
  const GuardedBytes partial_out(splits * state_rows * spec.v_head_dim * 4),
      partial_lse(splits * state_rows * 4);
  const AttentionScratch scratch{.thread = {thread.data(), static_cast<size_t>(thread.size())},
                                 .partial_out = partial_out.as<float>(),
                                 .partial_lse = partial_lse.as<float>()};
  AttentionResult result;
  result.out.resize(static_cast<size_t>(rows) * static_cast<size_t>(spec.q_heads * spec.v_head_dim));
  result.lse.resize(static_cast<size_t>(spec.q_heads) * static_cast<size_t>(rows));
  for (int kv_head = 0; kv_head < spec.kv_heads; ++kv_head) {
    for (int64_t split = 0; split < splits; ++split) {
      entry.kernel->run(params,
                        {.seq = 0,
                         .kv_head = kv_head,
                         .row_begin = 0,
                         .row_end = rows,
                         .kv_begin = cuts[static_cast<size_t>(split)],
                         .kv_end = cuts[static_cast<size_t>(split) + 1],
                         .num_splits = static_cast<int32_t>(splits),
                         .partial_row = split * state_rows},
                        scratch);
    }
    std::vector<float> merged(static_cast<size_t>(spec.v_head_dim));
    for (int64_t i = 0; i < state_rows; ++i) {
      const auto head = static_cast<size_t>(kv_head * shape.group() + i % shape.group());
      const auto row = static_cast<size_t>(i / shape.group());
      const float lse =
          MergeStateRow({.out = scratch.partial_out + i * spec.v_head_dim,
                         .out_stride = state_rows * spec.v_head_dim,
                         .lse = scratch.partial_lse + i,
                         .lse_stride = state_rows,
                         .n = static_cast<int>(splits)},
                        spec.has_sinks ? std::optional<float>(batch.sinks()[head]) : std::nullopt,
                        spec.v_head_dim, merged.data());
      for (size_t d = 0; d < merged.size(); ++d) {
        result.out[(row * static_cast<size_t>(spec.q_heads) + head) * merged.size() + d] = merged[d];
      }
      result.lse[head * static_cast<size_t>(rows) + row] = lse;
    }
  }
  if (!partial_out.GuardsIntact() || !partial_lse.GuardsIntact() || !thread.GuardsIntact())
    result.violation = "wrote outside its scratch";
  return result;
}

}  // namespace attest::conform
