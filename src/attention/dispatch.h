// The ordered list of kernels and the only way to a Route. Everything here is a pure function of its
// arguments and is tested without running a kernel.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/contract.h"
#include "base/error.h"
#include "kernels/cpu/attention_kernels.h"

namespace attest {

struct KernelEntry {
  KernelContract contract;
  const AttentionKernel* kernel = nullptr;
};

// All kernels of this build, fastest first, the general kernel near the end, the reference last. The first
// that accepts wins. The list itself is in dispatch.cc.
[[nodiscard]] std::span<const KernelEntry* const> KernelList();
// nullptr when there is none of that name.
[[nodiscard]] const KernelEntry* FindKernel(std::string_view name);
[[nodiscard]] std::string KernelNames();  // "attention_general, reference"

// Names of kernels that must not run although they exist: their results were found wrong
// (attention/sentinel.h).
using ExcludedKernels = std::span<const std::string>;

// Every reason why a kernel does not do a call: its contract's, after the one that it is excluded.
[[nodiscard]] std::vector<Reason> RefusalsOf(const KernelEntry& entry, const AttentionProblem& problem,
                                             const CpuFeatures& cpu, ExcludedKernels excluded);

// Proof that a kernel's contract accepted a problem. Only Choose makes one; the launcher takes nothing else.
class Route {
 public:
  [[nodiscard]] const KernelEntry& entry() const { return *entry_; }
  [[nodiscard]] std::string_view name() const { return entry_->contract.name; }
  [[nodiscard]] AttentionPhase phase() const { return phase_; }

 private:
  friend Expected<Route> Choose(const AttentionProblem& problem, const CpuFeatures& cpu,
                                std::string_view forced, ExcludedKernels excluded);
  Route(const KernelEntry& entry, AttentionPhase phase) : entry_(&entry), phase_(phase) {}
  const KernelEntry* entry_;
  AttentionPhase phase_;
};

// The first kernel of the list that accepts and is not excluded, or the forced one. kNotFound: the forced
// name does not exist (the message lists the known ones). kUnsupported: the forced kernel, or every kernel,
// refuses; the message holds every reason. kInvalidArgument: the problem contradicts itself (ValidateSpec).
[[nodiscard]] Expected<Route> Choose(const AttentionProblem& problem, const CpuFeatures& cpu,
                                     std::string_view forced = "", ExcludedKernels excluded = {});

// Every kernel of the list with its reasons, one line each: "attention_x: head_dim is 36, expected ...".
[[nodiscard]] std::string DescribeRefusals(const AttentionProblem& problem, const CpuFeatures& cpu,
                                           ExcludedKernels excluded = {});

}  // namespace attest
