// The bound of a row holds for every kernel on every case, and rejects rows that are wrong in the ways
// kernels have been wrong.
#include "attention/row_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "attention/row_error.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

using RowFn = std::function<void(int seq, int32_t row, int head)>;
void ForEachRow(const AttentionBatch& batch, const RowFn& fn) {
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    for (int32_t row = 0; row < batch.q_begin().length(seq); ++row) {
      for (int head = 0; head < batch.spec().q_heads; ++head) fn(seq, row, head);
    }
  }
}

TEST(RowCheck, HoldsInEveryRowOfEveryKernelOnEveryCase) {
  std::map<std::string, double> worst;
  for (const AttentionCase& item : AttentionCases()) {
    for (const KernelEntry* entry : RunnableKernels()) {
      const std::string forced = ForcedWherePossible(*entry, item.spec);
      if (forced.empty()) continue;
      SCOPED_TRACE(item.name + " on " + std::string(entry->contract.name));
      AttentionBatch batch(item.spec, item.q_len, item.kv_len, {.seed = 7});
      const auto router = AttentionRouter::Create(ThisCpu(), forced);
      ASSERT_TRUE(router.has_value());
      const auto plan = PlanAttention(*router, batch.spec(), batch.lengths(), 2);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      const AttentionBatch::Output output = batch.MakeOutput(kNaN);
      AttendParams(**plan, batch.Tensors(output), Team(2), false);
      const AttentionParams params = batch.Params(output);
      RowChecker checker;
      for (const PlanGroup& group : (*plan)->groups()) {
        const KernelContract& contract = group.route.entry().contract;
        for (const int32_t seq : group.seqs) {
          for (int32_t row = 0; row < batch.q_begin().length(seq); ++row) {
            // Every head of some row, and every row of some head.
            const int head = (row + seq) % item.spec.q_heads;
            const RowVerdict verdict = checker.Check(params, contract.arithmetic, seq, row, head);
            ASSERT_TRUE(verdict.verifiable);
            ASSERT_TRUE(verdict.ok())
                << "sequence " << seq << " row " << row << " head " << head << " dim "
                << verdict.dim.value_or(-1) << ": " << verdict.computed << ", expected " << verdict.expected
                << ", error " << verdict.error << " is " << verdict.ratio << " of " << verdict.budget;
            double& highest = worst[std::string(contract.name)];
            highest = std::max(highest, verdict.ratio);
          }
        }
      }
    }
  }
  for (const auto& [kernel, ratio] : worst) {
    RecordProperty("worst_ratio_" + kernel, std::to_string(ratio));
    std::printf("%s: largest error %.3f of the budget\n", kernel.c_str(), ratio);
  }
}

// Otherwise the loops would be trusted where the oracle was meant.
TEST(RowCheck, ItsLoopsRecomputeEveryRowOfEveryCaseAsTheOracleDoes) {
  std::vector<const RowSumOps*> tables{&kRowSumsPortable};
#if defined(__x86_64__)
  if (ThisCpu().avx2) tables.push_back(&kRowSumsAvx2);
  if (ThisCpu().avx512) tables.push_back(&kRowSumsAvx512);
#endif
  std::vector<AttentionCase> cases = AttentionCases();
  cases.push_back({"head_dim_40", MakeSpec(4, 2, 40), {1, 5}, {30, 9}});  // no whole number of vectors
  for (const AttentionCase& item : cases) {
    SCOPED_TRACE(item.name);
    AttentionBatch batch(item.spec, item.q_len, item.kv_len, {.seed = 7});
    const AttentionBatch::Output output = batch.MakeOutput(kNaN);
    AttentionParams params = batch.Params(output);
    std::vector<int32_t> all(static_cast<size_t>(batch.num_seqs()));
    std::iota(all.begin(), all.end(), 0);
    params.owned = {all};
    ReferenceAttention(params);
    std::vector<double> row(static_cast<size_t>(item.spec.v_head_dim));
    for (size_t table = 0; table < tables.size(); ++table) {
      for (const AttentionArithmetic arithmetic : {AttentionArithmetic::kF32, AttentionArithmetic::kBf16}) {
        RowChecker checker(*tables[table]);
        for (int seq = 0; seq < batch.num_seqs(); ++seq) {
          for (int32_t i = 0; i < batch.q_begin().length(seq); i += 3) {
            const int head = (i + seq) % item.spec.q_heads;
            ASSERT_TRUE(checker.Check(params, arithmetic, seq, i, head).ok());
            ASSERT_FALSE(checker.asked_the_oracle()) << "table " << table;
            const double lse = ReferenceAttentionRow(params, seq, i, head, row);
            ASSERT_TRUE(checker.lse() == lse || std::abs(checker.lse() - lse) < 1e-12 * (1 + std::abs(lse)));
            double largest = 1;
            for (const double value : row) largest = std::max(largest, std::abs(value));
            for (size_t d = 0; d < row.size(); ++d)
              ASSERT_NEAR(checker.expected()[d], row[d], 1e-12 * largest);
          }
        }
      }
    }
  }
}

