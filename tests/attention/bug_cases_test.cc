// Public bug reports of attention kernels, each as the test that would have caught it. The number after the
// name is the repository's issue or pull request. Every one runs each kernel by forced name.
#include <gtest/gtest.h>

#include "attention/alibi_slopes.h"
#include "tests/support/attention_probes.h"

namespace attest::testing {
namespace {

TEST(BugCases, A01_vllm28670_ShortestSequencesAreComputed) {
  ExpectRandomIsRight(MakeSpec(4, 2, 128), {5, 9, 9}, {20, 20, 20});
  ExpectRandomIsRight(MakeSpec(4, 2, 128), {7}, {7});
  ExpectRandomIsRight(MakeSpec(4, 2, 128), {1, 9}, {20, 20});
  ExpectUProbe(Small(), {1, 9}, {1, 9}, {0, 0, .5, 1, 1.5, 2, 2.5, 3, 3.5, 4});
}

TEST(BugCases, A02_vllm34570_EveryHeadSizeIsRightInEveryDimOrRefused) {
  for (int dim = 8; dim <= 256; dim += 8) {
    const AttentionSpec spec = Small(1, 1, dim);
    ForEachKernel(spec, [&](const std::string& forced) {
      AttentionBatch batch(spec, {1, 3, 4}, {3, 3, 9});
      batch.UProbe();
      batch.FillV([](int, int key, int, int d) { return static_cast<float>(key + d / 1024.0); });
      const auto result = RunAttention(batch, forced);
      ASSERT_TRUE(result) << result.error().message;
      const double expected[] = {1.0, 0.0, 0.5, 1.0, 2.5, 3.0, 3.5, 4.0};
      for (int token = 0; token < 8; ++token)
        ExpectRow(*result, spec, token, 0, expected[token], /*d_probe=*/true);
    });
  }
}

TEST(BugCases, A03_flashinfer234_AWindowOfOneIsSelfOnlyAndNotOff) {
  for (const int window : {1, 2, 3, 4, 9, 10, 11}) {
    ExpectUProbe(Windowed(window), {1}, {10}, {Mean(9, window)});
    ExpectUProbe(Windowed(window), {4}, {10},
                 {Mean(6, window), Mean(7, window), Mean(8, window), Mean(9, window)});
  }
}

TEST(BugCases, A04_transformers39408_AWindowCountsTheRowItself) {
  ExpectUProbe(Windowed(4), {1, 1, 1}, {10, 4, 5}, {7.5, 1.5, 2.5});
}

TEST(BugCases, A05_vllm3385_LengthsAroundTheWindowEdge) {
  for (const int n : {15, 16, 17, 18}) {
    std::vector<double> expected;
    for (int p = 0; p < n; ++p) expected.push_back(Mean(p, 16));
    ExpectUProbe(Windowed(16), {n}, {n}, expected);
    ExpectUProbe(Windowed(16), {1}, {n}, {expected.back()});
  }
}

TEST(BugCases, A06_vllm47332_AChunkUsesAbsolutePositionsAndTheWindow) {
  ExpectUProbe(Windowed(4), {4}, {12}, {6.5, 7.5, 8.5, 9.5});
}

TEST(BugCases, A07_mistralrs2094_EachLayersWindowHoldsInEveryPhase) {
  std::vector<double> sliding, full;
  for (int p = 0; p < 10; ++p) {
    sliding.push_back(Mean(p, 4));
    full.push_back(Mean(p, 0));
  }
  ExpectUProbe(Windowed(4), {10}, {10}, sliding);
  ExpectUProbe(Windowed(0), {10}, {10}, full);
  ExpectUProbe(Windowed(4), {1}, {10}, {7.5});
  ExpectUProbe(Windowed(0), {1}, {10}, {4.5});
  ExpectUProbe(Windowed(4), {2}, {10}, {6.5, 7.5});
  ExpectUProbe(Windowed(0), {2}, {10}, {4.0, 4.5});
}

TEST(BugCases, A10_flashattention282_CausalIsAlignedBottomRight) {
  ExpectUProbe(Small(), {2}, {5}, {1.5, 2.0});
}

TEST(BugCases, A11_flashattention1778_RowsBeforeTheFirstKeyAreZeroWithLseMinusInfinity) {
  const AttentionSpec spec = Small();
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {5}, {2});
    batch.UProbe();
    batch.FillV([](int, int key, int, int) { return static_cast<float>(key + 1); });
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    const double expected[] = {0, 0, 0, 1, 1.5};
    for (int token = 0; token < 5; ++token) {
      ExpectRow(*result, spec, token, 0, expected[token]);
      EXPECT_EQ(result->lse[static_cast<size_t>(token)] == -kInfinity, token < 3);
    }
    EXPECT_NEAR(result->lse[4], std::log(2.0), 1e-6);
  });
}

