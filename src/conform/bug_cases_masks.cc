// Public bug reports about masks, windows, sinks, scores and rows that see nothing.
#include <fmt/format.h>

#include <cmath>

#include "attention/alibi_slopes.h"
#include "conform/bug_cases.h"
#include "kernels/merge_states.h"

namespace attest::conform {
namespace {

void ShortestSequencesAreComputed(Probe& probe) {
  probe.ExpectRandomIsRight(probe.Spec(4, 2, 128), {5, 9, 9}, {20, 20, 20});
  probe.ExpectRandomIsRight(probe.Spec(4, 2, 128), {7}, {7});
  probe.ExpectRandomIsRight(probe.Spec(4, 2, 128), {1, 9}, {20, 20});
  probe.ExpectUProbe(probe.Small(), {1, 9}, {1, 9}, {0, 0, .5, 1, 1.5, 2, 2.5, 3, 3.5, 4});
}

void EveryHeadSizeIsRightInEveryDimOrRefused(Probe& probe) {
  for (int dim = 8; dim <= 256; dim += 8) {
    const AttentionSpec spec = probe.Small(1, 1, dim);
    AttentionBatch batch(spec, {1, 3, 4}, {3, 3, 9});
    batch.UProbe();
    batch.FillV([](int, int key, int, int d) { return static_cast<float>(key + d / 1024.0); });
    const auto result = probe.Run(batch);
    const double expected[] = {1.0, 0.0, 0.5, 1.0, 2.5, 3.0, 3.5, 4.0};
    for (int token = 0; result && token < 8; ++token)
      probe.ExpectRow(*result, spec, token, 0, expected[token], /*d_probe=*/true);
  }
}

void AWindowOfOneIsSelfOnlyAndNotOff(Probe& probe) {
  for (const int window : {1, 2, 3, 4, 9, 10, 11}) {
    probe.ExpectUProbe(probe.Windowed(window), {1}, {10}, {Mean(9, window)});
    probe.ExpectUProbe(probe.Windowed(window), {4}, {10},
                       {Mean(6, window), Mean(7, window), Mean(8, window), Mean(9, window)});
  }
}

void AWindowCountsTheRowItself(Probe& probe) {
  probe.ExpectUProbe(probe.Windowed(4), {1, 1, 1}, {10, 4, 5}, {7.5, 1.5, 2.5});
}

void LengthsAroundTheWindowEdge(Probe& probe) {
  for (const int n : {15, 16, 17, 18}) {
    std::vector<double> expected;
    for (int p = 0; p < n; ++p) expected.push_back(Mean(p, 16));
    probe.ExpectUProbe(probe.Windowed(16), {n}, {n}, expected);
    probe.ExpectUProbe(probe.Windowed(16), {1}, {n}, {expected.back()});
  }
}

void AChunkUsesAbsolutePositionsAndTheWindow(Probe& probe) {
  probe.ExpectUProbe(probe.Windowed(4), {4}, {12}, {6.5, 7.5, 8.5, 9.5});
}

void EachLayersWindowHoldsInEveryPhase(Probe& probe) {
  std::vector<double> sliding, full;
  for (int p = 0; p < 10; ++p) {
    sliding.push_back(Mean(p, 4));
    full.push_back(Mean(p, 0));
  }
  probe.ExpectUProbe(probe.Windowed(4), {10}, {10}, sliding);
  probe.ExpectUProbe(probe.Windowed(0), {10}, {10}, full);
  probe.ExpectUProbe(probe.Windowed(4), {1}, {10}, {7.5});
  probe.ExpectUProbe(probe.Windowed(0), {1}, {10}, {4.5});
  probe.ExpectUProbe(probe.Windowed(4), {2}, {10}, {6.5, 7.5});
  probe.ExpectUProbe(probe.Windowed(0), {2}, {10}, {4.0, 4.5});
}

void CausalIsAlignedBottomRight(Probe& probe) { probe.ExpectUProbe(probe.Small(), {2}, {5}, {1.5, 2.0}); }

void RowsBeforeTheFirstKeyAreZeroWithLseMinusInfinity(Probe& probe) {
  const AttentionSpec spec = probe.Small();
  AttentionBatch batch(spec, {5}, {2});
  batch.UProbe();
  batch.FillV([](int, int key, int, int) { return static_cast<float>(key + 1); });
  const auto result = probe.Run(batch);
  if (!result) return;
  const double expected[] = {0, 0, 0, 1, 1.5};
  for (int token = 0; token < 5; ++token) {
    probe.ExpectRow(*result, spec, token, 0, expected[token]);
    if (token < 3) probe.ExpectLse(*result, static_cast<size_t>(token), -static_cast<double>(kInfinity));
  }
  probe.ExpectLse(*result, 4, std::log(2.0), 1e-6);
}

void OneQueryOverManyKeysSeesAll(Probe& probe) { probe.ExpectUProbe(probe.Small(), {1}, {8}, {3.5}); }

void ARowWithoutKeysIsZeroAndMovesNoOther(Probe& probe) {
  const AttentionSpec spec = probe.Spec(4, 2, 32);
  AttentionBatch with(spec, {1, 1, 1, 1}, {9, 30, 0, 5}, {.seed = 3, .seq_ids = {1, 2, 3, 4}});
  AttentionBatch without(spec, {1, 1, 1}, {9, 30, 5}, {.seed = 3, .seq_ids = {1, 2, 4}});
  const auto four = probe.Run(with), three = probe.Run(without);
  if (!four || !three) return;
  const char* what = "rows with and without an empty one between them";
  probe.ExpectSameRow(spec, *four, 0, *three, 0, what);
  probe.ExpectSameRow(spec, *four, 1, *three, 1, what);
  probe.ExpectSameRow(spec, *four, 3, *three, 2, what);
  for (int head = 0; head < spec.q_heads; ++head) probe.ExpectRow(*four, spec, 2, head, 0.0);
}

void NaNInAHiddenKeyDoesNotLeak(Probe& probe) {
  const AttentionSpec spec = probe.Windowed(3);
  AttentionBatch batch(spec, {1, 1}, {6, 40});
  batch.UProbe();
  for (const bool value : {false, true}) {
    for (const auto& [seq, hidden] : {std::pair{0, 3}, {1, 37}}) {
      for (int key = 0; key < hidden; ++key) {
        for (int d = 0; d < spec.head_dim; ++d)
          EncodeElement(batch.KeyData(value), spec.kv_dtype, batch.KeyIndex(value, seq, key, 0) + d, kNaN);
      }
    }
  }
  const auto result = probe.Run(batch);
  if (!result) return;
  probe.ExpectRow(*result, spec, 0, 0, 4.0);
  probe.ExpectRow(*result, spec, 1, 1, 38.0);
}

// A later row sees a NaN that an earlier row of the same tile does not.
void NaNInALaterKeyStaysInTheRowsThatSeeIt(Probe& probe) {
  const AttentionSpec spec = probe.Small(4, 1, 32);
  AttentionBatch batch(spec, {40, 5}, {40, 60});
  batch.UProbe();
  for (int d = 0; d < spec.head_dim; ++d)
    EncodeElement(batch.KeyData(true), spec.kv_dtype, batch.KeyIndex(true, 0, 21, 0) + d, kNaN);
  const auto result = probe.Run(batch);
  if (!result) return;
  for (int token = 0; token < 40 && result->ran(0); ++token) {
    if (token < 21) {
      probe.ExpectRow(*result, spec, token, 3, token / 2.0);
    } else {
      probe.Expect(std::isnan(result->out[static_cast<size_t>((token * 4 + 3) * spec.v_head_dim)]),
                   fmt::format("a NaN that token {} sees does not show", token));
    }
  }
  for (int row = 0; row < 5; ++row) probe.ExpectRow(*result, spec, 40 + row, 2, (55 + row) / 2.0);
}

void TheFirstTilesMayHoldNoVisibleKey(Probe& probe) {
  probe.ExpectUProbe(probe.Windowed(10), {1}, {600}, {594.5});
  std::vector<double> expected;
  for (int p = 580; p < 600; ++p) expected.push_back(Mean(p, 10));
  probe.ExpectUProbe(probe.Windowed(10), {20}, {600}, expected);
}

void AVeryNegativeScoreIsStillTheMaximum(Probe& probe) {
  AttentionSpec spec = probe.Small();
  spec.scale = 1.0f;
  AttentionBatch batch(spec, {1, 3}, {1, 2});
  batch.FillQ([](int, int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  batch.FillK([](int, int, int, int d) { return d == 0 ? -60000.0f : 0.0f; });
  batch.FillV([](int, int key, int, int) { return static_cast<float>(key + 3); });
  const auto result = probe.Run(batch);
  if (!result) return;
  probe.ExpectRow(*result, spec, 0, 0, 3.0);
  probe.ExpectRow(*result, spec, 1, 0, 0.0);
  probe.ExpectRow(*result, spec, 2, 0, 3.0);
  probe.ExpectRow(*result, spec, 3, 1, 3.5);
}

void AnEmptyStateIsTheIdentityOfTheMerge(Probe& probe) {
  // Our merge, whatever the subject: an empty part says -inf here and +inf in another library.
  for (const float empty : {-kInfinity, kInfinity}) {
    for (const int place : {0, 1}) {
      const float out[] = {place == 0 ? kNaN : 5.0f, place == 0 ? 5.0f : kNaN};
      const float lse[] = {place == 0 ? empty : 0.25f, place == 0 ? 0.25f : empty};
      float merged = kNaN;
      const float sum = MergeStateRow({.out = out, .out_stride = 1, .lse = lse, .lse_stride = 1, .n = 2},
                                      std::nullopt, 1, &merged);
      probe.Expect(
          merged == 5.0f && sum == 0.25f,
          fmt::format("merging (5, 0.25) with an empty part of lse {} gives ({}, {})", empty, merged, sum));
    }
    const float out[] = {kNaN, kNaN}, lse[] = {empty, empty};
    float merged = kNaN;
    const float sum = MergeStateRow({.out = out, .out_stride = 1, .lse = lse, .lse_stride = 1, .n = 2},
                                    std::nullopt, 1, &merged);
    probe.Expect(merged == 0.0f && sum == -kInfinity,
                 fmt::format("merging two empty parts of lse {} gives ({}, {})", empty, merged, sum));
  }
  // The subject's own empty states: a prefix of no keys.
  AttentionSpec spec = probe.Small();
  spec.causal = false;
  AttentionBatch batch(spec, {1, 2}, {0, 0});
  const auto result = probe.Run(batch);
  for (int token = 0; result && token < 3; ++token) {
    if (!result->ran(static_cast<size_t>(token))) continue;
    probe.ExpectRow(*result, spec, token, 0, 0.0);
    probe.ExpectLse(*result, static_cast<size_t>(token), -static_cast<double>(kInfinity));
  }
}

void SplitsWithoutKeysWeighNothing(Probe& probe) {
  const AttentionSpec spec = probe.Small();
  const KernelEntry* entry = probe.subject().entry();
  const AttentionProblem problem{.spec = spec, .phase = AttentionPhase::kDecode};
  const bool splits =
      entry != nullptr && entry->kernel->can_split_kv && probe.subject().Refusals(problem).empty();
  for (int kv_len = 1; kv_len <= 9; ++kv_len) {
    probe.ExpectUProbe(spec, {1}, {kv_len}, {(kv_len - 1) / 2.0});
    if (!splits) continue;
    AttentionBatch batch(spec, {1}, {kv_len});
    batch.UProbe();
    std::vector<int32_t> cuts;  // eight splits, most of them empty
    for (int i = 0; i <= 8; ++i) cuts.push_back(std::min(kv_len, 2 * i));
    cuts.back() = kv_len;
    const AttentionResult result = RunSplits(batch, *entry, cuts);
    probe.Expect(result.violation.empty(), result.violation);
    probe.ExpectRow(result, spec, 0, 0, (kv_len - 1) / 2.0);
    probe.ExpectNear(result.lse[1], std::log(kv_len), 2e-6, "lse of eight splits");
  }
}

void ASequenceWithoutKeysIsZero(Probe& probe) {
  AttentionSpec spec = probe.Spec(2, 2, 68);
  spec.layout = KvLayout::kContiguous;
  probe.ExpectUProbe(spec, {1, 2, 1, 2}, {0, 2, 0, 2}, {0, 0, .5, 0, 0, .5});
  spec.layout = KvLayout::kPagedHnd;
  probe.ExpectUProbe(spec, {1, 2, 1, 2}, {0, 2, 0, 2}, {0, 0, .5, 0, 0, .5});
  probe.ExpectUProbe(probe.Small(2, 2, 64), {1, 2, 1, 2}, {0, 2, 0, 2}, {0, 0, .5, 0, 0, .5});
}

void EmptyQueriesOrKeysAtEveryHeadSize(Probe& probe) {
  for (int dim = 8; dim <= 256; dim += 8)
    probe.ExpectUProbe(probe.Small(1, 1, dim), {0, 3, 2, 0}, {2, 2, 3, 3}, {0, 0, .5, .5, 1});
}

void EachRowUsesItsOwnLength(Probe& probe) {
  probe.ExpectUProbe(probe.Small(), {1, 1}, {5, 40}, {2.0, 19.5});
  probe.ExpectUProbe(probe.Small(), {1, 1}, {3, 9}, {1.0, 4.0});
}

void FewerKeysThanDraftTokens(Probe& probe) {
  probe.ExpectUProbe(probe.Small(), {4, 4, 4, 4}, {1, 2, 3, 4},
                     {0, 0, 0, 0, 0, 0, 0, .5, 0, 0, .5, 1, 0, .5, 1, 1.5});
}

void AlibiSlopesOfHeadCountsThatAreNoPowerOfTwo(Probe& probe) {
  const std::vector<float> six{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f};
  probe.Expect(AlibiSlopes(6) == six, "the slopes of 6 heads");
  probe.Expect(AlibiSlopes(8) == std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f,
                                                    0.0078125f, 0.00390625f},
               "the slopes of 8 heads");
  probe.Expect(AlibiSlopes(1) == std::vector<float>{0.00390625f}, "the slope of 1 head");
  probe.Expect(AlibiSlopes(12).size() == 12, "12 slopes of 12 heads");
  // The same table in prefill and decode: row p has weights exp(-slope * (p - j)).
  AttentionSpec spec = probe.Small(6, 1, 32);
  spec.has_alibi = true;
  AttentionBatch batch(spec, {3, 1}, {3, 3});
  batch.UProbe();
  for (int head = 0; head < 6; ++head) batch.alibi_slopes()[head] = six[static_cast<size_t>(head)];
  const auto result = probe.Run(batch);
  for (int head = 0; result && head < 6; ++head) {
    const double one = std::exp(-six[static_cast<size_t>(head)]), two = one * one;
    const double last = (one + 2) / (two + one + 1);
    probe.ExpectRow(*result, spec, 1, head, 1 / (one + 1));
    probe.ExpectRow(*result, spec, 2, head, last);
    probe.ExpectRow(*result, spec, 3, head, last);
  }
}

void ASinkCountsOnceWhateverTheSplits(Probe& probe) {
  AttentionSpec spec = probe.Small();
  spec.has_sinks = true;
  spec.window_left = 3;
  const KernelEntry* entry = probe.subject().entry();
  const AttentionProblem problem{.spec = spec, .phase = AttentionPhase::kDecode};
  if (entry != nullptr && entry->kernel->can_split_kv && probe.subject().Refusals(problem).empty()) {
    for (const auto& cuts : std::vector<std::vector<int32_t>>{
             {0, 2, 4}, {0, 1, 2, 3, 4}, {0, 0, 4, 4}, {0, 4, 4, 4, 4, 4, 4, 4}}) {
      AttentionBatch batch(spec, {1}, {4});
      batch.UProbe();
      batch.sinks()[0] = batch.sinks()[1] = 0.0f;
      const AttentionResult result = RunSplits(batch, *entry, cuts);
      probe.Expect(result.violation.empty(), result.violation);
      probe.ExpectRow(result, spec, 0, 0, 1.2);
      probe.ExpectNear(result.lse[0], std::log(5.0), 1e-6, fmt::format("lse of {} splits", cuts.size() - 1));
    }
    AttentionBatch windowed(spec, {1}, {12});  // the first split lies outside the window
    windowed.UProbe();
    windowed.sinks()[0] = windowed.sinks()[1] = 0.0f;
    probe.ExpectRow(RunSplits(windowed, *entry, {0, 8, 10, 12}), spec, 0, 1, (8 + 9 + 10 + 11) / 5.0);
  }
  AttentionBatch batch(spec, {1, 1, 1}, {4, 0, 4});
  batch.UProbe();
  batch.sinks()[0] = batch.sinks()[1] = 0.25f;
  if (const auto result = probe.Run(batch)) {
    probe.ExpectRow(*result, spec, 0, 0, 6 / (4 + std::exp(0.25)));
    probe.ExpectRow(*result, spec, 1, 0, 0.0);
    probe.ExpectLse(*result, 1, 0.25);
  }
  AttentionSpec plain = probe.Small();
  plain.has_sinks = true;
  for (const int32_t kv_len : {4, 1200}) {  // one split and many
    AttentionBatch zero(plain, {1}, {kv_len});
    zero.UProbe();
    zero.sinks()[0] = zero.sinks()[1] = 0.0f;
    const auto result = probe.Run(zero);
    if (!result) continue;
    probe.ExpectNear(result->out[0], kv_len * (kv_len - 1) / 2.0 / (kv_len + 1), 1e-5, "the sink of 0");
    probe.ExpectLse(*result, 0, std::log(kv_len + 1.0), 1e-5);
  }
}

void ASinkIsNotIgnored(Probe& probe) {
  AttentionSpec spec = probe.Small();
  spec.has_sinks = true;
  AttentionBatch batch(spec, {1}, {4});
  batch.UProbe();
  batch.sinks()[0] = batch.sinks()[1] = 1.0f;
  if (const auto result = probe.Run(batch)) probe.ExpectNear(result->out[0], 0.8931, 5e-5, "the output");
}

constexpr BugCase kMaskCases[] = {
    {"A01", "vllm#28670", "ShortestSequencesAreComputed", "", ShortestSequencesAreComputed},
    {"A02", "vllm#34570", "EveryHeadSizeIsRightInEveryDimOrRefused", "",
     EveryHeadSizeIsRightInEveryDimOrRefused},
    {"A03", "flashinfer#234", "AWindowOfOneIsSelfOnlyAndNotOff", "", AWindowOfOneIsSelfOnlyAndNotOff},
    {"A04", "transformers#39408", "AWindowCountsTheRowItself", "", AWindowCountsTheRowItself},
    {"A05", "vllm#3385", "LengthsAroundTheWindowEdge", "", LengthsAroundTheWindowEdge},
    {"A06", "vllm#47332", "AChunkUsesAbsolutePositionsAndTheWindow", "",
     AChunkUsesAbsolutePositionsAndTheWindow},
    {"A07", "mistral.rs#2094", "EachLayersWindowHoldsInEveryPhase", "", EachLayersWindowHoldsInEveryPhase},
    {"A10", "flash-attention#282", "CausalIsAlignedBottomRight", "", CausalIsAlignedBottomRight},
    {"A11", "flash-attention#1778", "RowsBeforeTheFirstKeyAreZeroWithLseMinusInfinity", "",
     RowsBeforeTheFirstKeyAreZeroWithLseMinusInfinity},
    {"A12", "pytorch#103082", "OneQueryOverManyKeysSeesAll", "", OneQueryOverManyKeysSeesAll},
    {"A13", "pytorch#103963", "ARowWithoutKeysIsZeroAndMovesNoOther", "",
     ARowWithoutKeysIsZeroAndMovesNoOther},
    {"A14", "pytorch#101967", "NaNInAHiddenKeyDoesNotLeak", "", NaNInAHiddenKeyDoesNotLeak},
    {"A14", "sibling", "NaNInALaterKeyStaysInTheRowsThatSeeIt", "", NaNInALaterKeyStaysInTheRowsThatSeeIt},
    {"A15", "pytorch#130014", "TheFirstTilesMayHoldNoVisibleKey", "", TheFirstTilesMayHoldNoVisibleKey},
    {"A16", "flashinfer#4401", "AVeryNegativeScoreIsStillTheMaximum", "",
     AVeryNegativeScoreIsStillTheMaximum},
    {"A17", "vllm#39148", "AnEmptyStateIsTheIdentityOfTheMerge", "", AnEmptyStateIsTheIdentityOfTheMerge},
    {"A18", "sglang#2465", "SplitsWithoutKeysWeighNothing", "", SplitsWithoutKeysWeighNothing},
    {"A20", "composable_kernel#1281", "ASequenceWithoutKeysIsZero", "", ASequenceWithoutKeysIsZero},
    {"A21", "flash-attention#2562", "EmptyQueriesOrKeysAtEveryHeadSize", "",
     EmptyQueriesOrKeysAtEveryHeadSize},
    {"A22", "vllm-flash-attention#18", "EachRowUsesItsOwnLength", "", EachRowUsesItsOwnLength},
    {"A40", "aiter#2128", "FewerKeysThanDraftTokens", "", FewerKeysThanDraftTokens},
    {"A46", "tensorrt-llm#1611", "AlibiSlopesOfHeadCountsThatAreNoPowerOfTwo", "",
     AlibiSlopesOfHeadCountsThatAreNoPowerOfTwo},
    {"A47", "rocm-libraries#12227", "ASinkCountsOnceWhateverTheSplits", "", ASinkCountsOnceWhateverTheSplits},
    {"A48", "vllm-metal#212", "ASinkIsNotIgnored", "", ASinkIsNotIgnored},
};

}  // namespace

std::span<const BugCase> MaskBugCases() { return kMaskCases; }

}  // namespace attest::conform
