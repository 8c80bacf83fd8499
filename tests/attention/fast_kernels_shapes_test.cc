// The fast kernels beyond the shared case list: every head size, group and page size they declare, in
// combination with masks; rows that straddle tiles; splits; NaN that must spread and NaN that must not.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

bool IsFast(const KernelEntry& entry) {
  return entry.contract.name.starts_with("attention_prefill_") ||
         entry.contract.name.starts_with("attention_decode_");
}

std::vector<const KernelEntry*> RunnableFastKernels() {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry* entry : RunnableKernels()) {
    if (IsFast(*entry)) kernels.push_back(entry);
  }
  return kernels;
}

class FastKernels : public ::testing::TestWithParam<const KernelEntry*> {
 protected:
  // Runs the kernel wherever its contract accepts and judges every row; says whether it ran at all.
  bool RunsRight(const AttentionSpec& spec, const std::vector<int32_t>& q_len,
                 const std::vector<int32_t>& kv_len, int num_threads, uint32_t seed) {
    const std::string forced = ForcedWherePossible(*GetParam(), spec);
    if (forced.empty()) return false;
    AttentionBatch batch(spec, q_len, kv_len, {.seed = seed});
    const AttentionResult oracle = RunOracle(batch);
    const auto result = RunAttention(batch, forced, {.num_threads = num_threads});
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    if (!result) return false;
    ExpectRan(*result, *GetParam(), spec);
    EXPECT_TRUE(Within(*result, oracle, BudgetOf(batch, oracle, GetParam()->contract.arithmetic),
                       spec.v_head_dim, spec.q_heads))
        << "head_dim " << spec.head_dim << " group " << spec.q_heads / spec.kv_heads << " block "
        << spec.block_size << " seed " << seed;
    return true;
  }
  // Lengths on both sides of the tiles: 16, 32, 64 and 128 keys, one to many rows.
  const std::vector<int32_t> q_len_{1, 33, 2, 1, 8, 70, 1, 5};
  const std::vector<int32_t> kv_len_{1, 33, 65, 128, 129, 70, 191, 63};
};

TEST_P(FastKernels, AreRightForEveryHeadSizeTheyDeclare) {
  int ran = 0;
  for (int dim = 16; dim <= 256; dim += 8) {
    AttentionSpec spec = MakeSpec(3, 1, dim);
    spec.kv_dtype = dim % 32 == 0 ? DType::kBF16 : dim % 16 == 0 ? DType::kF32 : DType::kBF16;
    if (RunsRight(spec, {1, 6, 19}, {70, 40, 19}, 1 + dim / 8 % 3, static_cast<uint32_t>(dim))) ++ran;
  }
  EXPECT_GE(ran, 8);  // the multiples of 32 at least
}

TEST_P(FastKernels, AreRightForEveryGroupAndPageSize) {
  uint32_t seed = 100;
  int ran = 0;
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 71}) {
    for (const int block_size : {1, 8, 16, 24, 32, 64, 128}) {
      if ((group + block_size) % 3 != 0 && group > 4) continue;  // a third of the larger ones
      AttentionSpec spec = MakeSpec(2 * group, 2, 32);
      spec.block_size = block_size;
      spec.kv_dtype = DType::kBF16;
      spec.wants_lse = ++seed % 2 == 0;  // without one the AMX kernel takes its fixed-point exponential
      if (RunsRight(spec, {1, 7, 12}, {67, 34, 12}, 2, seed)) ++ran;
    }
  }
  EXPECT_GT(ran, 20);
}

TEST_P(FastKernels, AreRightOnBothSidesOfEveryTileEdge) {
  int ran = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (int mask = 0; mask < 6; ++mask) {
      AttentionSpec spec = MakeSpec(6, 2, 64);
      spec.kv_dtype = dtype;
      spec.block_size = mask % 2 == 0 ? 16 : 8;
      spec.wants_lse = dtype == DType::kF32 || mask % 3 == 0;
      if (mask == 1) spec.window_left = 0;
      if (mask == 2) spec.window_left = 31;
      if (mask == 3) spec.causal = false;
      if (mask == 4) spec.chunk = 48, spec.softcap = 3.0f;
      if (mask == 5) spec.has_alibi = spec.has_sinks = true;
      if (RunsRight(spec, q_len_, kv_len_, 3, 300 + static_cast<uint32_t>(mask))) ++ran;
    }
  }
  EXPECT_GE(ran, 6);
}

TEST_P(FastKernels, GiveTheSameBytesOnOneTwoAndThreeThreads) {
  AttentionSpec spec = MakeSpec(9, 3, 64);
  spec.kv_dtype = DType::kBF16;
  const std::string forced = ForcedWherePossible(*GetParam(), spec);
  ASSERT_FALSE(forced.empty());
  AttentionBatch batch(spec, {1, 40, 3, 1}, {700, 900, 300, 5}, {.seed = 11});
  const auto one = RunAttention(batch, forced, {.num_threads = 1});
  for (const int threads : {2, 3}) {
    const auto many = RunAttention(batch, forced, {.num_threads = threads});
    ASSERT_TRUE(one && many);
    EXPECT_TRUE(*one == *many) << threads << " threads";
  }
}

