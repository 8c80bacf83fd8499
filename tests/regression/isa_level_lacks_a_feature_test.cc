// An AMX kernel was chosen on a CPU that hides AVX512_VBMI or AVX512_BF16 (a hypervisor's choice), which its
// file is compiled for: SIGILL in the first step. The other levels promised less than their flags, too.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "device/cpu.h"
#include "tests/support/attention_probes.h"

namespace attest::testing {
namespace {

using Bit = bool CpuFeatures::*;

CpuFeatures WithAllBut(Bit missing) {
  CpuFeatures cpu;
  for (const Bit bit :
       {&CpuFeatures::avx2, &CpuFeatures::avx512, &CpuFeatures::avx512_vnni, &CpuFeatures::avx512_bf16,
        &CpuFeatures::avx512_vbmi, &CpuFeatures::amx_tile, &CpuFeatures::amx_bf16, &CpuFeatures::amx_int8}) {
    cpu.*bit = bit != missing;
  }
  return cpu;
}

// As cmake/AttestTargets.cmake has them: -m flags of files that end in _<isa>.cc.
TEST(IsaLevel, IsNotThereWithoutEveryFeatureItsFilesAreCompiledFor) {
  const std::pair<CpuIsa, std::vector<Bit>> levels[] = {
      {CpuIsa::kAvx2, {&CpuFeatures::avx2}},
      {CpuIsa::kAvx512, {&CpuFeatures::avx512}},
      {CpuIsa::kAvx512Vnni, {&CpuFeatures::avx512, &CpuFeatures::avx512_vnni}},
      {CpuIsa::kAvx512Bf16, {&CpuFeatures::avx512, &CpuFeatures::avx512_vnni, &CpuFeatures::avx512_bf16}},
      {CpuIsa::kAmx,
       {&CpuFeatures::avx512, &CpuFeatures::avx512_vnni, &CpuFeatures::avx512_bf16, &CpuFeatures::avx512_vbmi,
        &CpuFeatures::amx_tile, &CpuFeatures::amx_bf16, &CpuFeatures::amx_int8}},
  };
  for (const auto& [isa, needed] : levels) {
    EXPECT_TRUE(HasIsa(WithAllBut(nullptr), isa)) << CpuIsaName(isa);
    for (const Bit bit : needed) EXPECT_FALSE(HasIsa(WithAllBut(bit), isa)) << CpuIsaName(isa);
  }
}

#if defined(__x86_64__)
TEST(IsaLevel, WithoutVbmiNoAmxKernelIsChosen) {
  const AttentionProblem problem{.spec = MakeSpec(8, 2, 64), .phase = AttentionPhase::kDecode};
  EXPECT_EQ(Choose(problem, WithAllBut(nullptr))->name(), "attention_decode_amx");
  EXPECT_EQ(Choose(problem, WithAllBut(&CpuFeatures::avx512_vbmi))->name(), "attention_decode_avx512");
  EXPECT_EQ(Choose(problem, WithAllBut(&CpuFeatures::avx512_bf16))->name(), "attention_decode_avx512");
}
#endif

}  // namespace
}  // namespace attest::testing
