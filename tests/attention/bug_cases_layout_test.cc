// Public bug reports of attention kernels, continued: heads, strides, addresses, padding and companions in
// the batch. See bug_cases_test.cc.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/support/attention_probes.h"

namespace attest::testing {
namespace {

TEST(BugCases, A26_llamacpp19115_QueryHeadsReadTheirOwnKvHead) {
  for (const auto& [q_heads, kv_heads] :
       {std::pair{24, 2}, {6, 2}, {9, 3}, {10, 2}, {18, 3}, {14, 2}, {24, 3}, {64, 2}}) {
    const AttentionSpec spec = Small(q_heads, kv_heads, 16);
    ForEachKernel(spec, [&](const std::string& forced) {
      AttentionBatch batch(spec, {1, 6, 3}, {9, 6, 40});
      batch.UProbe();
      batch.FillV([](int, int, int head, int) { return 1000.0f * static_cast<float>(head); });
      const auto result = RunAttention(batch, forced);
      ASSERT_TRUE(result);
      for (int token = 0; token < batch.num_tokens(); ++token) {
        for (int head = 0; head < q_heads; ++head) {
          ExpectRow(*result, spec, token, head, 1000.0 * (head / (q_heads / kv_heads)));
        }
      }
    });
  }
}

TEST(BugCases, A27_llamacpp7903_EverySequenceOfADecodeBatchEqualsItselfAlone) {
  const AttentionSpec spec = MakeSpec(6, 2, 32);
  ForEachKernel(spec, [&](const std::string& forced) {
    std::vector<int32_t> kv;
    for (int i = 0; i < 33; ++i) kv.push_back(1 + i * 11);
    AttentionBatch all(spec, std::vector<int32_t>(33, 1), kv, {.seed = 3});
    const auto together = RunAttention(all, forced);
    ASSERT_TRUE(together);
    const auto row = static_cast<size_t>(spec.q_heads) * static_cast<size_t>(spec.v_head_dim);
    for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32}) {
      std::vector<int32_t> owned;  // the last `size` sequences
      for (int i = 33 - size; i < 33; ++i) owned.push_back(i);
      const auto some = RunAttention(all, forced, {.owned = owned});
      ASSERT_TRUE(some);
      for (size_t i = (33 - static_cast<size_t>(size)) * row; i < 33 * row; ++i) {
        ASSERT_EQ(some->out[i], together->out[i]) << "batch of " << size;
      }
    }
  });
}

TEST(BugCases, A28_A29_llamacpp24912_OffsetsPastTwoToTheThirtyOneAreRight) {
  // Blocks 2^28 elements apart: block 9 starts at element 2.4e9. Only the touched pages become resident.
  constexpr int64_t kBlockStride = int64_t{1} << 28;
  constexpr int64_t kBytes = (10 * kBlockStride) * 2;
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "the system refuses " << kBytes << " bytes of address space";
  AttentionSpec spec = MakeSpec(2, 1, 64);
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1, 3}, {20, 20}, {.shuffle_pages = false});
    PagedKv& kv = batch.paged();
    kv.k = {memory, kBlockStride, kBlockStride / 4, 64};
    kv.v = {static_cast<bf16*>(memory) + kBlockStride / 2, kBlockStride, kBlockStride / 4, 64};
    kv.num_blocks = 10;
    const int32_t ids[] = {9, 1, 8, 2};
    for (int i = 0; i < 4; ++i) batch.block_ids(i / 2)[i % 2] = ids[i];
    batch.UProbe();
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    ExpectRow(*result, spec, 0, 0, 9.5);
    ExpectRow(*result, spec, 3, 1, 9.5);
  });
  munmap(memory, kBytes);
}

TEST(BugCases, A30_aiter3498_KAndVInterleavedPerBlock) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  spec.layout = KvLayout::kPagedNhd;
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch apart(spec, {1, 5}, {40, 20}, {.seed = 2}),
        together(spec, {1, 5}, {40, 20}, {.seed = 2, .interleave_kv = true});
    const auto expected = RunAttention(apart, forced), result = RunAttention(together, forced);
    ASSERT_TRUE(expected && result);
    EXPECT_TRUE(*expected == *result);
  });
}

