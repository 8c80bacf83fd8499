// What may not change the answer: how a prompt is chunked, how keys are split, who shares the batch.
#include <gtest/gtest.h>

#include "tests/support/attention_probes.h"

namespace attest::testing {
namespace {

std::vector<AttentionSpec> FeatureSpecs() {
  const AttentionSpec base = MakeSpec(6, 2, 32);
  std::vector<AttentionSpec> specs(6, base);
  specs[1].window_left = 20;
  specs[2].softcap = 2.0f;
  specs[3].has_alibi = true;
  specs[4].has_sinks = true;
  specs[5].window_left = 9;
  specs[5].has_sinks = specs[5].has_alibi = true;
  specs[5].softcap = 4.0f;
  return specs;
}

// A prompt of 70 tokens computed in chunks: the rows of every chunking are within the budget of the oracle's
// rows for the whole prompt.
TEST(ChunkInvariance, AnyChunkingOfAPromptGivesTheSameRows) {
  constexpr int32_t kPrompt = 70;
  for (const AttentionSpec& spec : FeatureSpecs()) {
    AttentionBatch whole(spec, {kPrompt}, {kPrompt}, {.seed = 9});
    const AttentionResult oracle = RunOracle(whole);
    for (const KernelEntry* entry : RunnableKernels()) {
      const std::string forced = ForcedWherePossible(*entry, spec);
      if (forced.empty() || entry->contract.name == "reference") continue;
      const ErrorBudget budget = BudgetOf(whole, oracle, entry->contract.arithmetic);
      const auto router = AttentionRouter::Create(ThisCpu(), forced).value();
      for (const int32_t chunk : {1, 15, 16, 17, 70}) {
        const auto output = whole.MakeOutput(kNaN);
        for (int32_t begin = 0; begin < kPrompt; begin += chunk) {
          const int32_t end = std::min(kPrompt, begin + chunk);
          const auto q_begin = CuSeqlens::FromLengths(std::vector<int32_t>{end - begin}).value();
          const std::vector<int32_t> kv_len{end};
          AttentionLengths lengths = whole.lengths();
          lengths.q_begin = &q_begin;
          lengths.kv_len = kv_len;
          const auto plan = PlanAttention(router, spec, lengths, 1);
          ASSERT_TRUE(plan) << plan.error().message;
          AttentionParams params = whole.Tensors(output);
          params.q.data = params.QRow(begin, 0);
          params.out.data = params.OutRow(begin, 0);
          params.q.shape[0] = params.out.shape[0] = params.lse.shape[1] = end - begin;
          params.lse.data += begin;
          AttendParams(**plan, params, Team(1), false);
        }
        AttentionResult result;
        for (int64_t i = 0; i < std::ssize(oracle.out); ++i) result.out.push_back(output.out.as<float>()[i]);
        for (int64_t i = 0; i < std::ssize(oracle.lse); ++i) result.lse.push_back(output.lse.as<float>()[i]);
        EXPECT_TRUE(Within(result, oracle, budget, spec.v_head_dim, spec.q_heads))
            << entry->contract.name << " with chunks of " << chunk;
      }
    }
  }
}

TEST(SplitInvariance, AnySplitOfTheKeysGivesTheSameRow) {
  for (const AttentionSpec& spec : FeatureSpecs()) {
    for (const int32_t q_len : {1, 3}) {
      AttentionBatch batch(spec, {q_len}, {100}, {.seed = 4});
      const AttentionResult oracle = RunOracle(batch);
      for (const KernelEntry* entry : RunnableKernels()) {
        const AttentionProblem problem{.spec = spec, .phase = RoutePhaseOf(q_len, 100)};
        if (!entry->kernel->can_split_kv || !Check(entry->contract, problem, ThisCpu()).empty()) continue;
        const ErrorBudget budget = BudgetOf(batch, oracle, entry->contract.arithmetic);
        for (const auto& cuts : std::vector<std::vector<int32_t>>{
                 {0, 50, 100}, {0, 1, 99, 100}, {0, 17, 33, 64, 64, 80, 100}, {0, 0, 100}, {0, 100, 100}}) {
          EXPECT_TRUE(Within(RunSplits(batch, *entry, cuts), oracle, budget, spec.v_head_dim, spec.q_heads))
              << entry->contract.name << " q_len " << q_len << " splits " << cuts.size() - 1;
        }
      }
    }
  }
}

TEST(BatchInvariance, ASequenceIsBitEqualAloneAndInAnyCompany) {
  for (const AttentionSpec& spec : FeatureSpecs()) {
    ForEachKernel(spec, [&](const std::string& forced) {
      AttentionBatch batch(spec, {1, 30, 4, 1, 9, 4}, {500, 30, 40, 1, 60, 300}, {.seed = 6});
      const auto together = RunAttention(batch, forced);
      ASSERT_TRUE(together);
      const auto row = static_cast<size_t>(spec.q_heads) * static_cast<size_t>(spec.v_head_dim);
      for (int seq = 0; seq < batch.num_seqs(); ++seq) {
        const auto alone =
            RunAttention(batch, forced, {.num_threads = 1, .owned = std::vector<int32_t>{seq}});
        ASSERT_TRUE(alone);
        for (size_t i = static_cast<size_t>(batch.q_begin().begin(seq)) * row;
             i < static_cast<size_t>(batch.q_begin().end(seq)) * row; ++i) {
          ASSERT_EQ(alone->out[i], together->out[i]) << "sequence " << seq;
        }
      }
    });
  }
}

}  // namespace
}  // namespace attest::testing
