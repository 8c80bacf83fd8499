// Public bug reports about heads, pages, strides, addresses, padding, scales and companions in the batch.
#include <fmt/format.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "conform/bug_cases.h"

namespace attest::conform {
namespace {

void TheTailOfTheLastPageIsNotRead(Probe& probe) {
  for (const DType type :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    AttentionSpec spec = probe.Small();
    spec.kv_dtype = type;
    probe.ExpectUProbe(spec, {1, 2}, {5, 4}, {2.0, 1.0, 1.5});  // slots past kv_len hold NaN
  }
}

void TheNeedleIsFoundAtEveryPageSize(Probe& probe) {
  for (const int block_size : {1, 2, 7, 8, 16, 32, 64, 100, 256}) {
    AttentionSpec spec = probe.Small(2, 1, 32);
    spec.block_size = block_size;
    spec.scale = 1.0f;
    for (const int needle : {0, 255, 256, 400, 1022}) {
      AttentionBatch batch(spec, {1}, {1023});
      batch.FillQ([](int, int, int, int d) { return d == 3 ? 40.0f : 0.0f; });
      batch.FillK([&](int, int key, int, int d) { return key == needle && d == 3 ? 1.0f : 0.0f; });
      batch.FillV([](int, int key, int, int) { return static_cast<float>(key); });
      if (const auto result = probe.Run(batch)) probe.ExpectRow(*result, spec, 0, 1, needle);
    }
  }
}

void AlibiAndPage32AreComputedOrRefused(Probe& probe) {
  AttentionSpec spec = probe.Small(2, 1, 32);
  spec.block_size = 32;
  probe.ExpectUProbe(spec, {1}, {17}, {8.0});
  spec.has_alibi = true;
  AttentionBatch batch(spec, {1}, {3});
  batch.UProbe();
  batch.alibi_slopes()[0] = batch.alibi_slopes()[1] = 0.5f;
  const auto result = probe.Run(batch);
  if (!result) return;
  probe.ExpectNear(result->out[0], 1.3202, 5e-5, "the output");
  const double weights[] = {std::exp(-1.0), std::exp(-0.5), 1.0};
  probe.ExpectRow(*result, spec, 0, 1, (weights[1] + 2) / (weights[0] + weights[1] + 1));
}

void QueryHeadsReadTheirOwnKvHead(Probe& probe) {
  for (const auto& [q_heads, kv_heads] :
       {std::pair{24, 2}, {6, 2}, {9, 3}, {10, 2}, {18, 3}, {14, 2}, {24, 3}, {64, 2}}) {
    const AttentionSpec spec = probe.Small(q_heads, kv_heads, 32);
    AttentionBatch batch(spec, {1, 6, 3}, {9, 6, 40});
    batch.UProbe();
    batch.FillV([](int, int, int head, int) { return 1000.0f * static_cast<float>(head); });
    const auto result = probe.Run(batch);
    for (int token = 0; result && token < batch.num_tokens(); ++token) {
      for (int head = 0; head < q_heads; ++head)
        probe.ExpectRow(*result, spec, token, head, 1000.0 * (head / (q_heads / kv_heads)));
    }
  }
}

void EverySequenceOfADecodeBatchEqualsItselfAlone(Probe& probe) {
  const AttentionSpec spec = probe.Spec(6, 2, 32);
  std::vector<int32_t> kv;
  for (int i = 0; i < 33; ++i) kv.push_back(1 + i * 11);
  AttentionBatch all(spec, std::vector<int32_t>(33, 1), kv, {.seed = 3});
  const auto together = probe.Run(all);
  if (!together) return;
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32}) {
    std::vector<int32_t> owned;  // the last `size` sequences
    for (int i = 33 - size; i < 33; ++i) owned.push_back(i);
    const auto some = probe.Run(all, {.owned = owned});
    if (!some) return;
    for (int64_t token = 33 - size; token < 33; ++token)
      probe.ExpectSameRow(spec, *some, token, *together, token, fmt::format("a batch of {}", size));
  }
}

