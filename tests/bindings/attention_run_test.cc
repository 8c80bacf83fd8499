// The C interface computes what the engine's way in computes, bit for bit, on anyone's threads.
#include <gtest/gtest.h>

#include <thread>

#include "tests/bindings/calls.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

void StdThreads(void* context, int32_t count, void (*body)(void*, int32_t), void* state) {
  ++*static_cast<int*>(context);
  std::vector<std::jthread> threads;
  for (int32_t i = count - 1; i >= 0; --i) threads.emplace_back([=] { body(state, i); });
}

std::vector<double> Read(const AttentionBatch& batch, const AttentionBatch::Output& output) {
  std::vector<double> values;
  const AttentionSpec& spec = batch.spec();
  for (int32_t token = 0; token < batch.num_tokens(); ++token) {
    for (int head = 0; head < spec.q_heads; ++head) {
      for (int d = 0; d < spec.v_head_dim; ++d) values.push_back(batch.OutElement(output, token, head, d));
    }
  }
  return values;
}

TEST(AttentionC, GivesTheEnginesBitsForEveryCaseOnAnyThreads) {
  attest_threads* threads = nullptr;
  ASSERT_EQ(attest_threads_create(3, 0, &threads, nullptr), ATTEST_OK);
  int parallel_calls = 0;
  for (const AttentionCase& test_case : AttentionCases()) {
    SCOPED_TRACE(test_case.name);
    AttentionBatch batch(test_case.spec, test_case.q_len, test_case.kv_len, {.seed = 3});
    const auto expected = RunAttention(batch, "");
    ASSERT_TRUE(expected) << expected.error().message;
    for (const int way : {0, 1, 2, 3}) {
      const AttentionBatch::Output output = batch.MakeOutput(kNaN);
      CCall call(batch, output);
      call.options.num_shares = 1 + way;
      ASSERT_EQ(call.Plan(), "");
      attest_error* error = nullptr;
      if (way == 0) call.status = attest_attention_run(call.plan, &call.args, &error);
      if (way == 1) call.status = attest_attention_run_threads(call.plan, &call.args, threads, &error);
      if (way == 2)
        call.status =
            attest_attention_run_parallel(call.plan, &call.args, &StdThreads, &parallel_calls, &error);
      if (way == 3) {
        attest_attention_call* shares = nullptr;
        call.status = attest_attention_begin(call.plan, &call.args, &shares, &error);
        for (const int32_t share : {3, 0, 7, 2, -1})
          attest_attention_run_share(shares, share);  // 1 is left out
        attest_attention_end(shares);
      }
      ASSERT_EQ(CCall::Take(error), "");
      EXPECT_TRUE(output.out.GuardsIntact() && output.lse.GuardsIntact());
      ASSERT_EQ(Read(batch, output), expected->out) << "way " << way;
      if (test_case.spec.wants_lse) {
        for (size_t i = 0; i < expected->lse.size(); ++i)
          ASSERT_EQ(output.lse.as<float>()[i], static_cast<float>(expected->lse[i]));
      }
    }
  }
  EXPECT_EQ(parallel_calls, static_cast<int>(AttentionCases().size()));
  attest_threads_free(threads);
}

TEST(AttentionC, PaddingRowsAndRowsOfOthersStay) {
  const AttentionSpec spec = MakeSpec(4, 2, 32);
  AttentionBatch batch(spec, {2, 3, 1}, {20, 3, 9}, {.seed = 4});
  const AttentionBatch::Output output = batch.MakeOutput(7.0f);
  CCall call(batch, output);
  const int32_t owned[] = {1};
  call.batch.owned_seqs = owned, call.batch.owned_seqs_count = 1;
  ASSERT_EQ(call.Plan(), "");
  ASSERT_EQ(call.Run(), "");
  for (int32_t token = 0; token < 6; ++token) {
    EXPECT_EQ(batch.OutElement(output, token, 0, 0) == 7.0f, token < 2 || token == 5) << token;
  }
  // The last sequence is padding: rows that the batch does not know.
  const AttentionBatch::Output padded = batch.MakeOutput(7.0f);
  CCall shorter(batch, padded);
  shorter.batch.num_seqs = 2, shorter.batch.cu_seqlens_q_count = 3, shorter.batch.kv_lens_count = 2;
  ASSERT_EQ(shorter.Plan(), "");
  ASSERT_EQ(shorter.Run(), "");
  EXPECT_NE(batch.OutElement(padded, 4, 0, 0), 7.0f);
  EXPECT_EQ(batch.OutElement(padded, 5, 0, 0), 7.0f);
}

