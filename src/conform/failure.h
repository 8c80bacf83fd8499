// What a failure comes down to: the smallest case that still fails, in words and as a replayable file.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "conform/suite.h"

namespace attest::conform {

// A trial that failed: either a case of the list, or something that runs several batches of its own.
struct FailedTrial {
  const SuiteOptions& options;
  const SubjectInfo& info;
  const Trial& trial;
  std::optional<AttentionCase> attention_case = {};
  std::function<void(Probe&)> probe = {};  // without a case
};

// Shrinks the failure and writes its case to options.failures_folder. Of a probe it is the last of its
// batches that is wrong by itself; when none is (two of them differ, each within its budget), the last one
// that it ran is written as it is. `known` are failures explained before: one of the same subject that shrank
// to the same case takes this trial in, and false is returned.
[[nodiscard]] bool Explain(Failure& failure, const FailedTrial& failed, std::vector<Failure>& known);

}  // namespace attest::conform
