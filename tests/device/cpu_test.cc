#include "device/cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace attest {
namespace {

using ::testing::ElementsAre;

TEST(CpuIsa, TheBestComesFirstAndPortableLast) {
  CpuFeatures arm;
  arm.neon = arm.arm_bf16 = true;
  EXPECT_THAT(IsasOf(arm), ElementsAre(CpuIsa::kNeonBf16, CpuIsa::kNeon, CpuIsa::kPortable));
  arm.arm_bf16 = false;
  arm.arm_dotprod = true;
  EXPECT_THAT(IsasOf(arm), ElementsAre(CpuIsa::kNeonDot, CpuIsa::kNeon, CpuIsa::kPortable));
  CpuFeatures x86;
  x86.avx2 = x86.avx512 = x86.avx512_vnni = true;
  EXPECT_THAT(IsasOf(x86),
              ElementsAre(CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kPortable));
  EXPECT_THAT(IsasOf(CpuFeatures{}), ElementsAre(CpuIsa::kPortable));
}

TEST(CpuIsa, ABitWithoutItsBaseIsNoLevel) {
  CpuFeatures cpu;
  cpu.arm_bf16 = cpu.arm_dotprod = cpu.arm_i8mm = cpu.avx512_vnni = cpu.avx512_bf16 = cpu.amx_bf16 =
      cpu.amx_int8 = cpu.amx_tile = true;
  EXPECT_THAT(IsasOf(cpu), ElementsAre(CpuIsa::kPortable));
}

TEST(CpuIsa, EveryLevelHasAName) {
  std::set<std::string> names;
  for (const CpuIsa isa :
       {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16,
        CpuIsa::kAmx, CpuIsa::kNeon, CpuIsa::kNeonBf16, CpuIsa::kNeonDot, CpuIsa::kNeonI8mm}) {
    names.insert(CpuIsaName(isa));
  }
  EXPECT_EQ(names.size(), 10u);
}

TEST(DetectCpu, FindsTheLevelThisBuildIsFor) {
  const CpuFeatures cpu = DetectCpu();
  EXPECT_GE(cpu.logical_cpus, 1);
#if defined(__aarch64__)
  EXPECT_TRUE(cpu.neon);
  EXPECT_FALSE(cpu.avx2);
#elif defined(__x86_64__)
  EXPECT_FALSE(cpu.neon);
#endif
}

}  // namespace
}  // namespace attest
