// The shortest sequences of a batch were never computed because their length was taken as an inclusive skip
// threshold (vLLM PR #28670).
#include <gtest/gtest.h>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

TEST(AttentionSkipThreshold, SequencesOfTheShortestLengthAreComputedInEveryPlace) {
  const std::vector<std::vector<int32_t>> batches{{5, 9, 9}, {9, 5, 9}, {9, 9, 5}, {7},
                                                  {1, 9},    {9, 1},    {1, 1},    {2, 1, 2}};
  for (const std::vector<int32_t>& q_len : batches) {
    for (const int32_t context : {0, 11}) {
      std::vector<int32_t> kv_len;
      for (const int32_t q : q_len) kv_len.push_back(q + context);
      AttentionBatch batch(MakeSpec(4, 2, 64), q_len, kv_len);
      const AttentionResult oracle = RunOracle(batch);
      for (const KernelEntry* entry : RunnableKernels()) {
        const std::string forced = ForcedWherePossible(*entry, batch.spec());
        ASSERT_FALSE(forced.empty()) << entry->contract.name;
        const auto result = RunAttention(batch, forced);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_TRUE(Within(*result, oracle, BudgetOf(batch, oracle, entry->contract.arithmetic), 64, 4))
            << entry->contract.name;
      }
    }
  }
}

}  // namespace
}  // namespace attest::testing