// Rows of the oracle on one batch, judged as if a kernel of some arithmetic had computed them for another.
class RowCheckControls : public ::testing::TestWithParam<AttentionArithmetic> {
 protected:
  static AttentionSpec Spec() {
    AttentionSpec spec = MakeSpec(6, 2, 64);
    spec.wants_lse = false;
    return spec;
  }
  static constexpr int32_t kContext = 300;
  AttentionBatch batch_{Spec(), {1, 40, 9, 1}, {kContext, 40, 120, 2}};

  // Counts the rows accepted when `wrong` writes each row of the output.
  int Accepted(const std::function<void(int seq, int32_t row, int head, std::span<double> out)>& wrong,
               int* judged = nullptr) {
    const AttentionBatch::Output output = batch_.MakeOutput(0.0f);
    const AttentionParams params = batch_.Params(output);
    RowChecker checker;
    std::vector<double> out(static_cast<size_t>(Spec().v_head_dim));
    int accepted = 0;
    ForEachRow(batch_, [&](int seq, int32_t row, int head) {
      wrong(seq, row, head, out);
      if (std::isnan(out[1])) return;  // the control changes nothing here
      for (int d = 0; d < Spec().v_head_dim; ++d) {
        EncodeElement(params.OutRow(batch_.q_begin().begin(seq) + row, head), DType::kF32, d,
                      static_cast<float>(out[static_cast<size_t>(d)]));
      }
      if (judged != nullptr) ++*judged;
      const RowVerdict verdict = checker.Check(params, GetParam(), seq, row, head);
      accepted += verdict.ok() ? 1 : 0;
      EXPECT_EQ(checker.asked_the_oracle(), !verdict.ok());
      EXPECT_EQ(verdict.ok(), !verdict.first_wrong_dim.has_value());
    });
    return accepted;
  }
  int num_rows() const { return batch_.num_tokens() * Spec().q_heads; }
};

TEST_P(RowCheckControls, AcceptsTheOraclesOwnRows) {
  const AttentionBatch::Output output = batch_.MakeOutput(0.0f);
  const AttentionParams params = batch_.Params(output);
  EXPECT_EQ(Accepted([&](int seq, int32_t row, int head, std::span<double> out) {
              ReferenceAttentionRow(params, seq, row, head, out);
            }),
            num_rows());
}

TEST_P(RowCheckControls, RejectsValuesOfTheNeighbouringKey) {
  AttentionBatch shifted{Spec(), {1, 40, 9, 1}, {kContext, 40, 120, 2}};
  shifted.FillV([&](int seq, int key, int kv_head, int d) {
    const int64_t at = batch_.KeyIndex(true, seq, std::max(key - 1, 0), kv_head);
    return static_cast<float>(ReferenceElement(batch_.KeyData(true), Spec().kv_dtype, at + d));
  });
  const AttentionBatch::Output output = shifted.MakeOutput(0.0f);
  const AttentionParams params = shifted.Params(output);
  int judged = 0;
  EXPECT_EQ(Accepted(
                [&](int seq, int32_t row, int head, std::span<double> out) {
                  ReferenceAttentionRow(params, seq, row, head, out);
                  // The first row of a prefill sees one key, whose neighbour is itself.
                  if (seq == 1 && row == 0) out[1] = kNaN;
                },
                &judged),
            0);
  EXPECT_EQ(judged, num_rows() - Spec().q_heads);
}

