// Edges of the attention library that mutants (tests/mutants) showed to be untested: rows of several tiles
// that are split, scales of split rows, stored values at the ends of their formats, sizes of scratch, tensors
// that fit by luck.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "attention/attention.h"
#include "kernels/cpu/append_kv.h"
#include "kernels/merge_states.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

// Random data through every kernel that accepts the spec in some phase, against the oracle.
void ExpectEveryKernelIsRight(const AttentionSpec& spec, const std::vector<int32_t>& q,
                              const std::vector<int32_t>& kv) {
  AttentionBatch batch(spec, q, kv, {.seed = 21});
  const AttentionResult oracle = RunOracle(batch);
  for (const KernelEntry* entry : RunnableKernels()) {
    const std::string forced = ForcedWherePossible(*entry, spec);
    if (forced.empty() || entry->contract.name == "reference") continue;
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result) << result.error().message;
    ExpectRan(*result, *entry, spec);
    EXPECT_TRUE(Within(*result, oracle, BudgetOf(batch, oracle, entry->contract.arithmetic), spec.v_head_dim,
                       spec.q_heads))
        << entry->contract.name;
  }
}

AttentionPlanPtr PlanOf(AttentionBatch& batch, const std::string& forced, int num_threads) {
  const auto router = AttentionRouter::Create(ThisCpu(), forced).value();
  return PlanAttention(router, batch.spec(), batch.lengths(), num_threads).value();
}

TEST(Edges, ALongExtendOfSeveralTilesIsMergedRowByRow) {
  const AttentionSpec spec = MakeSpec(4, 1, 32);
  const std::vector<int32_t> q{60}, kv{2300};
  AttentionBatch batch(spec, q, kv);
  const AttentionPlanPtr plan = PlanOf(batch, "attention_general", 2);
  EXPECT_TRUE(std::ranges::any_of(plan->merges(), [](const PlanMerge& m) { return m.cut.row_begin > 0; }))
      << "the case must have a second tile of rows that is split";
  ExpectEveryKernelIsRight(spec, q, kv);
}

TEST(Edges, DescalesReachEverySplit) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  spec.kv_dtype = DType::kF8E4M3;
  spec.has_k_descale = spec.has_v_descale = true;
  const std::vector<int32_t> q{1, 3}, kv{700, 600};
  AttentionBatch batch(spec, q, kv);
  EXPECT_FALSE(PlanOf(batch, "attention_general", 2)->merges().empty()) << "the case must have splits";
  ExpectEveryKernelIsRight(spec, q, kv);
}

TEST(Edges, ANegativeScaleKeepsItsSign) {
  AttentionSpec spec = MakeSpec(6, 2, 64);
  spec.scale = -0.25f;
  ExpectEveryKernelIsRight(spec, {1, 5, 20, 9}, {40, 30, 20, 70});
  spec.softcap = 2.0f;
  ExpectEveryKernelIsRight(spec, {1, 5, 20, 9}, {40, 30, 20, 70});
}

// One visible key has weight 1, so the output is its V row: each of the 256 or 65,536 stored values.
TEST(Edges, EveryStoredValueIsReadExactly) {
  constexpr int kDim = 256;
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    AttentionSpec spec = MakeSpec(1, 1, kDim);
    spec.kv_dtype = type;
    const int seqs = BlockBytes(type) == 2 ? 256 : 1;
    AttentionBatch batch(spec, std::vector<int32_t>(static_cast<size_t>(seqs), 1),
                         std::vector<int32_t>(static_cast<size_t>(seqs), 1));
    batch.FillK([](int, int, int, int) { return 0.0f; });
    for (int seq = 0; seq < seqs; ++seq) {
      for (int d = 0; d < kDim; ++d) {
        const int64_t at = batch.KeyIndex(true, seq, 0, 0) + d;
        const auto bits = static_cast<uint16_t>(seq * kDim + d);  // little endian: the low byte comes first
        std::memcpy(static_cast<std::byte*>(batch.KeyData(true)) + at * BlockBytes(type), &bits,
                    static_cast<size_t>(BlockBytes(type)));
      }
    }
    for (const KernelEntry* entry : RunnableKernels()) {
      const std::string forced = ForcedWherePossible(*entry, spec);
      if (forced.empty() || entry->contract.arithmetic != AttentionArithmetic::kF32) continue;
      const auto result = RunAttention(batch, forced);
      ASSERT_TRUE(result) << result.error().message;
      for (int i = 0; i < seqs * kDim; ++i) {
        const double expected =
            ReferenceElement(batch.KeyData(true), type, batch.KeyIndex(true, i / kDim, 0, 0) + i % kDim);
        const double got = result->out[static_cast<size_t>(i)];
        if (std::isfinite(expected)) {
          ASSERT_EQ(got, expected) << entry->contract.name << " " << DTypeName(type) << " bits " << i;
        } else {
          ASSERT_FALSE(std::isfinite(got)) << entry->contract.name << " " << DTypeName(type) << " bits " << i;
        }
      }
    }
  }
}

