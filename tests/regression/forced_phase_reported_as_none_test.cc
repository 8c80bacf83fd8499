// With --attention-backend decode=NAME the log, /engine and attention_kernel_info said "none" for every
// phase: the whole flag was taken for the name of a kernel.
#include <gtest/gtest.h>

#include "cli/model_host.h"
#include "tests/support/models.h"

namespace attest {
namespace {

TEST(ForcedPhase, IsReportedWithItsKernelAndTheOthersWithTheirs) {
  const auto path = FindModel(kSmolLm2File);
  if (!path) GTEST_SKIP() << ModelMissing(kSmolLm2File);
  ModelFlags flags;
  flags.model = path->string();
  flags.attention_backend = "decode=attention_general";
  flags.kv_cache_gib = 0.1;
  const auto host = ModelHost::Load(flags, {});
  ASSERT_TRUE(host) << host.error().message;
  for (const auto& [phase, kernel] : (*host)->AttentionKernels()) {
    EXPECT_NE(kernel, "none") << phase;
    EXPECT_EQ(kernel == "attention_general", phase == "decode") << phase << " " << kernel;
  }
}

}  // namespace
}  // namespace attest
