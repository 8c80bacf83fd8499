// A case file of 32 KiB, by its v_head_dim, made `attest replay` allocate and clear gigabytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/replay.h"

namespace attest {
namespace {

TEST(ReplayMemory, IsBoundedByMoreThanTheFileSays) {
  AttentionCaseFile c;
  c.spec = {.q_heads = 1 << 13,
            .kv_heads = 1,
            .head_dim = 1,
            .v_head_dim = 1 << 16,
            .layout = KvLayout::kContiguous};
  c.q_len = {1};
  c.kv_len = {0};
  c.q.resize(sizeof(float) << 13);
  c.kernel = "attention_general";
  ThreadTeam team(1);
  const auto router = AttentionRouter::Create(CpuFeatures{}, c.kernel);
  ASSERT_TRUE(router.has_value());
  const auto report = ReplayCase(c, *router, team);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(report.error().field, "v_head_dim");
  EXPECT_THAT(report.error().message, ::testing::HasSubstr("2147483648 bytes, at most 1073741824"));
}

}  // namespace
}  // namespace attest