// Dense tensors without rows have strides of 0.
TEST(AttentionC, BatchesWithoutRowsRun) {
  for (const std::vector<int32_t>& lens : {std::vector<int32_t>{}, {0, 7}}) {
    AttentionBatch batch(MakeSpec(4, 2, 32), std::vector<int32_t>(lens.size(), 0), lens);
    const AttentionBatch::Output output = batch.MakeOutput(7.0f);
    CCall call(batch, output);
    ASSERT_EQ(call.Plan(), "");
    EXPECT_EQ(call.Run(), "");
    EXPECT_EQ(attest_attention_plan_num_routes(call.plan), 0);
  }
  // Rows without keys need no table; found by fuzzing: an address was made from NULL.
  AttentionBatch batch(MakeSpec(4, 2, 32), {1, 2}, {0, 0});
  const AttentionBatch::Output output = batch.MakeOutput(7.0f);
  CCall call(batch, output);
  call.batch.block_tables = nullptr, call.batch.block_tables_count = 0, call.batch.block_table_stride = 99;
  ASSERT_EQ(call.Plan(), "");
  EXPECT_EQ(call.Run(), "");
  EXPECT_EQ(batch.OutElement(output, 2, 3, 31), 0.0f);
}

TEST(AttentionC, OnePlanRunsAtTheSameTimeInSeveralWorkspaces) {
  const AttentionSpec spec = MakeSpec(6, 2, 64);
  AttentionBatch batch(spec, {1, 30, 3}, {700, 60, 200}, {.seed = 5});
  const auto expected = RunAttention(batch, "");
  ASSERT_TRUE(expected);
  std::vector<AttentionBatch::Output> outputs;
  for (int i = 0; i < 4; ++i) outputs.push_back(batch.MakeOutput(kNaN));
  CCall first(batch, outputs[0]);
  ASSERT_EQ(first.Plan(), "");
  {
    std::vector<std::jthread> threads;
    for (AttentionBatch::Output& output : outputs) {
      threads.emplace_back([&] {
        CCall call(batch, output);
        const Bytes64 workspace = Aligned(first.args.workspace_bytes);
        call.args.workspace = workspace.get(), call.args.workspace_bytes = first.args.workspace_bytes;
        for (int i = 0; i < 3; ++i)
          EXPECT_EQ(attest_attention_run(first.plan, &call.args, nullptr), ATTEST_OK);
      });
    }
  }
  for (const AttentionBatch::Output& output : outputs) EXPECT_EQ(Read(batch, output), expected->out);
}

TEST(AttentionC, DeterministicPlansGiveTheSameBitsForAnyNumberOfShares) {
  const AttentionSpec spec = MakeSpec(9, 3, 64);
  AttentionBatch batch(spec, {1, 40, 5, 1}, {900, 300, 400, 6}, {.seed = 6});
  std::vector<double> first;
  for (const int32_t shares : {1, 2, 3, 5, 8}) {
    for (int run = 0; run < 2; ++run) {
      const AttentionBatch::Output output = batch.MakeOutput(kNaN);
      CCall call(batch, output);
      call.options.deterministic = 1;
      call.options.num_shares = shares;
      ASSERT_EQ(call.Plan(), "");
      int calls = 0;
      ASSERT_EQ(attest_attention_run_parallel(call.plan, &call.args, &StdThreads, &calls, nullptr),
                ATTEST_OK);
      if (first.empty()) first = Read(batch, output);
      ASSERT_EQ(Read(batch, output), first) << shares << " shares";
    }
  }
}