TEST(Edges, AVeryNegativeScoreIsStillTheMaximumAtAHeadSizeOfEveryKernel) {
  AttentionSpec spec = MakeSpec(2, 1, 64);
  spec.scale = 1.0f;
  AttentionBatch batch(spec, {1, 3, 1}, {1, 2, 300});
  batch.FillQ([](int, int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  batch.FillK([](int, int, int, int d) { return d == 0 ? -65536.0f : 0.0f; });
  batch.FillV([](int, int key, int, int) { return static_cast<float>(key % 2 + 3); });
  for (const KernelEntry* entry : RunnableKernels()) {
    const auto result = RunAttention(batch, ForcedWherePossible(*entry, spec));
    ASSERT_TRUE(result) << result.error().message;
    ExpectRan(*result, *entry, spec);
    const double expected[] = {3.0, 0.0, 3.0, 3.5, 3.5};
    for (size_t token = 0; token < 5; ++token) {
      EXPECT_NEAR(result->out[token * 128 + 70], expected[token], 2e-5)
          << entry->contract.name << " token " << token;
    }
  }
}

// Whole tiles of keys that are visible and score -inf, before and after one that counts.
TEST(Edges, KeysOfScoreMinusInfinityWeighNothing) {
  AttentionSpec spec = MakeSpec(2, 1, 64);
  for (const int counts : {5, 200, 290}) {
    AttentionBatch batch(spec, {1, 3}, {300, 300});
    batch.FillQ([](int, int, int, int d) { return d == 3 ? 1.0f : 0.0f; });
    batch.FillK([&](int, int key, int, int d) { return d == 3 && key != counts ? -kInfinity : 0.0f; });
    batch.FillV([](int, int key, int, int) { return static_cast<float>(key % 128); });
    for (const KernelEntry* entry : RunnableKernels()) {
      const auto result = RunAttention(batch, ForcedWherePossible(*entry, spec));
      ASSERT_TRUE(result) << result.error().message;
      for (size_t token = 0; token < 4; ++token) {
        EXPECT_EQ(result->out[token * 128 + 70], counts % 128) << entry->contract.name << " token " << token;
      }
    }
  }
}

// 130 to 420 below the maximum in log2 units, where the exponent of a weight leaves its eight bits.
TEST(Edges, KeysFarBelowTheMaximumWeighNothing) {
  AttentionSpec spec = MakeSpec(2, 1, 64);
  spec.scale = 1.0f;
  for (const bool wants_lse : {false, true}) {
    spec.wants_lse = wants_lse;
    AttentionBatch batch(spec, {1, 3, 60}, {200, 200, 200});
    batch.FillQ([](int, int, int, int d) { return d == 3 ? 1.0f : 0.0f; });
    batch.FillK([&](int, int key, int, int d) { return d == 3 && key > 0 ? -90.0f - key : 0.0f; });
    batch.FillV([](int, int key, int, int) { return key == 0 ? 1.0f : 100.0f; });
    for (const KernelEntry* entry : RunnableKernels()) {
      const auto result = RunAttention(batch, ForcedWherePossible(*entry, spec));
      ASSERT_TRUE(result) << result.error().message;
      for (size_t row = 0; row < 128; ++row) {
        ASSERT_EQ(result->out[row * 64 + 9], 1.0) << entry->contract.name << " row " << row;
      }
    }
  }
}

// The window's left edge, far from the causal one: keys that the first rows of a tile see and its last do
// not.
TEST(Edges, ANanLeftOfTheWindowReachesTheRowsThatStillSeeItAndNoOther) {
  constexpr int kKey = 195, kLeft = 99, kKvLen = 300;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    AttentionSpec spec = MakeSpec(2, 1, 64);
    spec.kv_dtype = dtype;
    spec.window_left = kLeft;
    for (const KernelEntry* entry : RunnableKernels()) {
      for (const bool in_values : {false, true}) {
        AttentionBatch batch(spec, {8, 40}, {kKvLen, kKvLen}, {.seed = 5});
        for (int seq = 0; seq < 2; ++seq) {
          EncodeElement(batch.KeyData(in_values), dtype, batch.KeyIndex(in_values, seq, kKey, 0) + 9, kNaN);
        }
        const auto result = RunAttention(batch, ForcedWherePossible(*entry, spec));
        ASSERT_TRUE(result) << result.error().message;
        for (int token = 0; token < batch.num_tokens(); ++token) {
          const int seq = token < 8 ? 0 : 1;
          const int p = token - batch.q_begin().begin(seq) + kKvLen - batch.q_begin().length(seq);
          EXPECT_EQ(std::isnan(result->out[static_cast<size_t>(token) * 128 + 9]), p - kLeft <= kKey)
              << entry->contract.name << " " << DTypeName(dtype) << " in_values " << in_values << " position "
              << p;
        }
      }
    }
  }
}

TEST(Edges, OutputsAreRoundedToTheNearest) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    AttentionSpec spec = MakeSpec(1, 1, 64);
    spec.kv_dtype = DType::kF32;
    spec.out_dtype = type;
    AttentionBatch batch(spec, {1}, {1});
    const auto value = [](int d) {
      return (d % 2 == 0 ? 1.0f : -1.0f) * (1.0f + static_cast<float>(d) / 8192);
    };
    batch.FillV([&](int, int, int, int d) { return value(d); });
    for (const KernelEntry* entry : RunnableKernels()) {
      const std::string forced = ForcedWherePossible(*entry, spec);
      if (forced.empty()) continue;
      const auto result = RunAttention(batch, forced);
      ASSERT_TRUE(result) << result.error().message;
      for (int d = 0; d < 64; ++d) {
        const float nearest = type == DType::kBF16 ? ToFloat(ToBf16(value(d))) : ToFloat(ToF16(value(d)));
        EXPECT_EQ(result->out[static_cast<size_t>(d)], nearest) << entry->contract.name << " of " << value(d);
      }
    }
  }
}