TEST(BugCases, A13_pytorch103963_ARowWithoutKeysIsZeroAndMovesNoOther) {
  const AttentionSpec spec = MakeSpec(4, 2, 32);
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch with(spec, {1, 1, 1, 1}, {9, 30, 0, 5}), without(spec, {1, 1, 1}, {9, 30, 5});
    for (AttentionBatch* batch : {&with, &without}) {  // the same numbers whatever was drawn
      const auto value = [&](int seq, int key, int head, int d) {
        const int n = batch->kv_len()[static_cast<size_t>(seq)];
        return std::sin(static_cast<float>(n * 131 + key * 17 + head * 7 + d));
      };
      batch->FillK(value);
      batch->FillV(value);
      batch->FillQ([&](int seq, int, int head, int d) {
        return std::cos(static_cast<float>(batch->kv_len()[static_cast<size_t>(seq)] + head * 5 + d));
      });
    }
    const auto four = RunAttention(with, forced), three = RunAttention(without, forced);
    ASSERT_TRUE(four && three);
    const auto row = static_cast<std::ptrdiff_t>(spec.q_heads) * spec.v_head_dim;
    EXPECT_TRUE(std::equal(four->out.begin(), four->out.begin() + 2 * row, three->out.begin()));
    EXPECT_TRUE(std::equal(four->out.begin() + 3 * row, four->out.end(), three->out.begin() + 2 * row));
    for (int head = 0; head < spec.q_heads; ++head) ExpectRow(*four, spec, 2, head, 0.0);
  });
}

TEST(BugCases, A14_pytorch101967_NaNInAHiddenKeyDoesNotLeak) {
  AttentionSpec spec = Windowed(3);
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1, 1}, {6, 40});
    batch.UProbe();
    for (const bool value : {false, true}) {
      for (const auto& [seq, hidden] : {std::pair{0, 3}, {1, 37}}) {
        for (int key = 0; key < hidden; ++key) {
          for (int d = 0; d < spec.head_dim; ++d) {
            EncodeElement(batch.KeyData(value), spec.kv_dtype, batch.KeyIndex(value, seq, key, 0) + d, kNaN);
          }
        }
      }
    }
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    ExpectRow(*result, spec, 0, 0, 4.0);
    ExpectRow(*result, spec, 1, 1, 38.0);
  });
}

// A later row sees a NaN that an earlier row of the same tile does not
// (tests/regression/masked_nan_leaks_test has every kind of mask).
TEST(BugCases, A14_sibling_NaNInALaterKeyStaysInTheRowsThatSeeIt) {
  const AttentionSpec spec = Small(4, 1, 16);
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {40, 5}, {40, 60});
    batch.UProbe();
    for (int d = 0; d < spec.head_dim; ++d) {
      EncodeElement(batch.KeyData(true), spec.kv_dtype, batch.KeyIndex(true, 0, 21, 0) + d, kNaN);
    }
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    for (int token = 0; token < 40; ++token) {
      const bool is_nan = std::isnan(result->out[static_cast<size_t>((token * 4 + 3) * 16)]);
      if (token >= 21) {
        EXPECT_TRUE(is_nan) << "a NaN that is seen must show, token " << token;
      } else {
        ExpectRow(*result, spec, token, 3, token / 2.0);
      }
    }
    for (int row = 0; row < 5; ++row) ExpectRow(*result, spec, 40 + row, 2, (55 + row) / 2.0);
  });
}

TEST(BugCases, A15_pytorch130014_TheFirstTilesMayHoldNoVisibleKey) {
  ExpectUProbe(Windowed(10), {1}, {600}, {594.5});
  std::vector<double> expected;
  for (int p = 580; p < 600; ++p) expected.push_back(Mean(p, 10));
  ExpectUProbe(Windowed(10), {20}, {600}, expected);
}

TEST(BugCases, A16_flashinfer4401_AVeryNegativeScoreIsStillTheMaximum) {
  AttentionSpec spec = Small();
  spec.scale = 1.0f;
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1, 3}, {1, 2});
    batch.FillQ([](int, int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
    batch.FillK([](int, int, int, int d) { return d == 0 ? -60000.0f : 0.0f; });
    batch.FillV([](int, int key, int, int) { return static_cast<float>(key + 3); });
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    ExpectRow(*result, spec, 0, 0, 3.0);
    ExpectRow(*result, spec, 1, 0, 0.0);
    ExpectRow(*result, spec, 2, 0, 3.0);
    ExpectRow(*result, spec, 3, 1, 3.5);
  });
}