// A prefix that three sequences share is one sequence of all their rows, not causal; the suffixes are causal.
TEST(AttentionC, ASharedPrefixIsAMergeOfTwoCalls) {
  constexpr int kPrefix = 48;  // three blocks
  AttentionSpec spec = MakeSpec(4, 2, 64);
  spec.kv_dtype = DType::kF32;
  const std::vector<int32_t> q_len{5, 1, 3}, kv_len{70, 60, 51};
  AttentionBatch batch(spec, q_len, kv_len, {.seed = 7});
  const auto same_prefix = [](int seq, int key, int head, int d) {
    const int owner = key < kPrefix ? 9 : seq;
    return std::sin(static_cast<float>(owner * 7919 + key * 104729 + head * 31 + d * 17));
  };
  batch.FillK(same_prefix);
  batch.FillV(same_prefix);
  const AttentionResult oracle = RunOracle(batch);

  const AttentionBatch::Output prefix_out = batch.MakeOutput(kNaN), suffix_out = batch.MakeOutput(kNaN),
                               merged = batch.MakeOutput(kNaN);
  CCall prefix(batch, prefix_out), suffix(batch, suffix_out), whole(batch, merged);
  prefix.spec.causal = 0;
  const int32_t all_rows[] = {0, 9}, prefix_len[] = {kPrefix};
  prefix.batch.num_seqs = 1;
  prefix.batch.cu_seqlens_q = all_rows, prefix.batch.cu_seqlens_q_count = 2;
  prefix.batch.kv_lens = prefix_len, prefix.batch.kv_lens_count = 1;
  ASSERT_EQ(prefix.Plan(), "");
  ASSERT_EQ(prefix.Run(), "");
  const int32_t from[] = {kPrefix, kPrefix, kPrefix};
  suffix.batch.kv_begin = from;
  ASSERT_EQ(suffix.Plan(), "");
  ASSERT_EQ(suffix.Run(), "");

  const attest_tensor outs[] = {prefix.args.out, suffix.args.out},
                      lses[] = {prefix.args.lse, suffix.args.lse};
  attest_merge_args merge = attest_merge_args_default();
  merge.state_out = outs, merge.state_lse = lses, merge.num_states = 2;
  merge.out = whole.args.out, merge.lse = whole.args.lse;
  attest_error* error = nullptr;
  ASSERT_EQ(attest_merge_states(&merge, nullptr, &error), ATTEST_OK) << CCall::Take(error);
  AttentionResult result{.out = Read(batch, merged), .lse = {}, .routes = {}};
  for (size_t i = 0; i < oracle.lse.size(); ++i) result.lse.push_back(merged.lse.as<float>()[i]);
  EXPECT_TRUE(Within(result, oracle, BudgetOf(batch, oracle, AttentionArithmetic::kF32), spec.v_head_dim,
                     spec.q_heads));
}