TEST(Edges, ABrokenLseShowsBesideAnEmptyState) {
  for (const float empty : {kInfinity, -kInfinity}) {
    const float outs[] = {1.0f, 5.0f}, lses[] = {kNaN, empty};
    float out = 0;
    const float lse = MergeStateRow({.out = outs, .out_stride = 1, .lse = lses, .lse_stride = 1, .n = 2},
                                    std::nullopt, 1, &out);
    EXPECT_TRUE(std::isnan(lse));
    EXPECT_TRUE(std::isnan(out));
  }
}

TEST(Edges, TheLengthsOfAGroupAreItsOwn) {
  AttentionBatch batch(MakeSpec(2, 1, 16), {4, 1, 30, 4, 1, 20}, {9, 5, 30, 40, 300, 20});
  const AttentionPlanPtr plan = PlanOf(batch, "attention_general", 1);
  EXPECT_EQ(plan->groups().size(), 3u);
  for (const PlanGroup& group : plan->groups()) {
    const auto q_len = [&](int32_t seq) { return batch.q_begin().length(seq); };
    const auto kv_len = [&](int32_t seq) { return batch.kv_len()[static_cast<size_t>(seq)]; };
    const AttentionProblem& problem = group.problem;
    EXPECT_EQ(problem.min_q_len, q_len(*std::ranges::min_element(group.seqs, {}, q_len)));
    EXPECT_EQ(problem.max_q_len, q_len(*std::ranges::max_element(group.seqs, {}, q_len)));
    EXPECT_EQ(problem.min_kv_len, kv_len(*std::ranges::min_element(group.seqs, {}, kv_len)));
    EXPECT_EQ(problem.max_kv_len, kv_len(*std::ranges::max_element(group.seqs, {}, kv_len)));
    EXPECT_EQ(problem.num_seqs, 2);
  }
}