TEST_P(RowCheckControls, RejectsAMaskThatHidesTheLastKey) {
  const AttentionBatch::Output output = batch_.MakeOutput(0.0f);
  AttentionParams params = batch_.Params(output);
  // One key less: every row stands one position further left.
  std::vector<int32_t> shorter = batch_.kv_len();
  for (int32_t& kv_len : shorter) --kv_len;
  params.kv_len = shorter;
  // A key whose weight rounding hides is one that nobody can miss: those rows are not judged.
  const double hidden = GetParam() == AttentionArithmetic::kF32 ? 0x1p-14 : 0x1p-5;
  int judged = 0;
  EXPECT_EQ(Accepted(
                [&](int seq, int32_t row, int head, std::span<double> out) {
                  const double without = ReferenceAttentionRow(params, seq, row, head, out);
                  AttentionParams whole = params;
                  whole.kv_len = batch_.kv_len();
                  std::vector<double> ignored(out.size());
                  const double with = ReferenceAttentionRow(whole, seq, row, head, ignored);
                  if (1 - std::exp(without - with) < hidden) out[1] = kNaN;
                },
                &judged),
            0);
  EXPECT_GT(judged, num_rows() / (GetParam() == AttentionArithmetic::kF32 ? 2 : 6));
}

TEST_P(RowCheckControls, RejectsARowOfZerosAndARowNobodyWrote) {
  EXPECT_EQ(Accepted([](int, int32_t, int, std::span<double> out) { std::ranges::fill(out, 0.0); }), 0);
  EXPECT_EQ(Accepted([](int, int32_t, int, std::span<double> out) { std::ranges::fill(out, 1e30); }), 0);
}

TEST_P(RowCheckControls, RejectsOneElementThatIsNotFiniteAndSaysWhich) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    const AttentionBatch::Output output = batch_.MakeOutput(0.0f);
    const AttentionParams params = batch_.Params(output);
    ReferenceAttention([&] {
      AttentionParams whole = params;
      static const std::vector<int32_t> all{0, 1, 2, 3};
      whole.owned = {all};
      return whole;
    }());
    RowChecker checker;
    ASSERT_TRUE(checker.Check(params, GetParam(), 2, 3, 4).ok());
    reinterpret_cast<float*>(params.OutRow(batch_.q_begin().begin(2) + 3, 4))[17] = bad;
    const RowVerdict verdict = checker.Check(params, GetParam(), 2, 3, 4);
    EXPECT_FALSE(verdict.ok());
    EXPECT_EQ(verdict.first_wrong_dim, 17);
    EXPECT_EQ(verdict.dim, 17);
    EXPECT_TRUE(checker.Check(params, GetParam(), 2, 3, 3).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Each, RowCheckControls,
                         ::testing::Values(AttentionArithmetic::kF32, AttentionArithmetic::kBf16),
                         [](const auto& test) { return std::string(AttentionArithmeticName(test.param)); });

TEST(RowCheck, SaysNothingAboutAKernelWhoseKeysAreNotFinite) {
  AttentionSpec spec = MakeSpec(2, 1, 32);
  spec.kv_dtype = DType::kF32;
  AttentionBatch batch(spec, {1}, {20});
  static_cast<float*>(batch.KeyData(true))[batch.KeyIndex(true, 0, 3, 0) + 5] = kInfinity;
  const AttentionBatch::Output output = batch.MakeOutput(0.0f);
  const AttentionParams params = batch.Params(output);
  const RowVerdict verdict = RowChecker().Check(params, AttentionArithmetic::kF32, 0, 0, 1);
  EXPECT_FALSE(verdict.verifiable);
}

