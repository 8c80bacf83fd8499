#include "attention/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

using ::testing::HasSubstr;

const AttentionKernel& Kernel(const char* name) { return *FindKernel(name)->kernel; }

// Each (row, KV head, key that the row sees) is covered by exactly one item.
void ExpectExactCover(const AttentionSpec& spec, int32_t q_len, int32_t kv_len, const Cut& cut) {
  const AttentionMask mask = MaskOf(spec);
  std::map<std::tuple<int, int, int>, int> covered;
  for (const CutItem& item : cut.items) {
    const AttentionWorkItem& work = item.work;
    ASSERT_LT(work.row_begin, work.row_end);
    ASSERT_LE(work.kv_begin, work.kv_end);
    ASSERT_GE(work.kv_begin, 0);
    ASSERT_LE(work.kv_end, kv_len);
    ASSERT_GT(item.cost, 0);
    for (int row = work.row_begin; row < work.row_end; ++row) {
      for (int key = work.kv_begin; key < work.kv_end; ++key) ++covered[{work.kv_head, row, key}];
    }
  }
  for (int head = 0; head < spec.kv_heads; ++head) {
    for (int row = 0; row < q_len; ++row) {
      const VisibleKeys seen = VisibleKeysOf(mask, row + kv_len - q_len, kv_len);
      for (int key = 0; key < kv_len; ++key) {
        const bool visible =
            (key >= seen.begin && key < seen.end) || (key >= seen.sink_begin && key < seen.sink_end);
        if (!visible) continue;
        ASSERT_EQ((covered[{head, row, key}]), 1) << "row " << row << " key " << key;
      }
    }
  }
  // Every row belongs to exactly one tile of each head, and its splits are all there.
  std::map<std::pair<int, int>, int> splits;
  for (const CutItem& item : cut.items) {
    for (int row = item.work.row_begin; row < item.work.row_end; ++row) ++splits[{item.work.kv_head, row}];
  }
  for (const CutItem& item : cut.items) {
    for (int row = item.work.row_begin; row < item.work.row_end; ++row) {
      ASSERT_EQ((splits[{item.work.kv_head, row}]), item.work.num_splits);
    }
  }
  ASSERT_EQ(splits.size(), static_cast<size_t>(q_len) * static_cast<size_t>(spec.kv_heads));
}

TEST(WorkItems, CoverEveryVisibleKeyOfEveryRowOnce) {
  std::mt19937 random(5);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 120; ++i) {
    AttentionSpec spec = MakeSpec(4, draw(0, 1) + 1, 16);
    if (draw(0, 2) == 0) spec.window_left = draw(0, 300);
    if (draw(0, 3) == 0) spec.chunk = draw(1, 100);
    if (draw(0, 3) == 0) spec.sink_tokens = draw(1, 20);
    if (draw(0, 3) == 0) spec.causal = false;
    const int32_t q_len = draw(0, 1) == 0 ? draw(1, 4) : draw(1, 150);
    const int32_t kv_len = draw(0, 9) == 0 ? draw(0, q_len) : q_len + draw(0, 900);
    Cut cut;
    CutSequence(spec, Kernel(i % 2 == 0 ? "attention_general" : "reference"), 0, q_len, kv_len, cut);
    ExpectExactCover(spec, q_len, kv_len, cut);
    if (HasFatalFailure()) FAIL() << "q_len " << q_len << " kv_len " << kv_len << " case " << i;
  }
}

// Found by fuzzing: the end of a split was computed in 32 bits.
TEST(WorkItems, CoverKeysUpToTwoToTheThirtyOne) {
  constexpr int32_t kKeys = std::numeric_limits<int32_t>::max();
  Cut cut;
  CutSequence(MakeSpec(2, 1, 64), Kernel("attention_general"), 0, 1, kKeys, cut);
  int32_t covered = 0;
  for (const CutItem& item : cut.items) {
    EXPECT_EQ(item.work.kv_begin, covered);
    EXPECT_LT(item.work.kv_begin, item.work.kv_end);
    covered = item.work.kv_end;
  }
  EXPECT_EQ(covered, kKeys);
}

