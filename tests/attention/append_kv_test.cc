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

// What a page holds after a write of `value` with `scale`.
double Quantised(DType type, float value, float scale) {
  uint32_t stored = 0;
  float scaled = value / scale;
  if (type == DType::kI8) {
    const auto byte = static_cast<int8_t>(std::clamp(std::nearbyint(scaled), -128.0f, 127.0f));
    return byte;
  }
  if (BlockBytes(type) == 1) {  // saturates, although e5m2 has infinities
    const float largest = type == DType::kF8E4M3 ? 448.0f : 57344.0f;
    scaled = std::clamp(scaled, -largest, largest);
  }
  EncodeElement(&stored, type, 0, scaled);  // the nearest of all 256 values, found by looking at them
  return ReferenceElement(&stored, type, 0);
}

// Scales per tensor, per KV head and per (sequence, KV head) are one struct with other strides.
TEST(AppendKv, DividesByTheScaleOfTheTokensSequenceAndHead) {
  const std::vector<float> scales = {0.5f, 0.013f, 3.0f, 0.25f, 7.0f, 0.11f};  // [2 sequences, kHeads]
  struct Strides {
    int64_t seq, head;
  };
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kBF16, DType::kF32}) {
    for (const Strides strides : {Strides{0, 0}, {0, 1}, {kHeads, 1}, {kHeads, 0}}) {
      for (const bool hnd : {true, false}) {
        const Pool pool = MakePool(type, hnd);
        constexpr int kRows = 9;
        std::vector<float> k(kRows * kHeads * kDim), v(kRows * kHeads * kVDim);
        std::mt19937 random(5);
        std::normal_distribution<float> normal(0.0f, type == DType::kI8 ? 6.0f : 2.0f);
        for (float& x : k) x = normal(random);
        for (float& x : v) x = normal(random);
        k[0] = kInfinity, k[1] = -1e30f;  // saturate
        std::vector<int64_t> slots = {5, 90, -1, 17, 18, 44, 2, 63, 8};
        const std::vector<int32_t> seqs = {0, 1, 1, 0, 0, 1, 1, 1, 0};
        const auto bytes = [](const std::vector<float>& x, int dim) {
          return View<const std::byte, 3>{.data = reinterpret_cast<const std::byte*>(x.data()),
                                          .shape = {kRows, kHeads, dim},
                                          .stride = {kHeads * dim, dim, 1}};
        };
        EXPECT_EQ(AppendKvRows({.k = bytes(k, kDim),
                                .v = bytes(v, kVDim),
                                .dtype = DType::kF32,
                                .slots = slots,
                                .k_scale = {scales.data(), strides.seq, strides.head},
                                .v_scale = {scales.data(), strides.seq, strides.head},
                                .seqs = seqs},
                               pool.kv, 0, kRows),
                  0);
        for (int row = 0; row < kRows; ++row) {
          const int64_t slot = slots[static_cast<size_t>(row)];
          if (slot < 0) continue;
          for (int head = 0; head < kHeads; ++head) {
            const float scale = scales[static_cast<size_t>(seqs[static_cast<size_t>(row)] * strides.seq +
                                                           head * strides.head)];
            for (const bool value : {false, true}) {
              const KvPages& pages = value ? pool.kv.v : pool.kv.k;
              const int dim = value ? kVDim : kDim;
              const int64_t at = slot / kBlock * pages.block_stride + head * pages.head_stride +
                                 slot % kBlock * pages.slot_stride;
              for (int d = 0; d < dim; ++d) {
                const float x = (value ? v : k)[static_cast<size_t>((row * kHeads + head) * dim + d)];
                const double stored = ReferenceElement(pages.data, type, at + d);
                ASSERT_EQ(stored, Quantised(type, x, scale)) << DTypeName(type) << " " << x << " / " << scale;
              }
            }
          }
        }
        EXPECT_TRUE(pool.k.GuardsIntact() && pool.v.GuardsIntact());
      }
    }
  }
}

