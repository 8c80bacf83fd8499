#include "attention/explain.h"

#include <fmt/format.h>

#include "attention/dispatch.h"

namespace attest {

std::vector<KernelInfo> DescribeKernels(const CpuFeatures& cpu) {
  std::vector<KernelInfo> kernels;
  for (const KernelEntry* entry : KernelList()) {
    const KernelContract& contract = entry->contract;
    kernels.push_back({.name = contract.name,
                       .words = contract.words,
                       .isa = contract.isa,
                       .arithmetic = contract.arithmetic,
                       .phases = contract.phases,
                       .limits = contract.limits,
                       .cpu_has_isa = HasIsa(cpu, contract.isa)});
  }
  return kernels;
}

Expected<Explanation> Explain(const AttentionProblem& problem, const CpuFeatures& cpu,
                              std::string_view forced) {
  Explanation explanation{
      .problem = problem, .forced = std::string(forced), .kernel = std::nullopt, .verdicts = {}};
  const auto route = Choose(problem, cpu, forced);
  if (route) {
    explanation.kernel = route->name();
  } else if (route.error().code != ErrorCode::kUnsupported) {
    return std::unexpected(route.error());
  }
  for (const KernelEntry* entry : KernelList()) {
    Verdict verdict{.kernel = entry->contract.name,
                    .runs = explanation.kernel == entry->contract.name,
                    .reasons = Check(entry->contract, problem, cpu)};
    if (verdict.reasons.empty() && !verdict.runs) {
      verdict.reasons.push_back(forced.empty()
                                    ? Reason{"order", "later in the list",
                                             fmt::format("{} accepts and comes first", *explanation.kernel)}
                                    : Reason{"forced", std::string(forced),
                                             fmt::format("{} to run this kernel", entry->contract.name)});
    }
    explanation.verdicts.push_back(std::move(verdict));
  }
  return explanation;
}

Expected<AttentionProblem> ProblemOf(const AttentionSpec& spec, int32_t q_len, int32_t kv_len) {
  if (q_len < 1 || q_len > kMaxSeqTokens) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("q_len is {}, expected 1 to {}", q_len, kMaxSeqTokens), "q_len");
  }
  if (kv_len < 0 || kv_len > kMaxSeqTokens) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("kv_len is {}, expected 0 to {}", kv_len, kMaxSeqTokens), "kv_len");
  }
  return AttentionProblem{.spec = spec,
                          .phase = RoutePhaseOf(q_len, kv_len),
                          .num_seqs = 1,
                          .min_q_len = q_len,
                          .max_q_len = q_len,
                          .min_kv_len = kv_len,
                          .max_kv_len = kv_len};
}

}  // namespace attest
