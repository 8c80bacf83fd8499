// The deviation that the conformance suite allows a row is what right kernels need, and not much more.
#include "attention/row_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "conform/trial.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

// Of every row of a batch, laid out as a result.
struct Deviations {
  std::vector<double> out, lse;
};
Deviations DeviationsOf(AttentionBatch& batch) {
  const AttentionSpec& spec = batch.spec();
  const AttentionBatch::Output none = batch.MakeOutput(0.0f);
  const AttentionParams params = batch.Params(none);
  const auto tokens = static_cast<size_t>(batch.num_tokens()), heads = static_cast<size_t>(spec.q_heads);
  Deviations all{.out = {}, .lse = std::vector<double>(spec.wants_lse ? tokens * heads : 0)};
  RowDeviation row_deviation;
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    for (int32_t row = 0; row < batch.q_begin().length(seq); ++row) {
      for (size_t head = 0; head < heads; ++head) {
        row_deviation.Compute(params, seq, row, static_cast<int>(head));
        for (int d = 0; d < spec.v_head_dim; ++d) all.out.push_back(row_deviation.out(d));
        const auto token = static_cast<size_t>(batch.q_begin().begin(seq) + row);
        if (spec.wants_lse) all.lse[head * tokens + token] = row_deviation.lse();
      }
    }
  }
  return all;
}

// The largest errors of a kernel in units of those deviations.
struct Largest {
  double out = 0, lse = 0;
};
Largest LargestOf(const KernelEntry& entry, Truth& truth, const Deviations& deviations) {
  const AttentionSpec& spec = truth.batch().spec();
  const auto run = RunSubject(*MakeKernelSubject(entry), truth.batch());
  Largest largest;
  EXPECT_TRUE(run.has_value());
  if (!run || !run->ran_any()) return largest;
  const AttentionResult &got = run->result, &oracle = truth.oracle();
  const auto in_units = [](double error, double unit) { return error <= 0 ? 0.0 : error / unit; };
  const auto row = static_cast<size_t>(spec.q_heads * spec.v_head_dim);
  for (size_t i = 0; i < oracle.out.size(); ++i) {
    if (!got.ran(i / row)) continue;
    const double stored = StoredUnit(spec.out_dtype) * std::abs(oracle.out[i]);
    largest.out =
        std::max(largest.out, in_units(std::abs(got.out[i] - oracle.out[i]) - stored, deviations.out[i]));
  }
  const auto tokens = static_cast<size_t>(truth.batch().num_tokens());
  for (size_t i = 0; i < oracle.lse.size(); ++i) {
    if (got.ran(i % tokens))
      largest.lse = std::max(largest.lse, in_units(LseError(got.lse[i], oracle.lse[i]), deviations.lse[i]));
  }
  return largest;
}

TEST(RowDeviation, EightOfThemHoldEveryFloat32KernelAndFewerThanThreeDoNot) {
  Largest largest;
  std::string where;
  for (const AttentionCase& item : AttentionCases()) {
    Truth truth(item);
    const Deviations deviations = DeviationsOf(truth.batch());
    for (const KernelEntry* entry : RunnableKernels()) {
      if (entry->contract.arithmetic != AttentionArithmetic::kF32) continue;
      const Largest found = LargestOf(*entry, truth, deviations);
      EXPECT_LE(found.out, conform::kDeviations) << entry->contract.name << " on " << item.name;
      EXPECT_LE(found.lse, conform::kDeviations) << entry->contract.name << " on " << item.name << ", lse";
      if (found.out > largest.out) where = std::string(entry->contract.name) + " on " + item.name;
      largest.out = std::max(largest.out, found.out);
      largest.lse = std::max(largest.lse, found.lse);
    }
  }
  std::printf("largest error in deviations: %.2f (%s), of an LSE %.2f\n", largest.out, where.c_str(),
              largest.lse);
  // A model of the errors that is far too wide would hold as well, and hide bugs.
  EXPECT_GT(largest.out, 3.0);
  EXPECT_GT(largest.lse, 1.0);
}

// The oracle stored as float32 commits one rounding, not none: rows without any key are exact.
TEST(RowDeviation, IsZeroForARowThatSeesNothing) {
  AttentionBatch batch(MakeSpec(2, 1, 32), {1, 1}, {0, 5});
  const AttentionBatch::Output none = batch.MakeOutput(0.0f);
  const AttentionParams params = batch.Params(none);
  RowDeviation deviation;
  deviation.Compute(params, 1, 0, 1);
  EXPECT_GT(deviation.out(3), 0);
  EXPECT_GT(deviation.lse(), 0);
  deviation.Compute(params, 0, 0, 1);
  EXPECT_EQ(deviation.out(3), 0);
  EXPECT_EQ(deviation.lse(), 0);
}

// Errors of weights move a row only as far as its values differ.
TEST(RowDeviation, KnowsThatEqualValuesHideErrorsOfWeights) {
  AttentionSpec spec = MakeSpec(2, 1, 32);
  spec.scale = 3;  // scores of 96, which float32 rounds at 4e-6; all alike, so that every key counts
  AttentionBatch different(spec, {1}, {50}), equal(spec, {1}, {50});
  for (AttentionBatch* batch : {&different, &equal}) {
    batch->FillQ([](int, int, int, int) { return 1.0f; });
    batch->FillK([](int, int, int, int) { return 1.0f; });
  }
  equal.FillV([](int, int, int, int) { return 1.0f; });
  different.FillV([](int, int key, int, int) { return key % 2 == 0 ? 1.0f : -1.0f; });
  RowDeviation of_equal, of_different;
  const AttentionBatch::Output none = equal.MakeOutput(0.0f);
  of_equal.Compute(equal.Params(none), 0, 0, 0);
  of_different.Compute(different.Params(none), 0, 0, 0);
  EXPECT_LT(4 * of_equal.out(0), of_different.out(0));
  EXPECT_LT(of_equal.out(0), 10 * kF32Unit);
}

}  // namespace
}  // namespace attest::testing