// docs/attention.md, "A worked example": every number there.
TEST(AttentionC, TheWorkedExampleOfTheDocument) {
  std::vector<float> q{0.0f, 0.0f, std::log(2.0f), 0.0f}, k{1, 0, 0, 1, 1, 1}, v{1, 0, 0, 2, 4, 4}, out(4),
      lse(2);
  const int32_t starts[] = {0, 2}, lens[] = {3};
  const auto expect_row_1 = [&](float x, float y, float log_sum, auto change) {
    attest_attention_spec spec = attest_attention_spec_default();
    spec.q_heads = spec.kv_heads = 1;
    spec.head_dim = spec.v_head_dim = 2;
    spec.kv_dtype = ATTEST_F32;
    spec.kv_layout = ATTEST_KV_CONTIGUOUS;
    spec.wants_lse = 1;
    attest_attention_batch batch = attest_attention_batch_default();
    batch.num_seqs = 1;
    batch.cu_seqlens_q = starts, batch.cu_seqlens_q_count = 2;
    batch.kv_lens = lens, batch.kv_lens_count = 1;
    attest_attention_args args = attest_attention_args_default();
    args.q = CTensor(q.data(), {2, 1, 2}), args.out = CTensor(out.data(), {2, 1, 2}),
    args.lse = CTensor(lse.data(), {1, 2});
    args.k = CTensor(k.data(), {3, 1, 2}), args.v = CTensor(v.data(), {3, 1, 2});
    change(spec, batch, args);
    attest_attention_plan* plan = nullptr;
    attest_error* error = nullptr;
    ASSERT_EQ(attest_attention_plan_create(&spec, &batch, nullptr, &plan, &error), ATTEST_OK)
        << CCall::Take(error);
    args.workspace_bytes = attest_attention_plan_workspace_bytes(plan);
    const Bytes64 workspace = Aligned(args.workspace_bytes);
    args.workspace = workspace.get();
    ASSERT_EQ(attest_attention_run(plan, &args, &error), ATTEST_OK) << CCall::Take(error);
    attest_attention_plan_free(plan);
    EXPECT_NEAR(out[2], x, 1e-6f);
    EXPECT_NEAR(out[3], y, 1e-6f);
    EXPECT_NEAR(lse[1], log_sum, 1e-6f);
  };
  expect_row_1(2.0f, 2.0f, std::log(5.0f), [](auto&, auto&, auto&) {});
  EXPECT_NEAR(out[0], 0.5f, 1e-6f);
  EXPECT_NEAR(out[1], 1.0f, 1e-6f);
  EXPECT_NEAR(lse[0], std::log(2.0f), 1e-6f);
  expect_row_1(8.0f / 3, 10.0f / 3, std::log(3.0f), [](auto& spec, auto&, auto&) { spec.window_left = 1; });
  const float sink = std::log(5.0f);
  expect_row_1(1.0f, 1.0f, std::log(10.0f), [&](auto& spec, auto&, auto& args) {
    spec.has_sinks = 1;
    args.sinks = CTensor(&sink, {1});
  });
  const int32_t two[] = {2};
  expect_row_1(2.0f / 3, 2.0f / 3, std::log(3.0f), [&](auto&, auto& batch, auto&) { batch.kv_end = two; });
  expect_row_1(4.0f, 4.0f, std::log(2.0f), [&](auto&, auto& batch, auto&) { batch.kv_begin = two; });
}

TEST(AttentionC, NamesRoutesAndExplains) {
  AttentionBatch batch(MakeSpec(4, 2, 36), {1, 6}, {9, 6});
  const AttentionBatch::Output output = batch.MakeOutput(0.0f);
  CCall call(batch, output);
  ASSERT_EQ(call.Plan(), "");
  ASSERT_EQ(attest_attention_plan_num_routes(call.plan), 2);
  const attest_attention_route route = attest_attention_plan_route(call.plan, 0);
  EXPECT_STREQ(route.phase, "decode");
  EXPECT_EQ(std::string(route.kernel).substr(0, 17), "attention_general");
  EXPECT_EQ(route.num_tokens, 1);
  EXPECT_STREQ(attest_attention_plan_route(call.plan, 2).kernel, "");
  char text[64];
  size_t needed = 0;
  ASSERT_EQ(attest_attention_explain(&call.spec, 1, 9, nullptr, text, sizeof text, &needed, nullptr),
            ATTEST_OK);
  EXPECT_EQ(std::string(text).size(), 63u);  // cut, and ended
  std::string whole(needed, '?');
  ASSERT_EQ(attest_attention_explain(&call.spec, 1, 9, nullptr, whole.data(), needed, nullptr, nullptr),
            ATTEST_OK);
  EXPECT_NE(whole.find("head_dim is 36, expected"), std::string::npos);
  EXPECT_NE(whole.find(std::string(route.kernel) + ": runs\n"), std::string::npos);
}

}  // namespace
}  // namespace attest::testing