TEST(BugCases, A18_sglang2465_SplitsWithoutKeysWeighNothing) {
  const AttentionSpec spec = Small();
  for (const KernelEntry* entry : RunnableKernels()) {
    const AttentionProblem problem{.spec = spec, .phase = AttentionPhase::kDecode};
    if (!entry->kernel->can_split_kv || !Check(entry->contract, problem, ThisCpu()).empty()) continue;
    for (int kv_len = 1; kv_len <= 9; ++kv_len) {
      AttentionBatch batch(spec, {1}, {kv_len});
      batch.UProbe();
      std::vector<int32_t> cuts;
      for (int i = 0; i <= 8; ++i)
        cuts.push_back(std::min(kv_len, 2 * i));  // eight splits, most of them empty
      cuts.back() = kv_len;
      const AttentionResult result = RunSplits(batch, *entry, cuts);
      SCOPED_TRACE(entry->contract.name);
      ExpectRow(result, spec, 0, 0, (kv_len - 1) / 2.0);
      EXPECT_NEAR(result.lse[1], std::log(kv_len), 2e-6);
    }
  }
}

TEST(BugCases, A19_vllm936_TheTailOfTheLastPageIsNotRead) {
  for (const DType type :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    AttentionSpec spec = Small();
    spec.kv_dtype = type;
    ExpectUProbe(spec, {1, 2}, {5, 4}, {2.0, 1.0, 1.5});  // slots past kv_len hold NaN
  }
}

TEST(BugCases, A20_compositekernel1281_ASequenceWithoutKeysIsZero) {
  AttentionSpec spec = MakeSpec(2, 2, 68);
  spec.layout = KvLayout::kContiguous;
  ExpectUProbe(spec, {1, 2, 1, 2}, {0, 2, 0, 2}, {0, 0, .5, 0, 0, .5});
  spec.layout = KvLayout::kPagedHnd;
  ExpectUProbe(spec, {1, 2, 1, 2}, {0, 2, 0, 2}, {0, 0, .5, 0, 0, .5});
}

TEST(BugCases, A21_flashattention2562_EmptyQueriesOrKeysAtEveryHeadSize) {
  for (const int dim : {32, 64, 96, 128, 192, 256}) {
    ExpectUProbe(Small(1, 1, dim), {0, 3, 2, 0}, {2, 2, 3, 3}, {0, 0, .5, .5, 1});
  }
}

TEST(BugCases, A22_vllmflashattention18_EachRowUsesItsOwnLength) {
  ExpectUProbe(Small(), {1, 1}, {5, 40}, {2.0, 19.5});
  ExpectUProbe(Small(), {1, 1}, {3, 9}, {1.0, 4.0});
}

TEST(BugCases, A23_flashinfer4347_TheNeedleIsFoundAtEveryPageSize) {
  for (const int block_size : {1, 8, 16, 32, 64, 256}) {
    AttentionSpec spec = Small(2, 1, 16);
    spec.block_size = block_size;
    spec.scale = 1.0f;
    for (const int needle : {0, 255, 256, 400, 1022}) {
      ForEachKernel(spec, [&](const std::string& forced) {
        AttentionBatch batch(spec, {1}, {1023});
        batch.FillQ([](int, int, int, int d) { return d == 3 ? 40.0f : 0.0f; });
        batch.FillK([&](int, int key, int, int d) { return key == needle && d == 3 ? 1.0f : 0.0f; });
        batch.FillV([](int, int key, int, int) { return static_cast<float>(key); });
        const auto result = RunAttention(batch, forced);
        ASSERT_TRUE(result);
        ExpectRow(*result, spec, 0, 1, needle);
      });
    }
  }
}

TEST(BugCases, A24_vllm57614_AlibiAndPage32AreComputedOrRefused) {
  AttentionSpec spec = Small(2, 1, 16);
  spec.block_size = 32;
  ExpectUProbe(spec, {1}, {17}, {8.0});
  spec.has_alibi = true;
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1}, {3});
    batch.UProbe();
    batch.alibi_slopes()[0] = batch.alibi_slopes()[1] = 0.5f;
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    EXPECT_NEAR(result->out[0], 1.3202, 5e-5);
    const double weights[] = {std::exp(-1.0), std::exp(-0.5), 1.0};
    ExpectRow(*result, spec, 0, 1, (weights[1] + 2) / (weights[0] + weights[1] + 1));
  });
}

TEST(BugCases, A39_aiter3910_EveryHeadOfEveryDraftTokenIsWritten) {
  ExpectRandomIsRight(MakeSpec(32, 1, 64), {4, 4, 4}, {30, 700, 5});
}

TEST(BugCases, A40_aiter2128_FewerKeysThanDraftTokens) {
  ExpectUProbe(Small(), {4, 4, 4, 4}, {1, 2, 3, 4}, {0, 0, 0, 0, 0, 0, 0, .5, 0, 0, .5, 1, 0, .5, 1, 1.5});
}