TEST(WorkItems, SplitALongDecodeAndLeaveAShortOneWhole) {
  const AttentionSpec spec = MakeSpec(9, 3, 64);
  Cut short_cut, long_cut;
  CutSequence(spec, Kernel("attention_general"), 0, 1, 200, short_cut);
  EXPECT_EQ(short_cut.items.size(), 3u);
  EXPECT_TRUE(short_cut.merges.empty());
  CutSequence(spec, Kernel("attention_general"), 0, 1, 4096, long_cut);
  EXPECT_EQ(long_cut.merges.size(), 3u);
  EXPECT_GE(long_cut.items.size(), 48u);
  for (const CutItem& item : long_cut.items) {
    if (item.work.kv_end == 4096) continue;  // the last split takes what is left
    EXPECT_GE(item.work.kv_end - item.work.kv_begin, kMinSplitTokens);
    EXPECT_EQ(item.work.kv_begin % kSplitGranule, 0);
  }
  EXPECT_EQ(long_cut.partial_rows, static_cast<int64_t>(long_cut.items.size()) * 3);
}

TEST(WorkItems, TheReferenceIsNeverSplit) {
  Cut cut;
  CutSequence(MakeSpec(9, 3, 64), Kernel("reference"), 0, 1, 100000, cut);
  EXPECT_EQ(cut.items.size(), 3u);
  EXPECT_TRUE(cut.merges.empty());
}

TEST(WorkItems, ReadNothingLeftOfTheWindow) {
  AttentionSpec spec = MakeSpec(2, 1, 64);
  spec.window_left = 99;
  Cut cut;
  CutSequence(spec, Kernel("attention_general"), 0, 1, 5000, cut);
  ASSERT_EQ(cut.items.size(), 1u);
  EXPECT_EQ(cut.items[0].work.kv_begin, 4900);
  EXPECT_EQ(cut.items[0].work.kv_end, 5000);
}

// Longest first on any number of threads: the busiest thread has at most a tenth more than its share, for the
// loads a server sees.
TEST(Plan, GivesEveryThreadAboutTheSameWork) {
  const AttentionSpec spec = MakeSpec(9, 3, 64);
  const struct {
    std::vector<int32_t> q, kv;
  } loads[] = {{{1}, {3000}},
               {{1, 1, 1, 1}, {100, 2000, 900, 50}},
               {{512}, {512}},
               {{1, 1, 1, 256}, {700, 300, 1200, 1000}},
               {std::vector<int32_t>(64, 1), std::vector<int32_t>(64, 300)}};
  for (const auto& load : loads) {
    AttentionBatch batch(spec, load.q, load.kv);
    const auto router = AttentionRouter::Create(ThisCpu(), "attention_general").value();
    for (const int threads : {2, 4, 8}) {
      const auto plan = PlanAttention(router, spec, batch.lengths(), threads);
      ASSERT_TRUE(plan);
      std::vector<int64_t> busy(static_cast<size_t>(threads));
      int64_t total = 0, previous = std::numeric_limits<int64_t>::max();
      for (const PlanItem& item : (*plan)->items()) {
        EXPECT_LE(item.cut.cost, previous);
        previous = item.cut.cost;
        *std::ranges::min_element(busy) +=
            item.cut.cost;  // the thread that is free first takes the next item
        total += item.cut.cost;
      }
      EXPECT_LE(static_cast<double>(*std::ranges::max_element(busy)),
                1.1 * static_cast<double>(total) / threads)
          << threads << " threads, " << (*plan)->items().size() << " items";
    }
  }
}

