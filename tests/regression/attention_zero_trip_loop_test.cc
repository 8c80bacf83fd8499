// Decode with a head size of 32 returned uninitialised memory because the loop count head_size / 16 / 4 is 0
// (vLLM PR #34570).
#include <gtest/gtest.h>

#include "tests/support/attention_probes.h"

namespace attest::testing {
namespace {

TEST(AttentionZeroTripLoop, DecodeFillsEveryDimOfEveryHeadSizeOrIsRefusedByName) {
  for (const int dim : {16, 32, 48, 64, 80, 96, 112, 120, 128, 160, 192, 256}) {
    AttentionSpec spec = MakeSpec(1, 1, dim);
    spec.kv_dtype = DType::kF32;
    for (const KernelEntry* entry : RunnableKernels()) {
      const AttentionProblem problem{.spec = spec, .phase = AttentionPhase::kDecode};
      const std::vector<Reason> reasons = Check(entry->contract, problem, ThisCpu());
      AttentionBatch batch(spec, {1}, {3});
      batch.UProbe();
      batch.FillV([](int, int key, int, int d) { return static_cast<float>(key + d / 1024.0); });
      const auto result = RunAttention(batch, "decode=" + std::string(entry->contract.name));
      ASSERT_EQ(result.has_value(), reasons.empty()) << entry->contract.name << " head_dim " << dim;
      if (result) {
        ExpectRow(*result, spec, 0, 0, 1.0, /*d_probe=*/true);
      } else {
        EXPECT_NE(result.error().message.find(entry->contract.name), std::string::npos)
            << result.error().message;
      }
    }
  }
}

}  // namespace
}  // namespace attest::testing
