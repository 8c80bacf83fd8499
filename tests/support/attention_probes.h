// Probes with exact answers (no oracle needed), and kernels run without the planner, on items cut by hand.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/merge_states.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {

// Calls fn(forced) for every kernel that accepts the spec in some phase, and fails when none but the
// reference does.
template <class Fn>
void ForEachKernel(const AttentionSpec& spec, Fn fn) {
  int ran = 0;
  for (const KernelEntry* entry : RunnableKernels()) {
    const std::string forced = ForcedWherePossible(*entry, spec);
    if (forced.empty()) continue;
    SCOPED_TRACE(entry->contract.name);
    fn(forced);
    ++ran;
  }
  EXPECT_GE(ran, 2);
}

// Every dim of a row is `expected` (plus dim / 1024 with `d_probe`), to float32 rounding.
inline void ExpectRow(const AttentionResult& result, const AttentionSpec& spec, int token, int head,
                      double expected, bool d_probe = false) {
  for (int d = 0; d < spec.v_head_dim; ++d) {
    const double want = expected + (d_probe ? d / 1024.0 : 0.0);
    const double got = result.out[static_cast<size_t>((token * spec.q_heads + head) * spec.v_head_dim + d)];
    ASSERT_NEAR(got, want, 2e-6 * std::max(1.0, std::abs(want)))
        << "token " << token << " head " << head << " dim " << d;
  }
}

// The uniform probe on one batch: expected[t] is the mean index of the keys that token t sees.
inline void ExpectUProbe(const AttentionSpec& spec, const std::vector<int32_t>& q_len,
                         const std::vector<int32_t>& kv_len, const std::vector<double>& expected) {
  ForEachKernel(spec, [&](const std::string& forced) {
    AttentionBatch batch(spec, q_len, kv_len);
    batch.UProbe();
    for (const float fill : {kNaN, 7.0f}) {
      const auto result = RunAttention(batch, forced, {.fill = fill});
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_EQ(expected.size(), static_cast<size_t>(batch.num_tokens()));
      for (int token = 0; token < batch.num_tokens(); ++token) {
        for (int head = 0; head < spec.q_heads; ++head) {
          ExpectRow(*result, spec, token, head, expected[static_cast<size_t>(token)]);
        }
      }
    }
  });
}

// A spec whose answers are exact: f32 pages.
inline AttentionSpec Small(int q_heads = 2, int kv_heads = 1, int head_dim = 16) {
  AttentionSpec spec = MakeSpec(q_heads, kv_heads, head_dim);
  spec.kv_dtype = DType::kF32;
  return spec;
}

// Mean index of the keys a row sees with a window of `window` tokens (0: none), the row itself counted.
inline double Mean(int p, int window) {
  const int first = window == 0 ? 0 : std::max(0, p - window + 1);
  return (first + p) / 2.0;
}

inline AttentionSpec Windowed(int window) {
  AttentionSpec spec = Small();
  if (window > 0) spec.window_left = window - 1;
  return spec;
}

// Random data through every kernel, against the oracle.
inline void ExpectRandomIsRight(const AttentionSpec& spec, const std::vector<int32_t>& q,
                                const std::vector<int32_t>& kv) {
  AttentionBatch batch(spec, q, kv, {.seed = 5});
  const AttentionResult oracle = RunOracle(batch);
  const ErrorBudget f32 = BudgetOf(batch, oracle, AttentionArithmetic::kF32);
  const ErrorBudget bf16 = BudgetOf(batch, oracle, AttentionArithmetic::kBf16);
  for (const KernelEntry* entry : RunnableKernels()) {
    const std::string forced = ForcedWherePossible(*entry, spec);
    if (forced.empty()) continue;
    const auto result = RunAttention(batch, forced);
    ASSERT_TRUE(result) << result.error().message;
    ExpectRan(*result, *entry, spec);
    const bool is_f32 = entry->contract.arithmetic == AttentionArithmetic::kF32;
    EXPECT_TRUE(Within(*result, oracle, is_f32 ? f32 : bf16, spec.v_head_dim, spec.q_heads))
        << entry->contract.name;
  }
}

// One sequence (number 0 of the batch) with its keys cut at `cuts`, e.g. {0, 3, 3, 9}: each range is one
// split (which may be empty), run with the kernel directly, then merged. Everything is filled with NaN first.
inline AttentionResult RunSplits(AttentionBatch& batch, const KernelEntry& entry,
                                 const std::vector<int32_t>& cuts) {
  const AttentionSpec& spec = batch.spec();
  const AttentionShape shape = ShapeOf(spec);
  const int32_t rows = batch.q_begin().length(0);
  EXPECT_LE(rows, entry.kernel->row_tile(shape));
  const auto splits = static_cast<int64_t>(cuts.size()) - 1;
  const int64_t state_rows = int64_t{rows} * shape.group();
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  AttentionParams params = batch.Params(output);
  const std::vector<int32_t> owned{0};
  params.owned = {owned};
  const GuardedBytes thread(entry.kernel->thread_scratch_bytes(shape) + 64);
  const GuardedBytes partial_out(splits * state_rows * spec.v_head_dim * 4),
      partial_lse(splits * state_rows * 4);
  const AttentionScratch scratch{.thread = {thread.data(), static_cast<size_t>(thread.size())},
                                 .partial_out = partial_out.as<float>(),
                                 .partial_lse = partial_lse.as<float>()};
  AttentionResult result;
  result.out.resize(static_cast<size_t>(rows) * static_cast<size_t>(spec.q_heads * spec.v_head_dim));
  result.lse.resize(static_cast<size_t>(spec.q_heads) * static_cast<size_t>(rows));
  for (int kv_head = 0; kv_head < spec.kv_heads; ++kv_head) {
    for (int64_t split = 0; split < splits; ++split) {
      entry.kernel->run(params,
                        {.seq = 0,
                         .kv_head = kv_head,
                         .row_begin = 0,
                         .row_end = rows,
                         .kv_begin = cuts[static_cast<size_t>(split)],
                         .kv_end = cuts[static_cast<size_t>(split) + 1],
                         .num_splits = static_cast<int32_t>(splits),
                         .partial_row = split * state_rows},
                        scratch);
    }
    std::vector<float> merged(static_cast<size_t>(spec.v_head_dim));
    for (int64_t i = 0; i < state_rows; ++i) {
      const auto head = static_cast<size_t>(kv_head * shape.group() + i % shape.group());
      const auto row = static_cast<size_t>(i / shape.group());
      const float lse =
          MergeStateRow({.out = scratch.partial_out + i * spec.v_head_dim,
                         .out_stride = state_rows * spec.v_head_dim,
                         .lse = scratch.partial_lse + i,
                         .lse_stride = state_rows,
                         .n = static_cast<int>(splits)},
                        spec.has_sinks ? std::optional<float>(batch.sinks()[head]) : std::nullopt,
                        spec.v_head_dim, merged.data());
      for (size_t d = 0; d < merged.size(); ++d) {
        result.out[(row * static_cast<size_t>(spec.q_heads) + head) * merged.size() + d] = merged[d];
      }
      result.lse[head * static_cast<size_t>(rows) + row] = lse;
    }
  }
  EXPECT_TRUE(partial_out.GuardsIntact() && partial_lse.GuardsIntact() && thread.GuardsIntact());
  return result;
}

}  // namespace attest::testing