TEST(Plan, ClassifiesEachRowByItsLengthsInAnyOrder) {
  const AttentionSpec spec = MakeSpec(2, 1, 16);
  AttentionBatch batch(spec, {7, 1, 5, 1, 4, 4, 2, 0, 12}, {7, 1, 40, 9, 4, 20, 30, 6, 30});
  const auto router = AttentionRouter::Create(ThisCpu(), "attention_general").value();
  const auto plan = PlanAttention(router, spec, batch.lengths(), 2);
  ASSERT_TRUE(plan);
  std::map<int32_t, std::pair<AttentionPhase, int32_t>> phase_of;  // seq -> phase, q_len class
  for (const PlanGroup& group : (*plan)->groups()) {
    EXPECT_TRUE(group.problem.phase != AttentionPhase::kUniformDecode || group.problem.uniform_q_len());
    for (const int32_t seq : group.seqs) {
      EXPECT_TRUE(phase_of.emplace(seq, std::pair{group.problem.phase, group.problem.max_q_len}).second)
          << "sequence " << seq << " is in two groups";
    }
  }
  EXPECT_EQ(phase_of.size(), 8u);
  EXPECT_FALSE(phase_of.contains(7)) << "a sequence without rows belongs to no group";
  EXPECT_EQ(phase_of[0].first, AttentionPhase::kPrefill);
  EXPECT_EQ(phase_of[1].first, AttentionPhase::kDecode) << "a one-token prompt is a decode";
  EXPECT_EQ(phase_of[2], (std::pair{AttentionPhase::kUniformDecode, 5}));
  EXPECT_EQ(phase_of[3].first, AttentionPhase::kDecode);
  EXPECT_EQ(phase_of[4].first, AttentionPhase::kPrefill);
  EXPECT_EQ(phase_of[5], (std::pair{AttentionPhase::kUniformDecode, 4}));
  EXPECT_EQ(phase_of[6], (std::pair{AttentionPhase::kUniformDecode, 2}));
  EXPECT_EQ(phase_of[8].first, AttentionPhase::kExtend);
}

// The kernel and the items of a sequence are the same alone and in any company, on any number of threads.
TEST(Plan, ASequencesRouteAndItemsDependOnItsOwnLengthsAlone) {
  const AttentionSpec spec = MakeSpec(6, 2, 64);
  const std::vector<int32_t> q{1, 4, 30, 100, 1, 4}, kv{1000, 700, 30, 2000, 1, 40};
  AttentionBatch all(spec, q, kv);
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto together = PlanAttention(router, spec, all.lengths(), 16);
  ASSERT_TRUE(together);
  using Items = std::multiset<std::tuple<std::string_view, int, int, int, int, int, int>>;
  const auto items_of = [](const AttentionPlan& plan, int32_t seq) {
    Items items;
    for (const PlanItem& item : plan.items()) {
      const AttentionWorkItem& work = item.cut.work;
      if (work.seq != seq) continue;
      items.insert({plan.groups()[static_cast<size_t>(item.group)].route.name(), work.kv_head, work.row_begin,
                    work.row_end, work.kv_begin, work.kv_end, work.num_splits});
    }
    return items;
  };
  for (size_t i = 0; i < q.size(); ++i) {
    AttentionBatch alone(spec, {q[i]}, {kv[i]});
    const auto plan = PlanAttention(router, spec, alone.lengths(), 1);
    ASSERT_TRUE(plan);
    EXPECT_EQ(items_of(**plan, 0), items_of(**together, static_cast<int32_t>(i))) << "sequence " << i;
  }
}

TEST(Plan, NamesTheSequenceWhoseLengthsOrTableAreWrong) {
  const AttentionSpec spec = MakeSpec(2, 1, 16);
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto q_begin = CuSeqlens::FromLengths(std::vector<int32_t>{1, 1, 1}).value();
  std::vector<int32_t> kv{5, 40, 5};
  std::vector<int32_t> ids{1, -1, 2, 3, 4, -1};
  AttentionLengths lengths{.q_begin = &q_begin,
                           .kv_len = kv,
                           .block_tables = {.ids = ids.data(), .row_stride = 2, .num_seqs = 3},
                           .owned = {}};
  const auto error = [&] {
    const auto plan = PlanAttention(router, spec, lengths, 1);
    return plan ? Error{} : plan.error();
  };
  EXPECT_EQ(error().message, "sequence 1: its block table has 2 entries, kv_len 40 needs 3");
  kv[1] = -1;
  EXPECT_EQ(error().message, "sequence 1: kv_len is -1, expected 0 to 1073741824");
  kv[1] = 20;
  kv[2] = 17;
  EXPECT_EQ(error().message, "sequence 2: block table entry 1 is -1, expected a block id");
  kv[2] = 16;
  EXPECT_EQ(error().message, "");
  lengths.kv_len = std::span(kv).first(2);
  EXPECT_EQ(error().message, "kv_len has 2 entries, expected num_seqs = 3");
  lengths.kv_len = kv;
  lengths.block_tables.num_seqs = 2;
  EXPECT_EQ(error().message, "block_tables has 2 rows, expected num_seqs = 3");
  lengths.block_tables.num_seqs = 3;
  const std::vector<int32_t> owned{2, 1};
  lengths.owned = OwnedSeqs{owned};
  EXPECT_EQ(error().message, "owned sequence 1 after 2, expected ascending ids below 3");
}