TEST(Edges, TheChosenKernelAccepts) {
  CpuFeatures cpu = ThisCpu();
  for (const bool plain : {false, true}) {
    if (plain) cpu = {};
    for (const AttentionCase& test_case : AttentionCases()) {
      for (const AttentionPhase phase : kAttentionPhases) {
        const AttentionProblem problem{.spec = test_case.spec, .phase = phase};
        const auto route = Choose(problem, cpu);
        ASSERT_TRUE(route) << test_case.name;
        EXPECT_TRUE(Check(route->entry().contract, problem, cpu).empty())
            << route->name() << " was chosen for " << test_case.name;
      }
    }
  }
}

TEST(Edges, ScratchHoldsEveryThreadAndEveryPartialState) {
  const AttentionSpec spec = MakeSpec(6, 2, 64);
  // The kernels of a plan need different amounts, and neither the first group nor the last needs the most
  // in both.
  for (const std::string forced : {"", "attention_general", "decode=reference,uniform_decode=reference",
                                   "prefill=reference,extend=reference"}) {
    for (const auto& [q, kv] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{{1, 30}, {900, 30}},
                                {{30, 1, 4}, {30, 2000, 700}},
                                {{40, 40}, {3000, 40}}}) {
      for (const int threads : {1, 2, 5}) {
        AttentionBatch batch(spec, q, kv);
        const AttentionPlanPtr plan = PlanOf(batch, forced, threads);
        int64_t largest = 0, end = 0, rows = 0;
        for (const PlanGroup& group : plan->groups()) {
          largest = std::max(largest, group.route.entry().kernel->thread_scratch_bytes(ShapeOf(spec)));
        }
        std::vector<std::pair<int64_t, int64_t>> partials;
        for (const PlanItem& item : plan->items()) {
          const AttentionWorkItem& work = item.cut.work;
          if (work.num_splits == 1) continue;
          const int64_t count = (work.row_end - work.row_begin) * (spec.q_heads / spec.kv_heads);
          partials.emplace_back(work.partial_row, work.partial_row + count);
          end = std::max(end, work.partial_row + count);
          rows += count;
        }
        std::ranges::sort(partials);
        for (size_t i = 1; i < partials.size(); ++i) EXPECT_LE(partials[i - 1].second, partials[i].first);
        EXPECT_EQ(end, rows) << "partial states leave gaps";
        EXPECT_GE(plan->scratch_bytes(), largest * threads + rows * (spec.v_head_dim + 1) * 4)
            << forced << ", " << threads << " threads, " << rows << " partial rows";
      }
    }
  }
}

TEST(Edges, TheFirstBlockPastThePoolIsRefused) {
  AttentionBatch batch(MakeSpec(4, 2, 32), {3, 1}, {3, 40});
  const AttentionPlanPtr plan = PlanOf(batch, "", 1);
  int32_t highest = batch.block_ids(0)[0];
  for (int i = 0; i < 3; ++i) highest = std::max(highest, batch.block_ids(1)[i]);
  const auto output = batch.MakeOutput(0);
  AttentionParams params = batch.Tensors(output);
  PagedKv kv = batch.paged();
  params.paged = &kv;
  kv.num_blocks = highest + 1;
  EXPECT_TRUE(ValidateParams(*plan, params));
  kv.num_blocks = highest;
  const Status status = ValidateParams(*plan, params);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().field, "block_tables");
}

TEST(Edges, ATableEntryPastThePoolIsRefusedByThePlan) {
  AttentionBatch batch(MakeSpec(4, 2, 32), {3, 1}, {3, 40});
  int32_t highest = batch.block_ids(0)[0];
  for (int i = 0; i < 3; ++i) highest = std::max(highest, batch.block_ids(1)[i]);
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  AttentionLengths lengths = batch.lengths();
  lengths.block_tables.num_blocks = highest + 1;
  EXPECT_TRUE(PlanAttention(router, batch.spec(), lengths, 1));
  lengths.block_tables.num_blocks = highest;
  const auto plan = PlanAttention(router, batch.spec(), lengths, 1);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().field, "block_tables");
}