// 64 dims, in which rounding to bf16 moves the query by 0.17 along one key: a kernel that rounds gives that
// key half of the weight, as the other, and one that does not 0.58.
TEST(RowCheck, AllowsRoundedQueriesToAKernelThatRoundsThemAndToNoOther) {
  AttentionSpec spec = MakeSpec(2, 1, 64);
  spec.wants_lse = false;
  spec.scale = 2;
  AttentionBatch batch(spec, {1}, {2});
  batch.FillQ([](int, int, int, int d) { return d % 2 == 0 ? 1 + 0.9f * 0x1p-8f : 1 - 0.9f * 0x1p-9f; });
  batch.FillK([](int, int key, int, int d) { return key == 1 ? 0.0f : d % 2 == 0 ? 1.0f : -1.0f; });
  batch.FillV([](int, int key, int, int) { return key == 1 ? -1.0f : 1.0f; });
  const AttentionBatch::Output output = batch.MakeOutput(0.0f);
  const AttentionParams params = batch.Params(output);
  RowChecker checker;
  EXPECT_TRUE(checker.Check(params, AttentionArithmetic::kBf16, 0, 0, 1).ok());
  EXPECT_NEAR(checker.expected()[0], 0.167, 0.001);
  EXPECT_FALSE(checker.Check(params, AttentionArithmetic::kF32, 0, 0, 1).ok());
  reinterpret_cast<float*>(params.OutRow(0, 1))[7] = 0.4f;  // further off than rounding goes
  const RowVerdict verdict = checker.Check(params, AttentionArithmetic::kBf16, 0, 0, 1);
  EXPECT_EQ(verdict.first_wrong_dim, 7);
}

TEST(RowCheck, NamesTheFirstWrongDimBesideTheWorst) {
  AttentionSpec spec = MakeSpec(2, 1, 64);
  spec.wants_lse = false;
  AttentionBatch batch(spec, {1}, {20});
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  AttentionParams params = batch.Params(output);
  static const std::vector<int32_t> all{0};
  params.owned = {all};
  ReferenceAttention(params);
  auto* row = reinterpret_cast<float*>(params.OutRow(0, 1));
  row[5] += 0.01f;
  row[40] += 1;
  row[50] += 0.01f;
  const RowVerdict verdict = RowChecker().Check(params, AttentionArithmetic::kF32, 0, 0, 1);
  EXPECT_EQ(verdict.first_wrong_dim, 5);
  EXPECT_EQ(verdict.dim, 40);
}

// Runs the batch with every kernel of this arithmetic that takes it.
template <class Visit>
void RunEach(AttentionBatch& batch, AttentionArithmetic arithmetic, Visit visit) {
  for (const KernelEntry* entry : RunnableKernels()) {
    const std::string forced = ForcedWherePossible(*entry, batch.spec());
    if (forced.empty() || entry->contract.arithmetic != arithmetic) continue;
    const AttentionRouter router = AttentionRouter::Create(ThisCpu(), forced).value();
    const AttentionPlanPtr plan = PlanAttention(router, batch.spec(), batch.lengths(), 2).value();
    const AttentionBatch::Output output = batch.MakeOutput(kNaN);
    AttendParams(*plan, batch.Tensors(output), Team(2), false);
    visit(forced, *plan, batch.Params(output));
  }
}

// Why the sentinel does not judge by eight deviations (attention/row_error.h), which take roundings as
// independent: copies of one key all round alike. Right kernels pass those, and stay far below the bound.
TEST(RowCheck, HoldsWhereCopiesOfAKeyRoundAlikeAndEightDeviationsDoNot) {
  AttentionSpec spec = MakeSpec(1, 1, 64);
  spec.wants_lse = false;
  spec.kv_dtype = DType::kF32;
  spec.scale = 1;
  double largest = 0;
  for (const uint32_t seed : {3, 4, 5, 6}) {
    // 4,096 keys that are two by turns. Their scores, sums of 64 products near 1, lie at 64 and round by
    // 2^-18.
    AttentionBatch two(spec, {1}, {2}, {.seed = seed});
    const std::vector<float> keys = two.Decoded(false, 0, 0);
    AttentionBatch batch(spec, {1}, {4096});
    batch.FillQ([](int, int, int, int) { return 1.0f; });
    batch.FillK(
        [&](int, int key, int, int d) { return 1 + 0.01f * keys[static_cast<size_t>(key % 2 * 64 + d)]; });
    batch.FillV([](int, int key, int, int) { return key % 2 == 0 ? 1.0f : -1.0f; });
    RunEach(batch, AttentionArithmetic::kF32,
            [&](const std::string& kernel, const AttentionPlan&, const AttentionParams& params) {
              RowChecker checker;
              EXPECT_LT(checker.Check(params, AttentionArithmetic::kF32, 0, 0, 0).ratio, 0.1) << kernel;
              RowDeviation deviation;
              deviation.Compute(params, 0, 0, 0);
              const double out = ReferenceElement(params.OutRow(0, 0), params.out_dtype, 0);
              largest = std::max(largest, std::abs(out - checker.expected()[0]) / deviation.out(0));
            });
  }
  EXPECT_GT(largest, 8);
  std::printf("largest error over copies of two keys: %.1f deviations\n", largest);
}

