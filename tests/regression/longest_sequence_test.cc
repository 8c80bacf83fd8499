// PlanAttention and `attest explain` took sequences of up to 2^31 - 1 tokens, of which kernels add lengths
// and tiles in 32 bits, and of which contiguous keys past 2^30 were read from the wrong address. The C
// interface had the limit already.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "attention/explain.h"
#include "attention/plan.h"
#include "tests/support/attention_probes.h"

namespace attest::testing {
namespace {

using ::testing::HasSubstr;

TEST(LongestSequence, IsTheOneThatEveryKernelCanCompute) {
  AttentionSpec spec = MakeSpec(1, 1, 64);
  spec.layout = KvLayout::kContiguous;
  const auto router = AttentionRouter::Create(ThisCpu());
  ASSERT_TRUE(router.has_value());
  const auto plan = [&](int32_t q_len, int32_t kv_len) {
    const CuSeqlens q_begin = CuSeqlens::FromLengths(std::vector<int32_t>{q_len}).value();
    const std::vector<int32_t> kv_lens{kv_len};
    const auto made =
        PlanAttention(*router, spec, {.q_begin = &q_begin, .kv_len = kv_lens, .block_tables = {}}, 1);
    return made ? std::string() : made.error().field + ": " + made.error().message;
  };
  constexpr int32_t kPast = kMaxSeqTokens + 1, kMost = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(plan(1, kMaxSeqTokens), "");
  for (const int32_t length : {kPast, kMost}) {
    EXPECT_THAT(plan(100, length), HasSubstr("kv_len: sequence 0: kv_len is"));
    EXPECT_THAT(plan(100, length), HasSubstr("0 to 1073741824"));
    EXPECT_THAT(plan(length, 0), HasSubstr("q_len: sequence 0: q_len is"));
    EXPECT_FALSE(ProblemOf(spec, 1, length).has_value());
    EXPECT_FALSE(ProblemOf(spec, length, 1).has_value());
  }
  EXPECT_TRUE(ProblemOf(spec, kMaxSeqTokens, kMaxSeqTokens).has_value());
}

}  // namespace
}  // namespace attest::testing