// Blocks 2^28 elements apart: block 9 starts at element 2.4e9. Only the touched pages become resident.
void OffsetsPastTwoToTheThirtyOneAreRight(Probe& probe) {
  constexpr int64_t kBlockStride = int64_t{1} << 28;
  const AttentionSpec spec = probe.Spec(2, 1, 64);
  const int64_t element = BlockBytes(spec.kv_dtype), bytes = 10 * kBlockStride * element;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;  // the system refuses the address space
  AttentionBatch batch(spec, {1, 3}, {20, 20}, {.shuffle_pages = false});
  PagedKv& kv = batch.paged();
  kv.k = {memory, kBlockStride, kBlockStride / 4, 64};
  kv.v = {static_cast<std::byte*>(memory) + kBlockStride / 2 * element, kBlockStride, kBlockStride / 4, 64};
  kv.num_blocks = 10;
  const int32_t ids[] = {9, 1, 8, 2};
  for (int i = 0; i < 4; ++i) batch.block_ids(i / 2)[i % 2] = ids[i];
  batch.UProbe();
  if (const auto result = probe.Run(batch)) {
    probe.ExpectRow(*result, spec, 0, 0, 9.5);
    probe.ExpectRow(*result, spec, 3, 1, 9.5);
  }
  munmap(memory, static_cast<size_t>(bytes));
}

// Tokens far apart, as in a view into a fused QKV tensor of a very long prompt: the last keys of the first
// sequence start past element 2^31.
void RowsPastTwoToTheThirtyOneElementsAreRight(Probe& probe) {
  constexpr int64_t kStride = int64_t{3} << 26, kTokens = 15, kBytes = (kTokens * kStride + 128) * 4;
  static_assert(11 * kStride > int64_t{1} << 31);
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;  // the system refuses the address space
  AttentionSpec spec = probe.Small(2, 1, 64);
  spec.layout = KvLayout::kContiguous;
  AttentionBatch batch(spec, {1, 2}, {12, 3});
  batch.UProbe();
  for (int token = 0; token < kTokens; ++token) {
    for (int d = 0; d < 64; ++d) {
      EncodeElement(memory, spec.kv_dtype, token * kStride + d, 0.0f);
      EncodeElement(memory, spec.kv_dtype, token * kStride + 64 + d,
                    static_cast<float>(token < 12 ? token : token - 12));
    }
  }
  batch.UseContiguous(memory, static_cast<std::byte*>(memory) + 64 * BlockBytes(spec.kv_dtype), kStride);
  if (const auto result = probe.Run(batch)) {
    probe.ExpectRow(*result, spec, 0, 0, 5.5);
    probe.ExpectRow(*result, spec, 1, 1, 0.5);
    probe.ExpectRow(*result, spec, 2, 1, 1.0);
  }
  munmap(memory, kBytes);
}

void KAndVInterleavedPerBlock(Probe& probe) {
  AttentionSpec spec = probe.Spec(4, 2, 32);
  spec.layout = KvLayout::kPagedNhd;
  AttentionBatch apart(spec, {1, 5}, {40, 20}, {.seed = 2}),
      together(spec, {1, 5}, {40, 20}, {.seed = 2, .interleave_kv = true});
  const auto expected = probe.Run(apart), result = probe.Run(together);
  if (expected && result) probe.ExpectSame(*expected, *result, "K and V apart and interleaved");
}

void TheSecondCallWithOtherStridesIsRight(Probe& probe) {
  const AttentionSpec spec = probe.Spec(4, 2, 32);
  AttentionBatch dense(spec, {1, 5}, {40, 20}, {.seed = 2}),
      view(spec, {1, 5}, {40, 20}, {.seed = 2, .q_token_padding = 96, .transposed_lse = true});
  const auto first = probe.Run(dense), second = probe.Run(view), third = probe.Run(dense),
             fourth = probe.Run(view);
  if (!first || !second || !third || !fourth) return;
  probe.ExpectSame(*second, *first, "a dense call, then a view");
  probe.ExpectSame(*third, *first, "a view, then a dense call");
  probe.ExpectSame(*fourth, *first, "a second view");
}