TEST(Edges, AppendedFp8ValuesSaturate) {
  std::vector<uint8_t> pages(2 * 2 * 8);
  for (const auto& [dtype, largest] : {std::pair{DType::kF8E4M3, 448.0}, {DType::kF8E5M2, 57344.0}}) {
    const PagedKv kv{.k = {pages.data(), 16, 8, 8},
                     .v = {pages.data() + 16, 16, 8, 8},
                     .dtype = dtype,
                     .num_blocks = 1,
                     .block_size = 1,
                     .kv_heads = 2,
                     .head_dim = 8,
                     .v_head_dim = 8};
    std::vector<float> k(16, 1e6f), v(16, -1e6f);
    const std::vector<int64_t> slots{0};
    AppendKvRows(View<const float, 3>::Dense(k.data(), {1, 2, 8}),
                 View<const float, 3>::Dense(v.data(), {1, 2, 8}), slots, kv, 0, 1);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(ReferenceElement(pages.data(), dtype, i), largest);
      EXPECT_EQ(ReferenceElement(pages.data(), dtype, 16 + i), -largest);
    }
  }
}

TEST(Edges, AppendedKAndVAreDividedByScalesOfTheirOwn) {
  std::vector<float> pages(2 * 8), k(8, 24.0f), v(8, 30.0f);
  const PagedKv kv{.k = {pages.data(), 8, 8, 8},
                   .v = {pages.data() + 8, 8, 8, 8},
                   .dtype = DType::kF32,
                   .num_blocks = 1,
                   .block_size = 1,
                   .kv_heads = 1,
                   .head_dim = 8,
                   .v_head_dim = 8};
  const std::vector<int64_t> slots{0};
  const float k_scale = 4.0f, v_scale = 3.0f;
  const auto rows = [](const std::vector<float>& from) {
    return View<const std::byte, 3>{
        .data = reinterpret_cast<const std::byte*>(from.data()), .shape = {1, 1, 8}, .stride = {8, 8, 1}};
  };
  EXPECT_EQ(AppendKvRows({.k = rows(k),
                          .v = rows(v),
                          .dtype = DType::kF32,
                          .slots = slots,
                          .k_scale = {&k_scale, 0, 0},
                          .v_scale = {&v_scale, 0, 0},
                          .seqs = {}},
                         kv, 0, 1),
            0);
  for (size_t d = 0; d < 8; ++d) {
    EXPECT_EQ(pages[d], 6.0f);
    EXPECT_EQ(pages[8 + d], 10.0f);
  }
}

TEST(Edges, OffsetsOfContiguousKeysMustFit) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  spec.layout = KvLayout::kContiguous;
  AttentionBatch batch(spec, {3, 1}, {3, 40});
  const AttentionPlanPtr plan = PlanOf(batch, "", 1);
  const auto output = batch.MakeOutput(0);
  const auto message = [&](const std::vector<int32_t>& offsets, size_t entries) {
    AttentionParams params = batch.Tensors(output);
    ContiguousKv kv = *params.contiguous;
    kv.k_begin = std::span(offsets).first(entries);
    params.contiguous = &kv;
    const Status status = ValidateParams(*plan, params);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message({0, 3, 43}, 3), "");
  // One entry short, and the entry behind the array would be right: the next reader is not so lucky.
  EXPECT_EQ(message({0, 3, 43}, 2), "attention k_begin has 2 entries, expected 3");
  EXPECT_EQ(message({1, 4, 44}, 3), "attention k_begin starts at 1, expected 0");
  EXPECT_EQ(message({0, 3, 42}, 3), "attention k_begin gives sequence 1 39 keys, kv_len says 40");
}

TEST(Edges, AModelIsRefusedWhenTheForcedKernelCannotServeIt) {
#if defined(__x86_64__)
  CpuFeatures cpu;
  cpu.avx2 = true;
  for (const auto& [forced, head_dim] :
       {std::pair{"attention_decode_avx2", 64}, {"extend=attention_prefill_avx2", 36}}) {
    const auto router = AttentionRouter::Create(cpu, forced).value();
    const Status status = router.CheckSpec(MakeSpec(8, 2, head_dim));
    ASSERT_FALSE(status) << forced;
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(status.error().message.find("was forced but refuses"), std::string::npos);
  }
  EXPECT_TRUE(AttentionRouter::Create(cpu, "extend=attention_prefill_avx2")->CheckSpec(MakeSpec(8, 2, 64)));
#else
  GTEST_SKIP() << "every kernel of this build takes every spec";
#endif
}

