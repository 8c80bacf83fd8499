#include "attention/explain.h"

#include <gtest/gtest.h>

#include "attention/dispatch.h"
#include "tests/support/attention_case_list.h"

namespace attest {
namespace {

TEST(Explain, NamesTheKernelThatRunsAndAReasonForEveryOther) {
  for (const std::string_view forced : {"", "reference", "attention_general"}) {
    for (const testing::AttentionCase& test_case : testing::AttentionCases()) {
      const auto problem = ProblemOf(test_case.spec, 1, 100);
      ASSERT_TRUE(problem);
      const auto explanation = Explain(*problem, CpuFeatures{}, forced);
      ASSERT_TRUE(explanation) << explanation.error().message;
      ASSERT_TRUE(explanation->kernel);
      EXPECT_EQ(*explanation->kernel, forced.empty() ? "attention_general" : forced);
      EXPECT_EQ(explanation->verdicts.size(), KernelList().size());
      for (const Verdict& verdict : explanation->verdicts) {
        EXPECT_EQ(verdict.runs, verdict.kernel == *explanation->kernel);
        EXPECT_EQ(verdict.reasons.empty(), verdict.runs) << verdict.kernel;
      }
    }
  }
}

TEST(Explain, SaysThatALaterKernelWouldAlsoDo) {
  const auto explanation = Explain(ProblemOf(testing::MakeSpec(8, 2, 64), 1, 100).value(), CpuFeatures{});
  ASSERT_TRUE(explanation);
  EXPECT_EQ(ToString(explanation->verdicts.back().reasons.front()),
            "order is later in the list, expected attention_general accepts and comes first");
}

TEST(Explain, ReportsAForcedKernelThatRefusesInsteadOfAnotherThatWouldDo) {
#if defined(__x86_64__)
  const auto explanation = Explain(ProblemOf(testing::MakeSpec(8, 2, 64), 1, 100).value(), CpuFeatures{},
                                   "attention_general_avx2");
  ASSERT_TRUE(explanation);
  EXPECT_FALSE(explanation->kernel);
  for (const Verdict& verdict : explanation->verdicts)
    EXPECT_FALSE(verdict.reasons.empty()) << verdict.kernel;
#endif
  const auto unknown =
      Explain(ProblemOf(testing::MakeSpec(8, 2, 64), 1, 100).value(), CpuFeatures{}, "nothing");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
}

TEST(Explain, ThePhaseFollowsFromTheLengths) {
  const AttentionSpec spec = testing::MakeSpec(8, 2, 64);
  EXPECT_EQ(ProblemOf(spec, 1, 1)->phase, AttentionPhase::kDecode);
  EXPECT_EQ(ProblemOf(spec, 9, 9)->phase, AttentionPhase::kPrefill);
  EXPECT_EQ(ProblemOf(spec, 2, 2)->phase, AttentionPhase::kPrefill);
  EXPECT_EQ(ProblemOf(spec, 9, 10)->phase, AttentionPhase::kExtend);
  EXPECT_EQ(ProblemOf(spec, 8, 9)->phase, AttentionPhase::kUniformDecode);
  EXPECT_EQ(ProblemOf(spec, 4, 2)->phase, AttentionPhase::kExtend);
  EXPECT_FALSE(ProblemOf(spec, 0, 2));
  EXPECT_FALSE(ProblemOf(spec, 1, -1));
}

TEST(DescribeKernels, FollowsTheOrderOfTheList) {
  const auto kernels = DescribeKernels(CpuFeatures{});
  ASSERT_EQ(kernels.size(), KernelList().size());
  for (size_t i = 0; i < kernels.size(); ++i) {
    EXPECT_EQ(kernels[i].name, KernelList()[i]->contract.name);
    EXPECT_EQ(kernels[i].cpu_has_isa, kernels[i].isa == CpuIsa::kPortable);
  }
}

}  // namespace
}  // namespace attest
