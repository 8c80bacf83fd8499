// Every kernel, forced by name, on the one case list: it refuses with a reason or it is right in every row.
#include <gtest/gtest.h>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

struct Subject {
  const KernelEntry* entry;
  AttentionCase test_case;
};

std::vector<Subject> Subjects() {
  std::vector<Subject> subjects;
  for (const KernelEntry* entry : RunnableKernels()) {
    for (const AttentionCase& test_case : AttentionCases()) subjects.push_back({entry, test_case});
  }
  return subjects;
}

// The oracle's answer to a case and the budgets of each arithmetic, computed once for all kernels.
struct Truth {
  AttentionResult oracle;
  ErrorBudget f32, bf16;
};
const Truth& TruthOf(const AttentionCase& test_case, AttentionBatch& batch) {
  static std::map<std::string, Truth> known;
  const auto [entry, is_new] = known.try_emplace(test_case.name);
  Truth& truth = entry->second;
  if (is_new) {
    truth.oracle = RunOracle(batch);
    truth.f32 = BudgetOf(batch, truth.oracle, AttentionArithmetic::kF32);
    truth.bf16 = BudgetOf(batch, truth.oracle, AttentionArithmetic::kBf16);
  }
  return truth;
}

class AttentionConformance : public ::testing::TestWithParam<Subject> {};

TEST_P(AttentionConformance, RefusesWithAReasonOrIsRightInEveryRow) {
  const KernelEntry& entry = *GetParam().entry;
  const AttentionCase& test_case = GetParam().test_case;
  const std::string forced = ForcedWherePossible(entry, test_case.spec);
  if (forced.empty()) {
    for (const AttentionPhase phase : kAttentionPhases) {
      const AttentionProblem problem{.spec = test_case.spec, .phase = phase};
      for (const Reason& reason : Check(entry.contract, problem, ThisCpu())) {
        EXPECT_FALSE(reason.field.empty() || reason.value.empty() || reason.expected.empty())
            << ToString(reason);
      }
    }
    return;
  }
  AttentionBatch batch(test_case.spec, test_case.q_len, test_case.kv_len, {.seed = 7});
  const Truth& truth = TruthOf(test_case, batch);
  const ErrorBudget& budget = entry.contract.arithmetic == AttentionArithmetic::kF32 ? truth.f32 : truth.bf16;

  const auto result = RunAttention(batch, forced);
  ASSERT_TRUE(result) << result.error().message;
  ExpectRan(*result, entry, test_case.spec);
  EXPECT_TRUE(Within(*result, truth.oracle, budget, test_case.spec.v_head_dim, test_case.spec.q_heads));

  // The same bytes whatever the outputs held before and however many threads ran.
  const auto again = RunAttention(batch, forced, {.num_threads = 1, .fill = 7.0f});
  ASSERT_TRUE(again);
  EXPECT_TRUE(*result == *again) << "the result depends on what the output held, or on the threads";
}

// Poison of another kind in everything that must not be read, other pages, padded rows, K next to V.
TEST_P(AttentionConformance, IsUnmovedByPoisonPagesAndStrides) {
  const KernelEntry& entry = *GetParam().entry;
  const AttentionCase& test_case = GetParam().test_case;
  const std::string forced = ForcedWherePossible(entry, test_case.spec);
  if (forced.empty() || entry.contract.name == "reference")
    return;  // the oracle's poison is in every case above
  AttentionBatch ordered(test_case.spec, test_case.q_len, test_case.kv_len,
                         {.seed = 7, .poison = 1e4f, .shuffle_pages = false});
  AttentionBatch padded(test_case.spec, test_case.q_len, test_case.kv_len,
                        {.seed = 7,
                         .shuffle_pages = false,
                         .interleave_kv = test_case.spec.layout == KvLayout::kPagedNhd,
                         .q_token_padding = 24});
  const auto expected = RunAttention(ordered, forced);
  ASSERT_TRUE(expected) << expected.error().message;
  const auto result = RunAttention(padded, forced, {.fill = 1e4f});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(*result == *expected);
}