TEST(AppendKv, ReadsRowsOfEachFloatType) {
  for (const DType rows : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Pool pool = MakePool(DType::kF32, true);
    const GuardedBytes k(kHeads * kDim * BlockBytes(rows)), v(kHeads * kVDim * BlockBytes(rows));
    for (int i = 0; i < kHeads * kDim; ++i) EncodeElement(k.data(), rows, i, static_cast<float>(i) / 8);
    for (int i = 0; i < kHeads * kVDim; ++i) EncodeElement(v.data(), rows, i, static_cast<float>(-i));
    const std::vector<int64_t> slots{kBlock};
    EXPECT_EQ(AppendKvRows({.k = {k.data(), {1, kHeads, kDim}, {kHeads * kDim, kDim, 1}},
                            .v = {v.data(), {1, kHeads, kVDim}, {kHeads * kVDim, kVDim, 1}},
                            .dtype = rows,
                            .slots = slots,
                            .k_scale = {},
                            .v_scale = {},
                            .seqs = {}},
                           pool.kv, 0, 1),
              0);
    for (int head = 0; head < kHeads; ++head) {
      const int64_t at = pool.kv.k.block_stride + head * pool.kv.k.head_stride;
      EXPECT_EQ(pool.k.as<float>()[at + 3], static_cast<float>(head * kDim + 3) / 8);
      EXPECT_EQ(pool.v.as<float>()[pool.kv.v.block_stride + head * pool.kv.v.head_stride + 1],
                static_cast<float>(-(head * kVDim + 1)));
    }
  }
}

TEST(AppendKv, KeepsNanInFp8AndCountsTheOnesInt8CannotHold) {
  std::vector<float> k(kHeads * kDim, 1.0f), v(kHeads * kVDim, 1.0f);
  k[3] = k[kDim + 1] = v[0] = kNaN;
  const std::vector<int64_t> slots{3};
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    const Pool pool = MakePool(type, true);
    const int64_t lost = AppendKvRows(
        {.k = {reinterpret_cast<const std::byte*>(k.data()), {1, kHeads, kDim}, {kHeads * kDim, kDim, 1}},
         .v = {reinterpret_cast<const std::byte*>(v.data()), {1, kHeads, kVDim}, {kHeads * kVDim, kVDim, 1}},
         .dtype = DType::kF32,
         .slots = slots,
         .k_scale = {},
         .v_scale = {},
         .seqs = {}},
        pool.kv, 0, 1);
    const double stored = ReferenceElement(pool.k.data(), type, 3 * kDim + 3);
    EXPECT_EQ(lost, type == DType::kI8 ? 3 : 0);
    if (type == DType::kI8) {
      EXPECT_EQ(stored, 0.0);
    } else {
      EXPECT_TRUE(std::isnan(stored));
    }
  }
}

TEST(CopyKvBlocks, CopiesEveryHeadAndSlotAndNothingElse) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const bool hnd : {true, false}) {
      const Pool pool = MakePool(type, hnd);
      std::mt19937 random(8);
      const auto fill = [&](const GuardedBytes& bytes) {
        for (int64_t i = 0; i < bytes.size(); ++i) bytes.data()[i] = static_cast<std::byte>(random() & 0xff);
        return std::vector<std::byte>(bytes.data(), bytes.data() + bytes.size());
      };
      const auto k = fill(pool.k), v = fill(pool.v);
      // In order: block 2 gets what block 7 held, then 9 gets it from 2.
      CopyKvBlocks(std::vector<BlockCopy>{{7, 2}, {2, 9}, {4, 4}}, pool.kv);
      for (int block = 0; block < kBlocks; ++block) {
        const int from = block == 2 || block == 9 ? 7 : block;
        const auto same = [&](const GuardedBytes& now, const std::vector<std::byte>& before) {
          const int64_t bytes = now.size() / kBlocks;
          return std::equal(now.data() + block * bytes, now.data() + (block + 1) * bytes,
                            before.begin() + from * bytes);
        };
        EXPECT_TRUE(same(pool.k, k) && same(pool.v, v)) << DTypeName(type) << " block " << block;
      }
      EXPECT_TRUE(pool.k.GuardsIntact() && pool.v.GuardsIntact());
    }
  }
}

TEST(AppendKvDeathTest, StopsAtASlotPastThePool) {
  const Pool pool = MakePool(DType::kF32, true);
  std::vector<float> k(kHeads * kDim), v(kHeads * kVDim);
  const std::vector<int64_t> slots{kBlocks * kBlock};
  EXPECT_DEATH(AppendKvRows(View<const float, 3>::Dense(k.data(), {1, kHeads, kDim}),
                            View<const float, 3>::Dense(v.data(), {1, kHeads, kVDim}), slots, pool.kv, 0, 1),
               "block < kv.num_blocks");
}

}  // namespace
}  // namespace attest::testing
