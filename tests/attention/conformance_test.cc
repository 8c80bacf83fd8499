// Every kernel, forced by name, on the one case list: it refuses with a reason or it is right in every row.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "conform/trial.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

struct Trial {
  const KernelEntry* entry;
  AttentionCase test_case;
};

std::vector<Trial> Trials() {
  std::vector<Trial> trials;
  for (const KernelEntry* entry : RunnableKernels()) {
    for (const AttentionCase& test_case : AttentionCases()) trials.push_back({entry, test_case});
  }
  return trials;
}

// The oracle's answer to a case and the budgets of each arithmetic, computed once for all kernels.
Truth& TruthOf(const AttentionCase& test_case) {
  static std::map<std::string, Truth> known;
  return known.try_emplace(test_case.name, test_case).first->second;
}

class AttentionConformance : public ::testing::TestWithParam<Trial> {};

// Also the same bytes whatever the outputs held before, however many threads ran, and behind other poison,
// pages and strides (conform/trial.h).
TEST_P(AttentionConformance, RefusesWithAReasonOrIsRightInEveryRow) {
  const auto subject = MakeKernelSubject(*GetParam().entry);
  const Outcome outcome = TryCase(*subject, TruthOf(GetParam().test_case));
  EXPECT_NE(outcome.verdict, Verdict::kFail) << DescribeCase(GetParam().test_case) << ": " << outcome.why;
  if (outcome.verdict == Verdict::kRefused) {
    EXPECT_FALSE(outcome.refusals.empty());
  }
}

// For a readable failure message instead of the bytes of the parameter.
void PrintTo(const Trial& subject, std::ostream* out) {
  *out << subject.entry->contract.name << " on " << subject.test_case.name;
}

INSTANTIATE_TEST_SUITE_P(All, AttentionConformance, ::testing::ValuesIn(Trials()), [](const auto& param) {
  return std::string(param.param.entry->contract.name) + "__" + param.param.test_case.name;
});

// What a tolerance is worth: in every case it must reject one zeroed row, V taken from the neighbouring key,
// and a mask moved by one key.
class AttentionTolerance : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionTolerance, RejectsAZeroedRowShuffledValuesAndAShiftedMask) {
  Truth& truth = TruthOf(GetParam());
  for (const AttentionArithmetic arithmetic : {AttentionArithmetic::kF32, AttentionArithmetic::kBf16}) {
    EXPECT_EQ(FirstBadRow(truth.oracle(), truth.oracle(), truth.budget(arithmetic),
                          GetParam().spec.v_head_dim, GetParam().spec.q_heads),
              std::nullopt);
    EXPECT_EQ(truth.passing_control(arithmetic), std::nullopt) << AttentionArithmeticName(arithmetic);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTolerance, ::testing::ValuesIn(AttentionCases()),
                         [](const auto& param) { return param.param.name; });

// The sweep of `attest conform`, thinned: every declared value of every dimension, and random problems.
TEST(AttentionSweep, EveryKernelRefusesOrIsRightOnTheThinnedSweepAndOnDrawnProblems) {
  std::vector<AttentionCase> cases = SweepCases(/*quick=*/true);
  for (uint64_t i = 0; i < 20; ++i) cases.push_back(RandomCase(1, i));
  const auto subjects = RunnableSubjects();
  for (const AttentionCase& c : cases) {
    Truth truth(c);
    for (const auto& subject : subjects) {
      const Outcome outcome = TryCase(*subject, truth);
      EXPECT_NE(outcome.verdict, Verdict::kFail)
          << subject->name() << " on " << c.name << ": " << DescribeCase(c) << ": " << outcome.why;
    }
    for (const AttentionArithmetic arithmetic : {AttentionArithmetic::kF32, AttentionArithmetic::kBf16})
      EXPECT_EQ(truth.passing_control(arithmetic), std::nullopt) << c.name;
  }
}

// Turning a feature on must move at least one row, or it was dropped on the way.
TEST(AttentionFeatures, EachOneChangesTheOutputOfEveryKernelThatAcceptsIt) {
  const AttentionSpec base = MakeSpec(6, 2, 64);
  const std::vector<int32_t> q{1, 9, 5, 1, 3, 17}, kv{30, 40, 5, 33, 19, 17};
  struct Feature {
    const char* name;
    void (*enable)(AttentionSpec&);
  };
  const Feature features[] = {
      {"scale", [](AttentionSpec& s) { s.scale *= 0.5f; }},
      {"non_causal", [](AttentionSpec& s) { s.causal = false; }},
      {"window_left", [](AttentionSpec& s) { s.window_left = 6; }},
      {"sink_tokens", [](AttentionSpec& s) { s.window_left = 6, s.sink_tokens = 2; }},
      {"chunk", [](AttentionSpec& s) { s.chunk = 8; }},
      {"softcap", [](AttentionSpec& s) { s.softcap = 1.0f; }},
      {"alibi", [](AttentionSpec& s) { s.has_alibi = true; }},
      {"sinks", [](AttentionSpec& s) { s.has_sinks = true; }},
      {"k_descale", [](AttentionSpec& s) { s.has_k_descale = true; }},
      {"v_descale", [](AttentionSpec& s) { s.has_v_descale = true; }},
  };
  AttentionSpec windowed = base;
  windowed.window_left = 6;
  for (const KernelEntry* entry : RunnableKernels()) {
    for (const Feature& feature : features) {
      AttentionSpec spec = base;
      feature.enable(spec);
      const std::string forced = ForcedWherePossible(*entry, spec);
      if (forced.empty()) continue;
      AttentionBatch off(feature.name == std::string("sink_tokens") ? windowed : base, q, kv, {.seed = 3});
      AttentionBatch on(spec, q, kv, {.seed = 3});
      const auto without = RunAttention(off, forced), with = RunAttention(on, forced);
      ASSERT_TRUE(without && with) << entry->contract.name << " " << feature.name;
      EXPECT_NE(without->out, with->out) << entry->contract.name << " drops " << feature.name;
    }
  }
}

}  // namespace
}  // namespace attest::testing