// Found by fuzzing: with more rows than keys and chunks the first row sees nothing, and no entry was looked
// at.
TEST(Plan, ChecksEveryEntryThatRowsBehindAnEmptyOneRead) {
  AttentionSpec spec = MakeSpec(2, 1, 32);
  spec.block_size = 1;
  spec.chunk = 1;
  for (const bool causal : {true, false}) {
    spec.causal = causal;
    for (int entry = 0; entry < 3; ++entry) {
      AttentionBatch batch(spec, {9}, {3});
      batch.block_ids(0)[entry] = -1;
      const auto plan = PlanAttention(AttentionRouter::Create(ThisCpu()).value(), spec, batch.lengths(), 1);
      ASSERT_FALSE(plan) << entry;
      EXPECT_EQ(plan.error().field, "block_tables");
    }
  }
}

TEST(Plan, IgnoresTableEntriesThatTheWindowHasLeftBehind) {
  AttentionSpec spec = MakeSpec(2, 1, 16);
  spec.window_left = 3;
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto q_begin = CuSeqlens::FromLengths(std::vector<int32_t>{1}).value();
  const std::vector<int32_t> kv{40}, ids{-1, -1, 7};
  const AttentionLengths lengths{.q_begin = &q_begin,
                                 .kv_len = kv,
                                 .block_tables = {.ids = ids.data(), .row_stride = 3, .num_seqs = 1},
                                 .owned = {}};
  EXPECT_TRUE(PlanAttention(router, spec, lengths, 1));
}

TEST(ValidateParams, NamesTheFieldThatDoesNotFit) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  spec.has_sinks = true;
  AttentionBatch batch(spec, {3, 1}, {3, 20});
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto plan = PlanAttention(router, spec, batch.lengths(), 1).value();
  const auto output = batch.MakeOutput(0);
  const auto field_of = [&](auto spoil) {
    AttentionParams params = batch.Tensors(output);
    PagedKv kv = batch.paged();
    params.paged = &kv;
    spoil(params, kv);
    const Status status = ValidateParams(*plan, params);
    return status ? std::string() : status.error().field;
  };
  EXPECT_EQ(field_of([](AttentionParams&, PagedKv&) {}), "");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.q.shape[0] = 3; }), "q");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.q.stride[2] = 2; }), "q");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.out.shape[2] = 16; }), "out");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.out.data = nullptr; }), "out");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.q_dtype = DType::kBF16; }), "q_dtype");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.out_dtype = DType::kF16; }), "out_dtype");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.lse.data = nullptr; }), "lse");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.lse.shape[1] = 3; }), "lse");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.sinks = nullptr; }), "sinks");
  EXPECT_EQ(field_of([&](AttentionParams& p, PagedKv&) { p.alibi_slopes = batch.alibi_slopes(); }),
            "alibi_slopes");
  EXPECT_EQ(field_of([&](AttentionParams& p, PagedKv&) { p.k_descale.data = &batch.k_descale(0, 0); }),
            "k_descale");
  EXPECT_EQ(field_of([](AttentionParams& p, PagedKv&) { p.paged = nullptr; }), "paged kv");
  EXPECT_EQ(field_of([](AttentionParams&, PagedKv& kv) { kv.dtype = DType::kF16; }), "kv");
  EXPECT_EQ(field_of([](AttentionParams&, PagedKv& kv) { kv.head_dim = 64; }), "kv");
  EXPECT_EQ(field_of([](AttentionParams&, PagedKv& kv) { kv.k.slot_stride = 64; }), "kv");
  EXPECT_EQ(field_of([](AttentionParams&, PagedKv& kv) { kv.num_blocks = 1; }), "block_tables");
}