void KStridedWhileVIsDense(Probe& probe) {
  AttentionSpec spec = probe.Spec(4, 2, 32);
  spec.layout = KvLayout::kContiguous;
  AttentionBatch dense(spec, {5, 2}, {9, 2}, {.seed = 2}),
      strided(spec, {5, 2}, {9, 2}, {.seed = 2, .k_token_padding = 64});  // every second row of K
  const auto expected = probe.Run(dense), result = probe.Run(strided);
  if (expected && result) probe.ExpectSame(*expected, *result, "K dense and strided");
}

void LseMayBeATransposedView(Probe& probe) {
  const AttentionSpec spec = probe.Spec(4, 2, 32);
  AttentionBatch dense(spec, {5, 1}, {9, 700}, {.seed = 2}),
      transposed(spec, {5, 1}, {9, 700}, {.seed = 2, .transposed_lse = true});
  const auto expected = probe.Run(dense), result = probe.Run(transposed);
  if (expected && result) probe.ExpectSame(*expected, *result, "LSE dense and transposed");
}

AttentionSpec Descaled(Probe& probe, DType dtype) {
  AttentionSpec spec = probe.Spec(4, 2, 64);
  spec.kv_dtype = dtype;
  spec.has_k_descale = spec.has_v_descale = true;
  return spec;
}

void StridedScalesAreFollowedOrRefused(Probe& probe) {
  for (const DescaleShape shape :
       {DescaleShape::kPerTensor, DescaleShape::kPerHead, DescaleShape::kPerSeqAndHead}) {
    for (const int padding : {0, 5}) {
      probe.ExpectRandomIsRight(Descaled(probe, DType::kF8E4M3), {1, 3, 9}, {20, 7, 9},
                                {.seed = 5, .descale = shape, .descale_padding = padding});
    }
  }
}

void ScalesAreReadAndNotTakenAsOne(Probe& probe) {
  AttentionSpec spec = probe.Small(2, 1, 64);
  spec.has_k_descale = spec.has_v_descale = true;
  AttentionBatch batch(spec, {1, 2}, {4, 4});
  batch.UProbe();
  for (int seq = 0; seq < 2; ++seq) batch.k_descale(seq, 0) = 1.0f, batch.v_descale(seq, 0) = 2.0f;
  if (const auto result = probe.Run(batch)) {
    probe.ExpectRow(*result, spec, 0, 0, 3.0);
    probe.ExpectRow(*result, spec, 1, 1, 2.0);
    probe.ExpectRow(*result, spec, 2, 0, 3.0);
  }
  // A K scale of 2 is a softmax scale of 2.
  AttentionSpec scaled = probe.Spec(2, 1, 64), doubled = scaled;
  scaled.has_k_descale = true;
  doubled.scale *= 2;
  AttentionBatch with(scaled, {1, 2}, {20, 20}, {.seed = 4}), without(doubled, {1, 2}, {20, 20}, {.seed = 4});
  with.k_descale(0, 0) = with.k_descale(1, 0) = 2.0f;
  const auto a = probe.Run(with), b = probe.Run(without);
  if (!a || !b) return;
  for (size_t i = 0; i < a->out.size(); ++i)
    probe.ExpectNear(a->out[i], b->out[i], 1e-5, "a K scale of 2 against a softmax scale of 2");
}

