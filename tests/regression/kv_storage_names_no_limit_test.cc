// "num_blocks 1 is out of range" did not say which range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/kv_storage.h"

namespace attest {
namespace {

using ::testing::HasSubstr;

TEST(KvStorageLimit, IsNamedWithTheValue) {
  const KvShape shape{.num_layers = 1, .kv_heads = 1, .head_dim = 8, .v_head_dim = 8};
  for (const int64_t blocks : {int64_t{1}, int64_t{1} << 40}) {
    const auto made = KvStorage::Allocate(shape, blocks);
    ASSERT_FALSE(made.has_value());
    EXPECT_THAT(made.error().message,
                HasSubstr(std::to_string(blocks) + " is out of range: 2 to 2147483647"));
    EXPECT_EQ(made.error().field, "num_blocks");
  }
}

}  // namespace
}  // namespace attest
