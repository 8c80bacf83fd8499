#include <fmt/format.h>

#include <algorithm>

#include "attention/attention.h"
#include "attention/dispatch.h"

namespace attest {
namespace {

Status CheckForcedName(std::string_view name, const CpuFeatures& cpu) {
  const KernelEntry* entry = FindKernel(name);
  if (entry == nullptr) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("attention kernel '{}' does not exist, known: {}", name, KernelNames()),
                "attention_backend");
  }
  if (!HasIsa(cpu, entry->contract.isa)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("attention kernel '{}' needs {}, this CPU has {}", name,
                            CpuIsaName(entry->contract.isa), CpuIsaName(IsasOf(cpu).front())),
                "attention_backend");
  }
  return {};
}

}  // namespace

Expected<AttentionRouter> AttentionRouter::Create(const CpuFeatures& cpu, std::string_view forced) {
  AttentionRouter router;
  router.cpu_ = cpu;
  for (std::string_view rest = forced; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = part.find('=');
    const std::string_view name = equals == part.npos ? part : part.substr(equals + 1);
    ATTEST_RETURN_IF_ERROR(CheckForcedName(name, cpu));
    bool matched = false;
    for (const AttentionPhase phase : kAttentionPhases) {
      if (equals != part.npos && part.substr(0, equals) != AttentionPhaseName(phase)) continue;
      router.forced_by_phase_[static_cast<size_t>(phase)] = name;
      matched = true;
    }
    if (!matched) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("attention phase '{}' does not exist, known: decode, prefill, extend, uniform_decode",
                      part.substr(0, equals)),
          "attention_backend");
    }
  }
  return router;
}

AttentionRouter AttentionRouter::Without(std::string_view kernel) const {
  AttentionRouter router = *this;
  if (std::ranges::find(excluded_, kernel) == excluded_.end()) router.excluded_.emplace_back(kernel);
  return router;
}

Status AttentionRouter::CheckSpec(const AttentionSpec& spec) const {
  ATTEST_RETURN_IF_ERROR(ValidateSpec(spec));
  for (const AttentionPhase phase : kAttentionPhases) {
    const AttentionProblem problem{.spec = spec, .phase = phase};
    const auto route = Choose(problem, cpu_, forced_for(phase), excluded_);
    if (!route) return std::unexpected(route.error());
  }
  return {};
}

}  // namespace attest