// Every kernel of this arithmetic is right on the batch.
void ExpectTheBoundHolds(AttentionBatch& batch, AttentionArithmetic arithmetic) {
  double largest = 0;
  RunEach(batch, arithmetic,
          [&](const std::string& kernel, const AttentionPlan& plan, const AttentionParams& params) {
            RowChecker checker;
            for (const PlanGroup& group : plan.groups()) {
              for (const int32_t seq : group.seqs) {
                for (int32_t row = 0; row < batch.q_begin().length(seq); ++row) {
                  const RowVerdict verdict =
                      checker.Check(params, group.route.entry().contract.arithmetic, seq, row, 0);
                  EXPECT_TRUE(verdict.ok())
                      << kernel << " row " << row << ": " << verdict.computed << ", expected "
                      << verdict.expected << " within " << verdict.budget;
                  largest = std::max(largest, verdict.ratio);
                }
              }
            }
          });
  std::printf("largest error %.3f of the budget\n", largest);
}

// Two keys, one in two places of three. The weight of the other is 1, and that of each of its copies just
// above the middle of two bf16: all are rounded up by nearly 2^-8 of themselves.
TEST(RowCheck, HoldsWhereEveryWeightRoundsUp) {
  AttentionSpec spec = MakeSpec(1, 1, 64);
  spec.wants_lse = false;
  spec.scale = -std::log(0.5f + 1.02f * 0x1p-9f) / 64;
  AttentionBatch batch(spec, {1, 4}, {4096, 4096});
  batch.FillQ([](int, int, int, int) { return 1.0f; });
  batch.FillK([](int, int key, int, int) { return key % 3 == 0 ? 1.0f : 0.0f; });
  batch.FillV([](int, int key, int, int) { return key % 3 == 0 ? 1.0f : -1.0f; });
  ExpectTheBoundHolds(batch, AttentionArithmetic::kBf16);
}

// Partial sums of equal terms, each of which loses nearly half a unit in the same direction.
TEST(RowCheck, HoldsWhereEverySumRoundsDown) {
  AttentionSpec spec = MakeSpec(1, 1, 64);
  spec.wants_lse = false;
  spec.kv_dtype = DType::kF32;
  AttentionBatch batch(spec, {1, 4}, {16384, 16384});
  batch.FillQ([](int, int, int, int) { return 0.0f; });
  batch.FillV([](int, int, int, int) { return 1 + 0.45f * 0x1p-10f; });
  ExpectTheBoundHolds(batch, AttentionArithmetic::kF32);
}

TEST(RowCheck, RejectsAWrongLse) {
  AttentionBatch batch(MakeSpec(2, 1, 32), {1, 3}, {20, 0});
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  AttentionParams params = batch.Params(output);
  static const std::vector<int32_t> all{0, 1};
  params.owned = {all};
  ReferenceAttention(params);
  RowChecker checker;
  EXPECT_TRUE(checker.Check(params, AttentionArithmetic::kF32, 0, 0, 1).ok());
  EXPECT_TRUE(checker.Check(params, AttentionArithmetic::kF32, 1, 0, 1).ok());
  *params.lse.At(1, 0) += 1e-3f;
  const RowVerdict verdict = checker.Check(params, AttentionArithmetic::kF32, 0, 0, 1);
  EXPECT_FALSE(verdict.ok());
  EXPECT_FALSE(verdict.dim.has_value());
  *params.lse.At(1, 1) = 0.0f;  // a row without keys: -inf
  EXPECT_FALSE(checker.Check(params, AttentionArithmetic::kF32, 1, 0, 1).ok());
}

}  // namespace
}  // namespace attest::testing