void ScalesSetAfterTheFirstCallReachTheSecond(Probe& probe) {
  AttentionSpec spec = probe.Small(2, 1, 64);
  spec.has_v_descale = true;
  AttentionBatch batch(spec, {1}, {4});
  batch.UProbe();
  for (const float scale : {1.0f, 0.5f, 3.0f}) {
    batch.v_descale(0, 0) = scale;
    if (const auto result = probe.Run(batch)) probe.ExpectRow(*result, spec, 0, 0, 1.5 * scale);
  }
}

void PaddingRowsAreZeroAndMoveNoOther(Probe& probe) {
  probe.ExpectUProbe(probe.Small(), {1, 1, 1, 1, 1, 1, 1, 1}, {5, 9, 40, 0, 0, 0, 0, 0},
                     {2, 4, 19.5, 0, 0, 0, 0, 0});
  const AttentionSpec spec = probe.Spec(4, 2, 64);
  AttentionBatch padded(spec, std::vector<int32_t>(8, 1), {5, 9, 40, 0, 0, 0, 0, 0}, {.seed = 8});
  AttentionBatch plain(spec, {1, 1, 1}, {5, 9, 40}, {.seed = 8});
  const auto eight = probe.Run(padded), three = probe.Run(plain);
  if (!eight || !three) return;
  for (int64_t token = 0; token < 3; ++token)
    probe.ExpectSameRow(spec, *eight, token, *three, token, "rows with and without padding behind them");
}

void EveryHeadOfEveryDraftTokenIsWritten(Probe& probe) {
  probe.ExpectRandomIsRight(probe.Spec(32, 1, 64), {4, 4, 4}, {30, 700, 5});
}

void BlocksLeftBehindByTheWindowAreNotFollowed(Probe& probe) {
  AttentionSpec spec = probe.Windowed(4);
  spec.block_size = 4;
  for (const int32_t stale : {0, -1, std::numeric_limits<int32_t>::max()}) {  // block 0 is full of NaN
    AttentionBatch batch(spec, {1}, {20});
    batch.UProbe();
    for (int i = 0; i < 4; ++i) batch.block_ids(0)[i] = stale;
    if (const auto result = probe.Run(batch)) probe.ExpectRow(*result, spec, 0, 1, 17.5);
  }
}

void StreamingSinksKeepTheirBlocksAndLoseTheMiddle(Probe& probe) {
  AttentionSpec spec = probe.Windowed(4);
  spec.block_size = 4;
  spec.sink_tokens = 2;
  AttentionBatch batch(spec, {1, 2}, {100, 50});
  batch.UProbe();
  for (int i = 1; i < 24; ++i) batch.block_ids(0)[i] = -1;
  for (int i = 1; i < 11; ++i) batch.block_ids(1)[i] = -1;
  const auto result = probe.Run(batch);
  if (!result) return;
  probe.ExpectRow(*result, spec, 0, 0, (0 + 1 + 96 + 97 + 98 + 99) / 6.0);
  probe.ExpectRow(*result, spec, 1, 0, (0 + 1 + 45 + 46 + 47 + 48) / 6.0);
  probe.ExpectRow(*result, spec, 2, 1, (0 + 1 + 46 + 47 + 48 + 49) / 6.0);
}

void TheResultDoesNotDependOnWhatTheOutputHeld(Probe& probe) {
  AttentionBatch batch(probe.Windowed(8), {1, 3, 12, 6}, {40, 20, 12, 30});
  const auto first = probe.Run(batch, {.fill = kNaN});
  if (!first) return;
  for (const float fill : {7.0f, 1e4f, kInfinity}) {
    if (const auto again = probe.Run(batch, {.fill = fill}))
      probe.ExpectSame(*again, *first, fmt::format("outputs filled with {} before", fill));
  }
}