TEST(BugCases, A32_flagattention45_KStridedWhileVIsDense) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  spec.layout = KvLayout::kContiguous;
  AttentionBatch batch(spec, {5, 2}, {9, 2}, {.seed = 2});
  const int64_t row = int64_t{spec.kv_heads} * spec.head_dim;
  std::vector<bf16> every_second(static_cast<size_t>(22 * row), bf16{0x7fc0});
  for (int64_t i = 0; i < 11 * row; ++i) {
    every_second[static_cast<size_t>(i / row * 2 * row + i % row)] =
        static_cast<bf16*>(batch.KeyData(false))[i];
  }
  ForEachKernel(spec, [&](const std::string& forced) {
    const auto expected = RunAttention(batch, forced);
    ASSERT_TRUE(expected);
    const auto router = AttentionRouter::Create(ThisCpu(), forced).value();
    const auto plan = PlanAttention(router, spec, batch.lengths(), 1).value();
    const auto output = batch.MakeOutput(kNaN);
    AttentionParams params = batch.Tensors(output);
    ContiguousKv kv = *params.contiguous;
    kv.k = every_second.data();
    kv.k_token_stride = 2 * row;
    params.contiguous = &kv;
    AttendParams(*plan, params, Team(1), false);
    for (int64_t i = 0; i < batch.num_tokens() * int64_t{spec.q_heads} * spec.v_head_dim; ++i) {
      ASSERT_EQ(output.out.as<float>()[i], expected->out[static_cast<size_t>(i)]);
    }
  });
}

TEST(BugCases, A33_vllm21996_LseMayBeATransposedView) {
  const AttentionSpec spec = MakeSpec(4, 2, 32);
  AttentionBatch batch(spec, {5, 1}, {9, 700}, {.seed = 2});
  ForEachKernel(spec, [&](const std::string& forced) {
    const auto expected = RunAttention(batch, forced);
    ASSERT_TRUE(expected);
    const auto router = AttentionRouter::Create(ThisCpu(), forced).value();
    const auto plan = PlanAttention(router, spec, batch.lengths(), 1).value();
    const auto output = batch.MakeOutput(kNaN);
    AttentionParams params = batch.Tensors(output);
    params.lse.stride = {1, spec.q_heads};
    AttendParams(*plan, params, Team(1), false);
    for (int head = 0; head < spec.q_heads; ++head) {
      for (int token = 0; token < batch.num_tokens(); ++token) {
        ASSERT_EQ(*params.lse.At(head, token),
                  expected->lse[static_cast<size_t>(head * batch.num_tokens() + token)]);
      }
    }
  });
}

TEST(BugCases, A37_vllm38436_PaddingRowsAreZeroAndMoveNoOther) {
  const AttentionSpec spec = Small();
  ExpectUProbe(spec, {1, 1, 1, 1, 1, 1, 1, 1}, {5, 9, 40, 0, 0, 0, 0, 0}, {2, 4, 19.5, 0, 0, 0, 0, 0});
}

TEST(BugCases, A41_vllm42273_BlocksLeftBehindByTheWindowAreNotFollowed) {
  AttentionSpec spec = Windowed(4);
  spec.block_size = 4;
  ForEachKernel(spec, [&](const std::string& forced) {
    for (const int32_t stale : {0, -1, std::numeric_limits<int32_t>::max()}) {  // block 0 is full of NaN
      AttentionBatch batch(spec, {1}, {20});
      batch.UProbe();
      for (int i = 0; i < 4; ++i) batch.block_ids(0)[i] = stale;
      const auto result = RunAttention(batch, forced);
      ASSERT_TRUE(result) << result.error().message;
      ExpectRow(*result, spec, 0, 1, 17.5);
    }
  });
}

TEST(BugCases, A41_sibling_StreamingSinksKeepTheirBlocksAndLoseTheMiddle) {
  AttentionSpec spec = Windowed(4);
  spec.block_size = 4;
  spec.sink_tokens = 2;
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1, 2}, {100, 50});
    batch.UProbe();
    for (int i = 1; i < 24; ++i) batch.block_ids(0)[i] = -1;
    for (int i = 1; i < 11; ++i) batch.block_ids(1)[i] = -1;
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result) << result.error().message;
    ExpectRow(*result, spec, 0, 0, (0 + 1 + 96 + 97 + 98 + 99) / 6.0);
    ExpectRow(*result, spec, 1, 0, (0 + 1 + 45 + 46 + 47 + 48) / 6.0);
    ExpectRow(*result, spec, 2, 1, (0 + 1 + 46 + 47 + 48 + 49) / 6.0);
  });
}

}  // namespace
}  // namespace attest::testing
