#include "device/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "tests/support/temp_folder.h"

namespace attest {
namespace {

class MemoryStatusTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ / "proc/self");
    std::filesystem::create_directories(root_ / "cgroup/a/b");
    Write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         1 kB\nMemAvailable:    800 kB\n");
    Write("proc/self/cgroup", "0::/a/b\n");
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(root_ / name) << text; }
  Expected<MemoryStatus> Read() { return ReadMemoryStatus(root_ / "proc", root_ / "cgroup"); }
  const TempFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

TEST_F(MemoryStatusTest, WithoutLimitsTheMachineCounts) {
  const auto status = Read();
  ASSERT_TRUE(status);
  EXPECT_EQ(status->total_bytes, 1000 * 1024);
  EXPECT_EQ(status->available_bytes, 800 * 1024);
}

TEST_F(MemoryStatusTest, ALimitOfAnAncestorCounts) {
  Write("cgroup/a/b/memory.max", "max\n");
  Write("cgroup/a/memory.max", "500000\n");
  Write("cgroup/a/memory.current", "400000\n");
  Write("cgroup/a/memory.stat", "anon 1\ninactive_file 100000\nactive_file 50000\n");
  const auto status = Read();
  ASSERT_TRUE(status);
  EXPECT_EQ(status->total_bytes, 500000);
  EXPECT_EQ(status->available_bytes, 500000 - (400000 - 150000));
}

TEST_F(MemoryStatusTest, AMissingFileIsAnErrorThatNamesIt) {
  std::filesystem::remove(root_ / "proc/meminfo");
  const auto status = Read();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("meminfo"), std::string::npos);
}

TEST(AllocatePages, IsAlignedAndZero) {
  constexpr size_t kBytes = 3 * 1024 * 1024 + 5;
  auto* data = static_cast<unsigned char*>(AllocatePages(kBytes));
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (2u << 20), 0u);
  EXPECT_EQ(data[0], 0);
  std::memset(data, 1, kBytes);
  FreePages(data, kBytes);
}

}  // namespace
}  // namespace attest