TEST(Edges, EveryFeatureThatAKernelLacksIsAReason) {
  constexpr Lacks kAll{.softcap = true,
                       .alibi = true,
                       .sinks = true,
                       .sink_tokens = true,
                       .window_left = true,
                       .window_right = true,
                       .chunk = true,
                       .descale = true,
                       .lse = true,
                       .non_causal = true};
  AttentionSpec plain = MakeSpec(4, 2, 64);
  plain.wants_lse = false;
  const auto fields = [&](auto change, const Lacks& lacks) {
    AttentionSpec spec = plain;
    change(spec);
    std::vector<Reason> reasons;
    RequireWithout(reasons, spec, lacks);
    std::string text;
    for (const Reason& reason : reasons) text += (text.empty() ? "" : " ") + reason.field;
    return text;
  };
  const std::pair<const char*, void (*)(AttentionSpec&)> features[] = {
      {"softcap", [](AttentionSpec& s) { s.softcap = 30.0f; }},
      {"alibi", [](AttentionSpec& s) { s.has_alibi = true; }},
      {"sinks", [](AttentionSpec& s) { s.has_sinks = true; }},
      {"sink_tokens", [](AttentionSpec& s) { s.sink_tokens = 4; }},
      {"window_left", [](AttentionSpec& s) { s.window_left = 0; }},
      {"", [](AttentionSpec& s) { s.window_right = 0; }},  // causal: a right limit hides nothing more
      {"window_right causal", [](AttentionSpec& s) { s.causal = false, s.window_right = 0; }},
      {"chunk", [](AttentionSpec& s) { s.chunk = 8; }},
      {"k_descale", [](AttentionSpec& s) { s.has_k_descale = true; }},
      {"v_descale", [](AttentionSpec& s) { s.has_v_descale = true; }},
      {"wants_lse", [](AttentionSpec& s) { s.wants_lse = true; }},
      {"causal", [](AttentionSpec& s) { s.causal = false; }},
      {"", [](AttentionSpec&) {}},
  };
  for (const auto& [field, change] : features) {
    EXPECT_EQ(fields(change, kAll), field);
    EXPECT_EQ(fields(change, {}), "") << field;
  }
}

TEST(Edges, AppendedRowsLieWhereTheyBelongPastTwoToTheThirtyOneElements) {
  // Blocks 2^28 elements apart: block 9 starts at element 2.4e9. Only the touched pages become resident.
  constexpr int64_t kBlockStride = int64_t{1} << 28;
  constexpr int64_t kBytes = 10 * kBlockStride * 2;
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "the system refuses " << kBytes << " bytes of address space";
  auto* pages = static_cast<bf16*>(memory);
  const PagedKv kv{.k = {pages, kBlockStride, kBlockStride / 4, 8},
                   .v = {pages + kBlockStride / 2, kBlockStride, kBlockStride / 4, 8},
                   .dtype = DType::kBF16,
                   .num_blocks = 10,
                   .block_size = 16,
                   .kv_heads = 2,
                   .head_dim = 8,
                   .v_head_dim = 8};
  std::vector<float> k(16, 3.0f), v(16, 5.0f);
  const std::vector<int64_t> slots{9 * 16 + 5};
  AppendKvRows(View<const float, 3>::Dense(k.data(), {1, 2, 8}),
               View<const float, 3>::Dense(v.data(), {1, 2, 8}), slots, kv, 0, 1);
  for (int head = 0; head < 2; ++head) {
    const int64_t at = 9 * kBlockStride + head * (kBlockStride / 4) + 5 * 8;
    EXPECT_EQ(ToFloat(pages[at]), 3.0f);
    EXPECT_EQ(ToFloat(pages[at + kBlockStride / 2 + 7]), 5.0f);
  }
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace attest::testing
