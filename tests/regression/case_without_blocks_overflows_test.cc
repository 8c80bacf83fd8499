// A case file that holds no blocks, but whose pages are said to have 2^30 tokens of four heads, made `attest
// replay` compute the stride of a block in 32 bits. The undefined-behaviour sanitizer stops this test then.
#include <gtest/gtest.h>

#include "attention/replay.h"

namespace attest {
namespace {

TEST(CaseWithoutBlocks, IsReplayedWhateverTheSizeOfItsPages) {
  AttentionCaseFile c;
  c.spec = {.q_heads = 4,
            .kv_heads = 4,
            .head_dim = 1,
            .v_head_dim = 1,
            .layout = KvLayout::kPagedHnd,
            .block_size = 1 << 30};
  c.q_len = {1};
  c.kv_len = {0};
  c.q.resize(4 * sizeof(float));
  c.kernel = "attention_general";
  ThreadTeam team(1);
  for (const KvLayout layout : {KvLayout::kPagedHnd, KvLayout::kPagedNhd}) {
    c.spec.layout = layout;
    const auto router = AttentionRouter::Create(CpuFeatures{}, c.kernel);
    ASSERT_TRUE(router.has_value());
    const auto report = ReplayCase(c, *router, team);
    ASSERT_TRUE(report.has_value()) << report.error().message;
    EXPECT_EQ(report->rows, 4);
    EXPECT_EQ(report->wrong_rows, 0);
  }
}

}  // namespace
}  // namespace attest
