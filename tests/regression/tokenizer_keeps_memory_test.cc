// One prompt of 16 MB without a blank left half a gigabyte in the tokenizer's working memory for good, once
// for each thread that encodes.
#include <gtest/gtest.h>

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/sanitizers.h"
#include "text/tokenizer.h"

namespace attest {
namespace {

size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(TokenizerKeepsMemory, AHugePieceLeavesNothingBehind) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator does not say what is allocated";
  const auto tokenizer = Tokenizer::FromTokenizerJson(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"abab":3},"merges":["a b","ab ab"]}})");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->Encode("abababa"), (std::vector<int32_t>{3, 2, 0}));
  const std::string text = [] {
    std::string out;
    while (out.size() < 4'000'000) out += "ab";
    return out;
  }();
  const size_t before = AllocatedBytes();
  EXPECT_EQ((*tokenizer)->Encode(text).size(), 1'000'000u);
  const size_t after = AllocatedBytes();
  EXPECT_LT(after - std::min(before, after), 2'000'000u);
  EXPECT_EQ((*tokenizer)->Encode("abababa"), (std::vector<int32_t>{3, 2, 0}));
}

}  // namespace
}  // namespace attest