// A NaN that a row does see must reach it: a number in its place would be silently wrong. The fixed-point
// exponential of the AMX kernel would turn it into 0.
TEST_P(FastKernels, LetANanInAVisibleKeyReachTheRow) {
  AttentionSpec spec = MakeSpec(6, 2, 64);
  spec.kv_dtype = DType::kBF16;
  const std::string forced = ForcedWherePossible(*GetParam(), spec);
  ASSERT_FALSE(forced.empty());
  for (const int variant : {0, 1, 2, 3}) {
    const bool in_values = variant % 2 == 1;
    spec.wants_lse = variant < 2;
    AttentionBatch batch(spec, {1, 3, 20}, {50, 40, 20}, {.seed = 5});
    for (int seq = 0; seq < 3; ++seq) {
      EncodeElement(batch.KeyData(in_values), spec.kv_dtype, batch.KeyIndex(in_values, seq, 2, 1) + 9, kNaN);
    }
    const auto result = RunAttention(batch, forced, {.fill = 0.0f});
    ASSERT_TRUE(result);
    const int32_t last[] = {0, 3, 23};  // the last row of each sequence sees key 2
    for (const int32_t token : last) {
      for (int head = 0; head < 6; ++head) {
        const size_t at = (static_cast<size_t>(token) * 6 + static_cast<size_t>(head)) * 64 + 9;
        EXPECT_EQ(std::isnan(result->out[at]), head >= 3) << "token " << token << " head " << head;
      }
    }
  }
}

// Scores of +-30000 and equal scores: no overflow, no lost weight.
TEST_P(FastKernels, SurviveHugeScores) {
  AttentionSpec spec = MakeSpec(4, 2, 64);
  spec.kv_dtype = DType::kBF16;
  const std::string forced = ForcedWherePossible(*GetParam(), spec);
  ASSERT_FALSE(forced.empty());
  AttentionBatch batch(spec, {1, 2, 66}, {200, 150, 66}, {.seed = 5});
  batch.FillQ([](int, int, int, int) { return 512.0f; });
  // Exactly representable, and far enough apart that one key takes all the weight: the answer is its V row.
  batch.FillK(
      [](int, int key, int, int) { return key % 2 == 0 ? 8.0f - static_cast<float>(key) / 32 : -8.0f; });
  batch.FillV(
      [](int, int key, int, int d) { return static_cast<float>(key % 64) + static_cast<float>(d % 2); });
  const AttentionResult oracle = RunOracle(batch);
  const auto result = RunAttention(batch, forced);
  ASSERT_TRUE(result);
  ExpectRan(*result, *GetParam(), spec);
  for (size_t i = 0; i < oracle.out.size(); ++i) {
    ASSERT_NEAR(result->out[i], oracle.out[i], 1e-2 * (1 + std::abs(oracle.out[i]))) << i;
  }
}

TEST_P(FastKernels, RefuseWhatTheyCannotDoWithTheValue) {
  const AttentionSpec good = [] {
    AttentionSpec spec = MakeSpec(4, 2, 64);
    spec.kv_dtype = DType::kBF16;
    return spec;
  }();
  const auto refuses = [&](const AttentionSpec& spec, const std::string& field) {
    bool named = true;
    for (const AttentionPhase phase : kAttentionPhases) {
      if (!GetParam()->contract.phases.Has(phase)) continue;
      const auto reasons = Check(GetParam()->contract, {.spec = spec, .phase = phase}, ThisCpu());
      named = named && std::ranges::any_of(reasons, [&](const Reason& r) { return r.field == field; });
    }
    return named;
  };
  const auto with = [&](auto change) {
    AttentionSpec spec = good;
    change(spec);
    return spec;
  };
  EXPECT_FALSE(ForcedWherePossible(*GetParam(), good).empty());
  EXPECT_TRUE(refuses(with([](auto& s) { s.head_dim = 36; }), "head_dim"));
  EXPECT_TRUE(refuses(with([](auto& s) { s.head_dim = 512; }), "head_dim"));
  EXPECT_TRUE(refuses(with([](auto& s) { s.v_head_dim = 12; }), "v_head_dim"));
  EXPECT_TRUE(refuses(with([](auto& s) { s.q_dtype = DType::kBF16; }), "q_dtype"));
  EXPECT_TRUE(refuses(with([](auto& s) { s.out_dtype = DType::kBF16; }), "out_dtype"));
  EXPECT_EQ(refuses(with([](auto& s) { s.rowwise = true; }), "rowwise"), !GetParam()->contract.rowwise);
  EXPECT_TRUE(refuses(with([](auto& s) { s.window_left = 8, s.sink_tokens = 2; }), "sink_tokens"));
  const bool rounds = GetParam()->contract.arithmetic == AttentionArithmetic::kBf16;
  EXPECT_EQ(refuses(with([](auto& s) { s.precise = true; }), "precise"), rounds);
  // bf16 words hold fp8 and int8 values exactly, but not these.
  EXPECT_EQ(refuses(with([](auto& s) { s.kv_dtype = DType::kF32; }), "kv_dtype"), rounds);
  EXPECT_EQ(refuses(with([](auto& s) { s.kv_dtype = DType::kF16; }), "kv_dtype"), rounds);
}

INSTANTIATE_TEST_SUITE_P(All, FastKernels, ::testing::ValuesIn(RunnableFastKernels()),
                         [](const auto& param) { return std::string(param.param->contract.name); });

}  // namespace
}  // namespace attest::testing