// For a readable failure message instead of the bytes of the parameter.
void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.entry->contract.name << " on " << subject.test_case.name;
}

INSTANTIATE_TEST_SUITE_P(All, AttentionConformance, ::testing::ValuesIn(Subjects()), [](const auto& param) {
  return std::string(param.param.entry->contract.name) + "__" + param.param.test_case.name;
});

// What a tolerance is worth: in every case it must reject one zeroed row, V taken from the neighbouring key,
// and a mask moved by one key.
class AttentionTolerance : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionTolerance, RejectsAZeroedRowShuffledValuesAndAShiftedMask) {
  const AttentionCase& test_case = GetParam();
  AttentionBatch batch(test_case.spec, test_case.q_len, test_case.kv_len, {.seed = 7});
  const AttentionResult& oracle = TruthOf(test_case, batch).oracle;
  const int dim = test_case.spec.v_head_dim, heads = test_case.spec.q_heads;
  for (const AttentionArithmetic arithmetic : {AttentionArithmetic::kF32, AttentionArithmetic::kBf16}) {
    const Truth& truth = TruthOf(test_case, batch);
    const ErrorBudget& budget = arithmetic == AttentionArithmetic::kF32 ? truth.f32 : truth.bf16;
    ASSERT_TRUE(Within(oracle, oracle, budget, dim, heads));

    for (size_t row = 0; row < oracle.out.size(); row += static_cast<size_t>(dim)) {
      double largest = 0;  // the error of this row if it were zero
      for (size_t d = 0; d < static_cast<size_t>(dim); ++d)
        largest = std::max(largest, std::abs(oracle.out[row + d]));
      EXPECT_TRUE(largest == 0 || largest > budget.out) << "row " << row << " may be zeroed unseen";
    }
    AttentionResult zeroed = oracle;
    std::fill_n(zeroed.out.end() - dim, dim, 0.0);
    EXPECT_FALSE(Within(zeroed, oracle, budget, dim, heads)) << "a zeroed last row passes";

    AttentionBatch shuffled(test_case.spec, test_case.q_len, test_case.kv_len, {.seed = 7});
    std::vector<float> values;  // V of key j + 1 at key j
    for (int seq = 0; seq < batch.num_seqs(); ++seq) {
      const int n = batch.kv_len()[static_cast<size_t>(seq)];
      for (int key = 0; key < n; ++key) {
        for (int head = 0; head < test_case.spec.kv_heads; ++head) {
          for (int d = 0; d < dim; ++d) {
            values.push_back(
                static_cast<float>(ReferenceElement(batch.KeyData(true), test_case.spec.kv_dtype,
                                                    batch.KeyIndex(true, seq, (key + 1) % n, head) + d)));
          }
        }
      }
    }
    size_t next = 0;
    shuffled.FillV([&](int, int, int, int) { return values[next++]; });
    EXPECT_FALSE(Within(RunOracle(shuffled), oracle, budget, dim, heads)) << "shuffled V passes";

    AttentionSpec shifted_spec = test_case.spec;
    if (test_case.spec.causal) {  // every row sees one key more on its right
      shifted_spec.causal = false;
      shifted_spec.window_right = 1;
    } else {
      shifted_spec.causal = true;
    }
    AttentionBatch shifted(shifted_spec, test_case.q_len, test_case.kv_len, {.seed = 7});
    const bool has_later_keys = *std::ranges::max_element(test_case.q_len) > 1;
    if (has_later_keys) {
      EXPECT_FALSE(Within(RunOracle(shifted), oracle, budget, dim, heads)) << "a shifted mask passes";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTolerance, ::testing::ValuesIn(AttentionCases()),
                         [](const auto& param) { return param.param.name; });

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