void TheFirstRowsOfAPromptDoNotDependOnItsLength(Probe& probe) {
  if (probe.subject().name() == "reference") return;  // rows of the oracle are independent by design
  const AttentionSpec spec = probe.Spec(1, 1, 32);
  std::vector<double> shortest;
  for (const int32_t n : {512, 2048, 4096}) {
    AttentionBatch batch(spec, {n}, {n}, {.seed = 6});
    const auto result = probe.Run(batch);
    if (!result) return;
    const std::vector<double> first(result->out.begin(), result->out.begin() + 256 * spec.v_head_dim);
    if (shortest.empty()) shortest = first;
    for (size_t i = 0; i < first.size(); ++i)
      probe.ExpectSame(first[i], shortest[i], fmt::format("rows of prompts of 512 and {}", n));
  }
}

constexpr BugCase kLayoutCases[] = {
    {"A19", "vllm#936", "TheTailOfTheLastPageIsNotRead", "", TheTailOfTheLastPageIsNotRead},
    {"A23", "flashinfer#4347", "TheNeedleIsFoundAtEveryPageSize", "", TheNeedleIsFoundAtEveryPageSize},
    {"A24", "vllm#57614", "AlibiAndPage32AreComputedOrRefused", "", AlibiAndPage32AreComputedOrRefused},
    {"A26", "llama.cpp#19115", "QueryHeadsReadTheirOwnKvHead", "", QueryHeadsReadTheirOwnKvHead},
    {"A27", "llama.cpp#7903", "EverySequenceOfADecodeBatchEqualsItselfAlone", "",
     EverySequenceOfADecodeBatchEqualsItselfAlone},
    {"A28", "llama.cpp#24912", "OffsetsPastTwoToTheThirtyOneAreRight", "",
     OffsetsPastTwoToTheThirtyOneAreRight},
    {"A29", "SageAttention#386", "RowsPastTwoToTheThirtyOneElementsAreRight", "",
     RowsPastTwoToTheThirtyOneElementsAreRight},
    {"A30", "aiter#3498", "KAndVInterleavedPerBlock", "", KAndVInterleavedPerBlock},
    {"A31", "flash-attention#2886", "TheSecondCallWithOtherStridesIsRight", "",
     TheSecondCallWithOtherStridesIsRight},
    {"A32", "FlagAttention#45", "KStridedWhileVIsDense", "", KStridedWhileVIsDense},
    {"A33", "vllm#21996", "LseMayBeATransposedView", "", LseMayBeATransposedView},
    {"A34", "flashinfer#4044", "StridedScalesAreFollowedOrRefused", "", StridedScalesAreFollowedOrRefused},
    {"A35", "sglang#20705", "ScalesAreReadAndNotTakenAsOne", "", ScalesAreReadAndNotTakenAsOne},
    {"A36", "vllm#27232", "ScalesSetAfterTheFirstCallReachTheSecond",
     "scales computed after a graph was captured; there is no graph here, so the scales change between two "
     "calls on the same tensors",
     ScalesSetAfterTheFirstCallReachTheSecond},
    {"A37", "vllm#38436", "PaddingRowsAreZeroAndMoveNoOther", "", PaddingRowsAreZeroAndMoveNoOther},
    {"A39", "aiter#3910", "EveryHeadOfEveryDraftTokenIsWritten", "", EveryHeadOfEveryDraftTokenIsWritten},
    {"A41", "vllm#42273", "BlocksLeftBehindByTheWindowAreNotFollowed", "",
     BlocksLeftBehindByTheWindowAreNotFollowed},
    {"A41", "sibling", "StreamingSinksKeepTheirBlocksAndLoseTheMiddle", "",
     StreamingSinksKeepTheirBlocksAndLoseTheMiddle},
    {"A53", "vllm-ascend#6558", "TheResultDoesNotDependOnWhatTheOutputHeld", "",
     TheResultDoesNotDependOnWhatTheOutputHeld},
    {"A54", "aiter#5515", "TheFirstRowsOfAPromptDoNotDependOnItsLength", "",
     TheFirstRowsOfAPromptDoNotDependOnItsLength},
};

}  // namespace

std::span<const BugCase> LayoutBugCases() { return kLayoutCases; }

}  // namespace attest::conform
