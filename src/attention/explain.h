// Answers two questions without running anything: which kernels are there, and for a given call, which runs
// and why every other one does not. Plain data for `attest kernels`, `attest explain` and reports.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/contract.h"
#include "attention/problem.h"
#include "base/error.h"
#include "device/cpu.h"

namespace attest {

struct KernelInfo {
  std::string_view name;
  std::string_view words;  // the contract, for people
  CpuIsa isa = CpuIsa::kPortable;
  AttentionArithmetic arithmetic = AttentionArithmetic::kF32;
  PhaseSet phases;
  LengthLimits limits;
  bool cpu_has_isa = false;
};
// Every kernel of this build, in the order in which they are tried.
[[nodiscard]] std::vector<KernelInfo> DescribeKernels(const CpuFeatures& cpu);

struct Verdict {
  std::string_view kernel;
  bool runs = false;
  std::vector<Reason> reasons;  // empty for the kernel that runs; never empty for the others
};

struct Explanation {
  AttentionProblem problem;
  std::string forced;
  std::optional<std::string_view> kernel;  // the one that runs; absent: the call is refused
  std::vector<Verdict> verdicts;           // every kernel, in order
};

// A kernel that accepts but does not run has the reason "order" (an earlier one accepted) or "forced"
// (another name was asked for). kInvalidArgument: the spec contradicts itself; kNotFound: `forced` does not
// exist.
[[nodiscard]] Expected<Explanation> Explain(const AttentionProblem& problem, const CpuFeatures& cpu,
                                            std::string_view forced = "");

// The problem of one sequence: its phase follows from the lengths. kInvalidArgument: q_len < 1, kv_len
// < 0, or one above kMaxSeqTokens.
[[nodiscard]] Expected<AttentionProblem> ProblemOf(const AttentionSpec& spec, int32_t q_len, int32_t kv_len);

}  // namespace attest