TEST(BugCases, A46_tensorrtllm1611_AlibiSlopesOfHeadCountsThatAreNoPowerOfTwo) {
  EXPECT_EQ(AlibiSlopes(6), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f}));
  EXPECT_EQ(AlibiSlopes(8),
            (std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f}));
  EXPECT_EQ(AlibiSlopes(1), (std::vector<float>{0.00390625f}));
  EXPECT_EQ(AlibiSlopes(12).size(), 12u);
}

TEST(BugCases, A47_rocmlibraries12227_ASinkCountsOnceWhateverTheSplits) {
  AttentionSpec spec = Small();
  spec.has_sinks = true;
  spec.window_left = 3;
  for (const KernelEntry* entry : RunnableKernels()) {
    const AttentionProblem problem{.spec = spec, .phase = AttentionPhase::kDecode};
    if (!entry->kernel->can_split_kv || !Check(entry->contract, problem, ThisCpu()).empty()) continue;
    SCOPED_TRACE(entry->contract.name);
    for (const auto& cuts : std::vector<std::vector<int32_t>>{
             {0, 4}, {0, 2, 4}, {0, 1, 2, 3, 4}, {0, 0, 4, 4}, {0, 4, 4, 4, 4, 4, 4, 4}}) {
      AttentionBatch batch(spec, {1}, {4});
      batch.UProbe();
      batch.sinks()[0] = batch.sinks()[1] = 0.0f;
      if (cuts.size() == 2) continue;  // one split is not a partial state; covered below
      const AttentionResult result = RunSplits(batch, *entry, cuts);
      ExpectRow(result, spec, 0, 0, 1.2);
      EXPECT_NEAR(result.lse[0], std::log(5.0), 1e-6);
    }
    AttentionBatch windowed(spec, {1}, {12});  // the first split lies outside the window
    windowed.UProbe();
    windowed.sinks()[0] = windowed.sinks()[1] = 0.0f;
    ExpectRow(RunSplits(windowed, *entry, {0, 8, 10, 12}), spec, 0, 1, (8 + 9 + 10 + 11) / 5.0);
  }
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1, 1}, {4, 0});
    batch.UProbe();
    batch.sinks()[0] = batch.sinks()[1] = 0.25f;
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    ExpectRow(*result, spec, 0, 0, 6 / (4 + std::exp(0.25)));
    ExpectRow(*result, spec, 1, 0, 0.0);
    EXPECT_EQ(result->lse[1], 0.25f);
  });
}

TEST(BugCases, A48_vllmmetal212_ASinkIsNotIgnored) {
  AttentionSpec spec = Small();
  spec.has_sinks = true;
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1}, {4});
    batch.UProbe();
    batch.sinks()[0] = batch.sinks()[1] = 1.0f;
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result);
    EXPECT_NEAR(result->out[0], 0.8931, 5e-5);
  });
}

TEST(BugCases, A53_vllmascend6558_TheResultDoesNotDependOnWhatTheOutputHeld) {
  const AttentionSpec spec = Windowed(8);
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, {1, 3, 12, 6}, {40, 20, 12, 30});
    const auto first = RunAttention(batch, forced, {.fill = kNaN});
    ASSERT_TRUE(first);
    for (const float fill : {7.0f, 1e4f, kInfinity}) {
      const auto again = RunAttention(batch, forced, {.fill = fill});
      ASSERT_TRUE(again);
      EXPECT_TRUE(*first == *again) << "filled with " << fill;
    }
  });
}

TEST(BugCases, A54_aiter5515_TheFirstRowsOfAPromptDoNotDependOnItsLength) {
  const AttentionSpec spec = MakeSpec(1, 1, 16);
  ForEachKernel(spec, [&](const std::string& forced) {
    if (forced.find("reference") != std::string::npos)
      return;  // rows of the oracle are independent by design
    std::vector<double> shortest;
    for (const int32_t n : {512, 2048, 4096}) {
      AttentionBatch batch(spec, {n}, {n});
      const auto value = [](int, int key, int, int d) { return std::sin(static_cast<float>(key * 7 + d)); };
      batch.FillK(value);
      batch.FillV(value);
      batch.FillQ([](int, int row, int, int d) { return std::cos(static_cast<float>(row * 3 + d)); });
      const auto result = RunAttention(batch, forced);
      ASSERT_TRUE(result);
      const std::vector<double> first(result->out.begin(), result->out.begin() + 256 * spec.v_head_dim);
      if (shortest.empty()) shortest = first;
      ASSERT_EQ(first, shortest) << "length " << n;
    }
  });
}

}  // namespace
}  // namespace attest::testing
