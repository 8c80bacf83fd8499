#include "tensor/cu_seqlens.h"

#include <gtest/gtest.h>

namespace attest {
namespace {

TEST(CuSeqlens, HasOneEntryMoreThanSequences) {
  const std::vector<int32_t> lengths = {5, 0, 9};
  const auto cu = CuSeqlens::FromLengths(lengths);
  ASSERT_TRUE(cu);
  EXPECT_EQ(cu->offsets().size(), 4u);
  EXPECT_EQ(cu->begin(0), 0);
  EXPECT_EQ(cu->length(1), 0);
  EXPECT_EQ(cu->total(), 14);
}

TEST(CuSeqlens, RefusesAnArrayOneEntryShort) {
  const std::vector<int32_t> offsets = {0, 5};  // two sequences of 14 rows in all need {0, 5, 14}
  const auto cu = CuSeqlens::FromOffsets(offsets, 14);
  ASSERT_FALSE(cu);
  EXPECT_NE(cu.error().message.find("expected the total 14"), std::string::npos) << cu.error().message;
}

TEST(CuSeqlens, NamesTheEntryThatDecreases) {
  const std::vector<int32_t> offsets = {0, 5, 4};
  const auto cu = CuSeqlens::FromOffsets(offsets, 4);
  ASSERT_FALSE(cu);
  EXPECT_NE(cu.error().message.find("cu_seqlens[2] is 4"), std::string::npos) << cu.error().message;
}

TEST(CuSeqlens, NamesAFirstOffsetThatIsNotZero) {
  const std::vector<int32_t> offsets = {1, 5};
  const auto cu = CuSeqlens::FromOffsets(offsets, 5);
  ASSERT_FALSE(cu);
  EXPECT_EQ(cu.error().message, "cu_seqlens[0] is 1, expected 0");
}

TEST(CuSeqlens, NamesANegativeLengthAndAnOverflow) {
  const std::vector<int32_t> negative = {1, -3};
  EXPECT_NE(CuSeqlens::FromLengths(negative).error().message.find("q_len[1] is -3"), std::string::npos);
  const std::vector<int32_t> huge = {2147483647, 1};
  EXPECT_NE(CuSeqlens::FromLengths(huge).error().message.find("limit 2147483647"), std::string::npos);
}

}  // namespace
}  // namespace attest
