#include "tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace attest {
namespace {

TEST(BufferArena, SmallBuffersShareAChunkAndDoNotOverlap) {
  BufferArena arena;
  std::vector<Buffer> buffers;
  for (int64_t size : {1, 64, 100000, 65, 3000000}) {
    auto buffer = Buffer::Allocate(size, "part", &arena);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer->size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    std::memset(buffer->data(), static_cast<int>(buffers.size()) + 1, static_cast<size_t>(size));
    buffers.push_back(std::move(*buffer));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (int64_t at : {int64_t{0}, buffers[i].size_bytes() - 1}) {
      EXPECT_EQ(static_cast<int>(buffers[i].data()[at]), static_cast<int>(i) + 1);
    }
  }
  EXPECT_LT(buffers[4].data() - buffers[0].data(), 4 << 20);
}

TEST(BufferArena, FillsChunkAfterChunk) {
  BufferArena arena;
  std::vector<Buffer> buffers;
  for (int i = 0; i < 12; ++i) {
    auto buffer = Buffer::Allocate(int64_t{15} << 20, "part", &arena);
    ASSERT_TRUE(buffer);
    buffer->data()[(15 << 20) - 1] = std::byte{1};
    buffers.push_back(std::move(*buffer));
  }
}

TEST(BufferArena, SurvivesAMoveOfTheArena) {
  BufferArena arena;
  auto buffer = Buffer::Allocate(1000, "part", &arena);
  ASSERT_TRUE(buffer);
  const BufferArena moved = std::move(arena);
  std::memset(buffer->data(), 7, 1000);
  EXPECT_EQ(static_cast<int>(buffer->data()[999]), 7);
}

TEST(Buffer, ANegativeOrImpossibleSizeIsAnErrorThatNamesIt) {
  BufferArena arena;
  for (BufferArena* where : {static_cast<BufferArena*>(nullptr), &arena}) {
    const auto negative = Buffer::Allocate(-5, "weights", where);
    ASSERT_FALSE(negative);
    EXPECT_NE(negative.error().message.find("weights: size -5"), std::string::npos);
    const auto impossible = Buffer::Allocate(int64_t{1} << 60, "weights", where);
    ASSERT_FALSE(impossible);
    EXPECT_EQ(impossible.error().code, ErrorCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace attest
