#include "attention/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/contracts_cpu.h"

namespace attest {
namespace {

// The one ordered list. Fastest first; a kernel for one instruction set stands inside the #if so that other
// machines do not link it.
// clang-format off
constexpr const KernelEntry* kKernels[] = {
#if defined(__x86_64__)
    &kAttentionDecodeAmxEntry,
    &kAttentionDecodeAvx512Entry,
    &kAttentionDecodeAvx2Entry,
    &kAttentionPrefillAmxEntry,
    &kAttentionPrefillAvx512Bf16Entry,
    &kAttentionPrefillAvx512Entry,
    &kAttentionPrefillAvx2Entry,
    &kAttentionRowwiseAvx512Entry,
    &kAttentionRowwiseAvx2Entry,
    &kAttentionGeneralAvx512Entry,
    &kAttentionGeneralAvx2Entry,
#elif defined(__aarch64__)
    &kAttentionDecodeNeonBf16Entry,
    &kAttentionDecodeNeonEntry,
    &kAttentionPrefillNeonBf16Entry,
    &kAttentionPrefillNeonEntry,
    &kAttentionRowwiseNeonEntry,
    &kAttentionGeneralNeonEntry,
#endif
    &kAttentionGeneralEntry,
#if defined(ATTEST_TEST_KERNELS)  // tests/emulated: behind a kernel that accepts everything, reached by name only
    ATTEST_TEST_KERNELS
#endif
    &kAttentionReferenceEntry,
};
// clang-format on

std::string Joined(const std::vector<Reason>& reasons) {
  std::string text;
  for (const Reason& reason : reasons) text += (text.empty() ? "" : "; ") + ToString(reason);
  return text;
}

}  // namespace

std::span<const KernelEntry* const> KernelList() { return kKernels; }

const KernelEntry* FindKernel(std::string_view name) {
  for (const KernelEntry* entry : kKernels) {
    if (entry->contract.name == name) return entry;
  }
  return nullptr;
}

std::string KernelNames() {
  std::string names;
  for (const KernelEntry* entry : kKernels) {
    if (!names.empty()) names += ", ";
    names += entry->contract.name;
  }
  return names;
}

std::vector<Reason> RefusalsOf(const KernelEntry& entry, const AttentionProblem& problem,
                               const CpuFeatures& cpu, ExcludedKernels excluded) {
  std::vector<Reason> reasons;
  if (std::ranges::find(excluded, entry.contract.name) != excluded.end()) {
    reasons.push_back({"kernel", "quarantined", "one whose rows agree with the oracle"});
  }
  for (Reason& reason : Check(entry.contract, problem, cpu)) reasons.push_back(std::move(reason));
  return reasons;
}

std::string DescribeRefusals(const AttentionProblem& problem, const CpuFeatures& cpu,
                             ExcludedKernels excluded) {
  std::string text;
  for (const KernelEntry* entry : kKernels) {
    const std::string why = Joined(RefusalsOf(*entry, problem, cpu, excluded));
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", entry->contract.name,
                        why.empty() ? "accepts" : why);
  }
  return text;
}

Expected<Route> Choose(const AttentionProblem& problem, const CpuFeatures& cpu, std::string_view forced,
                       ExcludedKernels excluded) {
  ATTEST_RETURN_IF_ERROR(ValidateSpec(problem.spec));
  if (!forced.empty()) {
    const KernelEntry* entry = FindKernel(forced);
    if (entry == nullptr) {
      return Fail(ErrorCode::kNotFound,
                  fmt::format("attention kernel '{}' does not exist, known: {}", forced, KernelNames()),
                  "attention_backend");
    }
    const std::vector<Reason> reasons = RefusalsOf(*entry, problem, cpu, excluded);
    if (reasons.empty()) return Route(*entry, problem.phase);
    return Fail(ErrorCode::kUnsupported,
                fmt::format("attention kernel '{}' was forced but refuses {}: {}", forced,
                            AttentionPhaseName(problem.phase), Joined(reasons)),
                "attention_backend");
  }
  for (const KernelEntry* entry : kKernels) {
    if (RefusalsOf(*entry, problem, cpu, excluded).empty()) return Route(*entry, problem.phase);
  }
  return Fail(ErrorCode::kUnsupported,
              fmt::format("no attention kernel accepts {}:\n{}", AttentionPhaseName(problem.phase),
                          DescribeRefusals(problem, cpu, excluded)),
              "attention");
}

}  // namespace attest
