// Public bug reports of attention kernels (class A: silent wrong attention output), each as the check that
// would have caught it, with its exact expected answer. The same functions are unit tests and run on any
// subject by `attest conform --bugs`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "conform/probe.h"

namespace attest::conform {

struct BugCase {
  const char* id;            // "A01"; a second check of the same report repeats the id
  const char* source;        // "vllm#28670": project and issue or pull request
  const char* name;          // the claim, as a test name
  const char* instead = "";  // for a report of another layer: what is checked here in its place, and why
  void (*run)(Probe& probe) = nullptr;
};

// All 55 reports, by id.
[[nodiscard]] const std::vector<BugCase>& BugCases();
// "A01_vllm28670_ShortestSequencesAreComputed"
[[nodiscard]] std::string BugCaseName(const BugCase& bug);

// The parts of the list, by subject.
[[nodiscard]] std::span<const BugCase> MaskBugCases();
[[nodiscard]] std::span<const BugCase> LayoutBugCases();
[[nodiscard]] std::span<const BugCase> SystemBugCases();

}  // namespace attest::conform
