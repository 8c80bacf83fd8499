#include "kernels/cpu/append_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "tests/support/attention_batch.h"

namespace attest::testing {
namespace {

constexpr int kHeads = 3, kDim = 20, kVDim = 12, kBlock = 8, kBlocks = 12;

struct Pool {
  GuardedBytes k, v;
  PagedKv kv;
};

Pool MakePool(DType type, bool hnd) {
  const int64_t slots = int64_t{kBlocks} * kBlock * kHeads;
  Pool pool{.k = GuardedBytes(slots * kDim * BlockBytes(type)),
            .v = GuardedBytes(slots * kVDim * BlockBytes(type)),
            .kv = {}};
  const auto pages = [hnd](void* data, int dim) {
    return KvPages{.data = data,
                   .block_stride = int64_t{kBlock} * kHeads * dim,
                   .head_stride = hnd ? int64_t{kBlock} * dim : dim,
                   .slot_stride = hnd ? dim : int64_t{kHeads} * dim};
  };
  pool.kv = {.k = pages(pool.k.data(), kDim),
             .v = pages(pool.v.data(), kVDim),
             .dtype = type,
             .num_blocks = kBlocks,
             .block_size = kBlock,
             .kv_heads = kHeads,
             .head_dim = kDim,
             .v_head_dim = kVDim};
  return pool;
}

TEST(AppendKv, WritesEveryRowToItsSlotAndNothingElse) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool hnd : {true, false}) {
      for (const int rows : {1, 5, 80}) {  // 80: several threads
        const Pool pool = MakePool(type, hnd);
        std::vector<int64_t> slots;
        for (int i = 0; i < kBlocks * kBlock; ++i) slots.push_back(i);
        std::mt19937 random(3);
        std::ranges::shuffle(slots, random);
        slots.resize(static_cast<size_t>(rows));
        slots[0] = -1;  // no write
        // Rows of a fused QKV tensor: the rows of k are further apart than they are long.
        std::vector<float> k(static_cast<size_t>(rows) * (kHeads * kDim + 7)),
            v(static_cast<size_t>(rows) * kHeads * kVDim);
        std::normal_distribution<float> normal;
        for (float& x : k) x = normal(random);
        for (float& x : v) x = normal(random);
        const View<const float, 3> k_view{
            .data = k.data(), .shape = {rows, kHeads, kDim}, .stride = {kHeads * kDim + 7, kDim, 1}};
        const auto v_view = View<const float, 3>::Dense(v.data(), {rows, kHeads, kVDim});
        ThreadTeam team(ThreadTeamOptions{.num_threads = 2, .pin = false, .spin_us = 20});
        AppendKv(k_view, v_view, slots, pool.kv, team);

        for (int64_t slot = 0; slot < kBlocks * kBlock; ++slot) {
          const auto row = std::ranges::find(slots, slot) - slots.begin();
          for (int head = 0; head < kHeads; ++head) {
            for (const bool value : {false, true}) {
              const KvPages& pages = value ? pool.kv.v : pool.kv.k;
              const auto& view = value ? v_view : k_view;
              const int64_t at = slot / kBlock * pages.block_stride + head * pages.head_stride +
                                 slot % kBlock * pages.slot_stride;
              for (int d = 0; d < (value ? kVDim : kDim); ++d) {
                const double stored = ReferenceElement(pages.data, type, at + d);
                if (row == rows) {
                  ASSERT_TRUE(std::isnan(stored)) << "slot " << slot << " was nobody's";
                  continue;
                }
                uint32_t expected = 0;
                EncodeElement(&expected, type, 0, *view.At(row, head, d));
                ASSERT_EQ(stored, ReferenceElement(&expected, type, 0));
              }
            }
          }
        }
        EXPECT_TRUE(pool.k.GuardsIntact() && pool.v.GuardsIntact());
      }
    }
  }
}

TEST(AppendKv, ConvertsSpecialValues) {
  const Pool pool = MakePool(DType::kBF16, true);
  std::vector<float> k(kHeads * kDim, kNaN), v(kHeads * kVDim, kInfinity);
  k[1] = 1.00390625f;  // halfway between two bf16 values: to even
  k[2] = -0.0f;
  const std::vector<int64_t> slots{kBlock + 1};
  AppendKvRows(View<const float, 3>::Dense(k.data(), {1, kHeads, kDim}),
               View<const float, 3>::Dense(v.data(), {1, kHeads, kVDim}), slots, pool.kv, 0, 1);
  const auto* row = pool.k.as<bf16>() + kBlock * kHeads * kDim + kDim;
  EXPECT_TRUE(std::isnan(ToFloat(row[0])));
  EXPECT_EQ(ToFloat(row[1]), 1.0f);
  EXPECT_EQ(row[2].bits, 0x8000);
  EXPECT_EQ(ToFloat(pool.v.as<bf16>()[kBlock * kHeads * kVDim + kVDim]), kInfinity);
}

TEST(AppendKv, SaysWhichPagesItWrites) {
  EXPECT_TRUE(CanAppendKv(DType::kF32) && CanAppendKv(DType::kBF16) && CanAppendKv(DType::kF16));
  EXPECT_FALSE(CanAppendKv(DType::kI8) || CanAppendKv(DType::kF8E4M3) || CanAppendKv(DType::kF8E5M2));
}

TEST(AppendKvDeathTest, StopsAtASlotPastThePool) {
  const Pool pool = MakePool(DType::kF32, true);
  std::vector<float> k(kHeads * kDim), v(kHeads * kVDim);
  const std::vector<int64_t> slots{kBlocks * kBlock};
  EXPECT_DEATH(AppendKvRows(View<const float, 3>::Dense(k.data(), {1, kHeads, kDim}),
                            View<const float, 3>::Dense(v.data(), {1, kHeads, kVDim}), slots, pool.kv, 0, 1),
               "block < num_blocks");
}

}  // namespace
}  // namespace attest::testing
