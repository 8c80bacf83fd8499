// GoogleTest's view of the conformance suite: the same runs and the same judgement (conform/judge.h,
// conform/subject.h), reported as assertions.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "conform/subject.h"
#include "tests/support/attention_batch.h"

namespace attest::testing {

// conform::RunForced; fails the test when guards, padding or rows of others were written.
inline Expected<AttentionResult> RunAttention(AttentionBatch& batch, const std::string& forced,
                                              const RunOptions& options = {}) {
  auto result = RunForced(batch, forced, options);
  if (result) {
    EXPECT_EQ(result->violation, "") << forced;
  }
  return result;
}

// Every row within the budget.
inline ::testing::AssertionResult Within(const AttentionResult& result, const AttentionResult& oracle,
                                         const ErrorBudget& budget, int dim, int q_heads) {
  const auto bad = FirstBadRow(result, oracle, budget, dim, q_heads);
  return bad ? ::testing::AssertionFailure() << *bad : ::testing::AssertionSuccess();
}

// The kernel ran for every group whose phase its contract accepts.
inline void ExpectRan(const AttentionResult& result, const KernelEntry& entry, const AttentionSpec& spec) {
  for (const PlannedRoute& route : result.routes) {
    const AttentionProblem problem{.spec = spec, .phase = route.phase};
    const bool accepts = Check(entry.contract, problem, ThisCpu()).empty();
    EXPECT_EQ(route.kernel, accepts ? entry.contract.name : "attention_general")
        << "for " << AttentionPhaseName(route.phase);
  }
}

}  // namespace attest::testing
