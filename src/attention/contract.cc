#include "attention/contract.h"

#include <fmt/format.h>

namespace attest {

bool PhaseSet::Has(AttentionPhase phase) const {
  switch (phase) {
    case AttentionPhase::kDecode:
      return decode;
    case AttentionPhase::kPrefill:
      return prefill;
    case AttentionPhase::kExtend:
      return extend;
    case AttentionPhase::kUniformDecode:
      return uniform_decode;
  }
  return false;
}

const char* AttentionArithmeticName(AttentionArithmetic arithmetic) {
  return arithmetic == AttentionArithmetic::kF32 ? "f32" : "bf16";
}

void Require(std::vector<Reason>& reasons, bool holds, std::string_view field, std::string_view value,
             std::string_view expected) {
  if (!holds) reasons.push_back({std::string(field), std::string(value), std::string(expected)});
}

void Require(std::vector<Reason>& reasons, bool holds, std::string_view field, double value,
             std::string_view expected) {
  if (!holds) reasons.push_back({std::string(field), fmt::format("{}", value), std::string(expected)});
}

void RequireWithout(std::vector<Reason>& reasons, const AttentionSpec& spec, const Lacks& lacks) {
  if (lacks.softcap) Require(reasons, spec.softcap == 0.0f, "softcap", spec.softcap, "0 (off)");
  if (lacks.alibi) Require(reasons, !spec.has_alibi, "alibi", "on", "off");
  if (lacks.sinks) Require(reasons, !spec.has_sinks, "sinks", "on", "off");
  if (lacks.sink_tokens) Require(reasons, spec.sink_tokens == 0, "sink_tokens", spec.sink_tokens, "0");
  if (lacks.window_left) {
    Require(reasons, !spec.window_left, "window_left", spec.window_left.value_or(0), "no limit");
  }
  if (lacks.window_right) {
    // Causal calls already hide every key right of the row, so a right limit changes nothing there.
    Require(reasons, !spec.window_right || spec.causal, "window_right", spec.window_right.value_or(0),
            "no limit");
  }
  if (lacks.chunk) Require(reasons, !spec.chunk, "chunk", spec.chunk.value_or(0), "off");
  if (lacks.descale) {
    Require(reasons, !spec.has_k_descale, "k_descale", "given", "absent");
    Require(reasons, !spec.has_v_descale, "v_descale", "given", "absent");
  }
  if (lacks.lse) Require(reasons, !spec.wants_lse, "wants_lse", "true", "false");
  if (lacks.non_causal) Require(reasons, spec.causal, "causal", "false", "true");
}

std::vector<Reason> Check(const KernelContract& contract, const AttentionProblem& problem,
                          const CpuFeatures& cpu) {
  std::vector<Reason> reasons;
  Require(reasons, HasIsa(cpu, contract.isa), "cpu", CpuIsaName(IsasOf(cpu).front()),
          CpuIsaName(contract.isa));
  Require(reasons, contract.phases.Has(problem.phase), "phase", AttentionPhaseName(problem.phase),
          "a phase of this kernel");
  Require(reasons, !problem.spec.precise || contract.arithmetic == AttentionArithmetic::kF32, "precise",
          "true", "false (this kernel rounds queries and weights to bf16)");
  Require(reasons, !problem.spec.rowwise || contract.rowwise, "rowwise", "true",
          "false (this kernel's sums of a row depend on the rows beside it)");
  if (problem.num_seqs > 0) {
    const LengthLimits& limits = contract.limits;
    if (limits.max_q_len && problem.max_q_len > *limits.max_q_len) {
      Require(reasons, false, "max_q_len", problem.max_q_len, fmt::format("<= {}", *limits.max_q_len));
    }
    if (limits.max_kv_len && problem.max_kv_len > *limits.max_kv_len) {
      Require(reasons, false, "max_kv_len", problem.max_kv_len, fmt::format("<= {}", *limits.max_kv_len));
    }
  }
  contract.check(problem, reasons);
  return reasons;
}

}  // namespace attest