TEST(Attend, LeavesRowsOfOthersAlone) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  AttentionBatch batch(spec, {2, 1, 3, 1}, {9, 20, 3, 300});
  const AttentionResult oracle = RunOracle(batch);
  const ErrorBudget budget = BudgetOf(batch, oracle, AttentionArithmetic::kBf16);
  for (const std::vector<int32_t>& owned : {std::vector<int32_t>{1, 2}, {0, 3}, {}, {0, 1, 2, 3}}) {
    const auto result = RunAttention(batch, "", {.fill = 7.0f, .owned = owned});
    ASSERT_TRUE(result);
    for (int seq = 0; seq < 4; ++seq) {
      const bool is_owned = std::ranges::find(owned, seq) != owned.end();
      const auto row = static_cast<size_t>(spec.q_heads) * static_cast<size_t>(spec.v_head_dim);
      for (size_t i = static_cast<size_t>(batch.q_begin().begin(seq)) * row;
           i < static_cast<size_t>(batch.q_begin().end(seq)) * row; ++i) {
        if (is_owned) {
          ASSERT_LE(std::abs(result->out[i] - oracle.out[i]),
                    budget.OutOf(i / static_cast<size_t>(spec.v_head_dim)));
        } else {
          ASSERT_EQ(result->out[i], 7.0);
        }
      }
    }
  }
}

TEST(AttendDeathTest, StopsWhenTheTensorsDoNotFitThePlan) {
  AttentionBatch batch(MakeSpec(4, 2, 32), {3}, {3});
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto plan = PlanAttention(router, batch.spec(), batch.lengths(), 1).value();
  const auto output = batch.MakeOutput(0);
  AttentionParams params = batch.Tensors(output);
  params.q.shape[1] = 2;
  EXPECT_DEATH(AttendParams(*plan, params, Team(1)), "attention q has shape");
}

// tests/mutants proves that it stops a kernel that does not.
TEST(AttendPoison, AcceptsAKernelThatWritesEveryRow) {
  for (const DType out : {DType::kF32, DType::kBF16, DType::kF16}) {
    AttentionSpec spec = MakeSpec(4, 2, 32);
    spec.out_dtype = out;
    AttentionBatch batch(spec, {0, 2, 1, 3}, {4, 9, 0, 3});
    const auto router = AttentionRouter::Create(ThisCpu(), "attention_general").value();
    const auto plan = PlanAttention(router, spec, batch.lengths(), 1).value();
    const auto output = batch.MakeOutput(0);
    AttendParams(*plan, batch.Tensors(output), Team(1), /*poison_outputs=*/true);
  }
}

TEST(Plan, IsReusedByEveryLayer) {
  AttentionBatch first(MakeSpec(4, 2, 32), {1, 5, 1}, {400, 9, 3}, {.seed = 1});
  AttentionBatch second(MakeSpec(4, 2, 32), {1, 5, 1}, {400, 9, 3}, {.seed = 2});
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto plan = PlanAttention(router, first.spec(), first.lengths(), 2).value();
  // The second layer has other pages under the same block ids.
  std::copy_n(first.block_ids(0), 3 * first.table_width(), second.block_ids(0));
  second.FillRandom();
  for (AttentionBatch* layer : {&first, &second, &first}) {
    const auto layer_output = layer->MakeOutput(kNaN);
    AttendParams(*plan, layer->Tensors(layer_output), Team(2), false);
    const auto alone = RunAttention(*layer, "");
    ASSERT_TRUE(alone);
    for (int32_t token = 0; token < layer->num_tokens(); ++token) {
      for (int head = 0; head < 4; ++head) {
        for (int d = 0; d < 32; ++d) {
          ASSERT_EQ(layer->OutElement(layer_output, token, head, d),
                    alone->out[static_cast<size_t>((token * 4 + head) * 32 + d)]);
        }
      }
    }
  }
}

TEST(Plan, PlannedRoutesCountSequencesAndTokens) {
  AttentionBatch batch(MakeSpec(4, 2, 32), {1, 5, 1, 12}, {4, 5, 3, 30});
  const auto router = AttentionRouter::Create(ThisCpu(), "attention_general").value();
  const auto plan = PlanAttention(router, batch.spec(), batch.lengths(), 2).value();
  std::map<AttentionPhase, std::pair<int, int>> counts;
  for (const PlannedRoute& route : PlannedRoutes(*plan)) {
    EXPECT_EQ(route.kernel, "attention_general");
    counts[route.phase] = {route.num_seqs, route.num_tokens};
  }
  EXPECT_EQ(counts[AttentionPhase::kDecode], (std::pair{2, 2}));
  EXPECT_EQ(counts[AttentionPhase::kPrefill], (std::pair{1, 5}));
  EXPECT_EQ(counts[AttentionPhase::kExtend], (std::pair{1, 12}));
}

}  // namespace
}  // namespace attest::testing
