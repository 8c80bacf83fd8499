// Random combinations of every feature on every role at once, and calls over parts of the keys that merge
// into the call over all of them.
#include <gtest/gtest.h>

#include "attention/call.h"
#include "kernels/merge_states.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

AttentionSpec RandomSpec(std::mt19937& random) {
  const auto pick = [&random](auto... values) {
    using T = std::common_type_t<decltype(values)...>;
    const T list[] = {static_cast<T>(values)...};
    return list[random() % std::size(list)];
  };
  const auto one_in = [&random](int n) { return random() % static_cast<uint32_t>(n) == 0; };
  const int group = pick(1, 2, 3, 4, 5, 7, 16), kv_heads = pick(1, 2, 3);
  AttentionSpec spec = MakeSpec(group * kv_heads, kv_heads, 8);
  // Half the shapes are ones the fast kernels take.
  const bool plain = one_in(2);
  spec.head_dim = plain ? pick(32, 64, 96, 128) : 8 + static_cast<int>(random() % 249);
  spec.v_head_dim = one_in(2) ? spec.head_dim
                    : plain   ? pick(32, 64, 128)
                              : 8 + static_cast<int>(random() % 249);
  spec.scale = one_in(3) ? pick(0.03f, 0.5f, -0.1f) : 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  spec.q_dtype = plain ? DType::kF32 : pick(DType::kF32, DType::kBF16, DType::kF16);
  spec.out_dtype = plain ? DType::kF32 : pick(DType::kF32, DType::kBF16, DType::kF16);
  spec.kv_dtype =
      plain ? pick(DType::kBF16, DType::kF32)
            : pick(DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8);
  if (spec.kv_dtype == DType::kI8) spec.scale /= 40.0f;
  spec.layout = pick(KvLayout::kPagedHnd, KvLayout::kPagedNhd, KvLayout::kContiguous);
  spec.block_size = one_in(2) ? pick(16, 32) : 1 + static_cast<int>(random() % 256);
  spec.causal = !one_in(3);
  if (one_in(3)) spec.window_left = static_cast<int32_t>(random() % 40);
  if (one_in(4)) spec.window_right = static_cast<int32_t>(random() % 9);
  if (one_in(5)) spec.chunk = 1 + static_cast<int32_t>(random() % 40);
  if (!plain && one_in(3)) spec.sink_tokens = static_cast<int32_t>(random() % 6);
  if (one_in(3)) spec.softcap = pick(0.5f, 4.0f);
  spec.has_alibi = one_in(3);
  spec.has_sinks = one_in(3);
  spec.has_k_descale = !plain && one_in(2);
  spec.has_v_descale = !plain && one_in(2);
  spec.wants_lse = !one_in(4);
  return spec;
}

// Decode with and without context, prefill, extend, speculative rows of several lengths, padding (q_len 0)
// and rows without keys.
const std::vector<int32_t> kQLen{1, 4, 0, 9, 1, 2, 12, 3, 0, 2, 5},
    kKvLen{37, 21, 5, 9, 1, 40, 70, 0, 0, 19, 3};

using Budgets = std::map<AttentionArithmetic, ErrorBudget>;
Budgets BudgetsOf(AttentionBatch& batch, const AttentionResult& oracle) {
  Budgets budgets;
  for (const AttentionArithmetic arithmetic : {AttentionArithmetic::kF32, AttentionArithmetic::kBf16}) {
    budgets[arithmetic] = BudgetOf(batch, oracle, arithmetic);
  }
  return budgets;
}

std::string Words(const AttentionSpec& s) {
  std::string text = ::testing::PrintToString(s.q_heads) + "/" + ::testing::PrintToString(s.kv_heads) +
                     " heads of " + ::testing::PrintToString(s.head_dim) + "/" +
                     ::testing::PrintToString(s.v_head_dim) + " block " +
                     ::testing::PrintToString(s.block_size) + " " + KvLayoutName(s.layout) + " kv " +
                     std::string(DTypeName(s.kv_dtype)) + " q " + std::string(DTypeName(s.q_dtype));
  if (!s.causal) text += " not causal";
  if (s.window_left) text += " left " + std::to_string(*s.window_left);
  if (s.window_right) text += " right " + std::to_string(*s.window_right);
  if (s.chunk) text += " chunk " + std::to_string(*s.chunk);
  if (s.softcap > 0) text += " softcap";
  return text + (s.has_alibi ? " alibi" : "") + (s.has_sinks ? " sinks" : "");
}

TEST(EveryFeature, InRandomCombinationOnEveryRoleIsRightOrRefused) {
  std::mt19937 random(20);
  int fast = 0;
  for (int i = 0; i < 40; ++i) {
    const AttentionSpec spec = RandomSpec(random);
    SCOPED_TRACE(::testing::Message() << "combination " << i << ": " << Words(spec));
    AttentionBatch batch(spec, kQLen, kKvLen, {.seed = static_cast<uint32_t>(i)});
    const AttentionResult oracle = RunOracle(batch);
    const Budgets budgets = BudgetsOf(batch, oracle);
    for (const KernelEntry* entry : RunnableKernels()) {
      const std::string forced = ForcedWherePossible(*entry, spec);
      if (entry->contract.name == "reference")
        continue;  // the oracle itself; its conformance test is elsewhere
      const bool takes_all = entry->contract.name.starts_with("attention_general");
      if (takes_all) {  // refuse nothing, in no phase
        for (const AttentionPhase phase : kAttentionPhases) {
          EXPECT_TRUE(Check(entry->contract, {.spec = spec, .phase = phase}, ThisCpu()).empty());
        }
      }
      if (forced.empty()) continue;
      fast += takes_all ? 0 : 1;
      SCOPED_TRACE(entry->contract.name);
      const auto result = RunAttention(batch, forced, {.num_threads = 3});
      ASSERT_TRUE(result) << result.error().message;
      ExpectRan(*result, *entry, spec);
      ASSERT_TRUE(
          Within(*result, oracle, budgets.at(entry->contract.arithmetic), spec.v_head_dim, spec.q_heads));
      // Bits do not depend on the number of threads, nor on the run.
      for (const int threads : {1, 2}) {
        const auto again = RunAttention(batch, forced, {.num_threads = threads});
        ASSERT_TRUE(again && *again == *result) << threads << " threads";
      }
    }
  }
  EXPECT_GT(fast, 25);
}

// Runs the keys [begin[i], end[i]) of each sequence.
void RunPart(AttentionBatch& batch, const std::string& forced, const std::vector<int32_t>& begin,
             const std::vector<int32_t>& end, const AttentionSpec& spec, AttentionBatch::Output& output) {
  const auto router = AttentionRouter::Create(ThisCpu(), forced).value();
  AttentionLengths lengths = batch.lengths();
  lengths.kv_begin = begin;
  lengths.kv_end = end;
  const auto plan = PlanAttention(router, spec, lengths, 2);
  EXPECT_TRUE(plan) << plan.error().message;
  AttentionParams params = batch.Tensors(output);
  if (!spec.has_sinks) params.sinks = nullptr;
  AttendParams(**plan, params, Team(2), false);
}

// Chunked contexts and shared prefixes: any cut of each sequence's keys, with windows, chunks, softcap and
// ALiBi, and the sink counted by one part only.
TEST(KeyRanges, PartsMergeIntoTheWhole) {
  std::mt19937 random(21);
  int ran = 0;
  for (int i = 0; i < 16; ++i) {
    AttentionSpec spec = RandomSpec(random);
    spec.wants_lse = true;
    spec.out_dtype = DType::kF32;  // parts rounded to 16 bits would round twice
    AttentionBatch batch(spec, kQLen, kKvLen, {.seed = static_cast<uint32_t>(i)});
    const AttentionResult oracle = RunOracle(batch);
    const Budgets budgets = BudgetsOf(batch, oracle);
    const auto cut_of = [&](int percent) {
      std::vector<int32_t> cut;
      for (const int32_t kv_len : kKvLen) cut.push_back(kv_len * percent / 100);
      return cut;
    };
    const std::vector<std::vector<int32_t>> cuts{cut_of(0), cut_of(static_cast<int>(random() % 60)),
                                                 cut_of(60), cut_of(100)};
    for (const KernelEntry* entry : RunnableKernels()) {
      const std::string forced = ForcedWherePossible(*entry, spec);
      if (forced.empty()) continue;
      SCOPED_TRACE(::testing::Message()
                   << "combination " << i << ": " << Words(spec) << " " << entry->contract.name);
      std::vector<AttentionBatch::Output> outputs;
      std::vector<StateTensor> states;
      for (size_t part = 0; part + 1 < cuts.size(); ++part) {
        outputs.push_back(batch.MakeOutput(kNaN));
        AttentionSpec part_spec = spec;
        part_spec.has_sinks = spec.has_sinks && part == 1;
        RunPart(batch, forced, cuts[part], cuts[part + 1], part_spec, outputs.back());
        const AttentionParams tensors = batch.Tensors(outputs.back());
        states.push_back({.out = {tensors.out.data, tensors.out.shape, tensors.out.stride},
                          .dtype = DType::kF32,
                          .lse = tensors.lse});
      }
      AttentionBatch::Output merged = batch.MakeOutput(kNaN);
      const AttentionParams to = batch.Tensors(merged);
      MergeTokens({.states = states, .out = to.out, .out_dtype = DType::kF32, .lse = to.lse}, 0,
                  batch.num_tokens());
      AttentionResult result;
      for (int32_t token = 0; token < batch.num_tokens(); ++token) {
        for (int head = 0; head < spec.q_heads; ++head) {
          for (int d = 0; d < spec.v_head_dim; ++d)
            result.out.push_back(batch.OutElement(merged, token, head, d));
        }
      }
      for (int64_t n = 0; n < std::ssize(oracle.lse); ++n) result.lse.push_back(merged.lse.as<float>()[n]);
      ASSERT_TRUE(
          Within(result, oracle, budgets.at(entry->contract.arithmetic), spec.v_head_dim, spec.q_heads));
      ++ran;
    }
  }
  EXPECT_GT(ran, 45);
}

TEST(KeyRanges, TableEntriesOutsideTheRangeAreNotRead) {
  AttentionSpec spec = MakeSpec(4, 2, 32);
  AttentionBatch batch(spec, {2}, {64}, {.seed = 3});
  for (int i = 0; i < 2; ++i) batch.block_ids(0)[i] = std::numeric_limits<int32_t>::max();
  AttentionBatch::Output output = batch.MakeOutput(kNaN);
  RunPart(batch, "", {32}, {64}, spec, output);
  for (int i = 0; i < 2 * 4 * 32; ++i) EXPECT_TRUE(std::isfinite(output.out.as<float>()[i]));
}

TEST(KeyRanges, OutsideTheSequenceAreRefusedByName) {
  const AttentionSpec spec = MakeSpec(4, 2, 32);
  AttentionBatch batch(spec, {2, 1}, {64, 3});
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  const auto message = [&](std::vector<int32_t> begin, std::vector<int32_t> end) {
    AttentionLengths lengths = batch.lengths();
    lengths.kv_begin = begin;
    lengths.kv_end = end;
    const auto plan = PlanAttention(router, spec, lengths, 1);
    return plan ? std::string("accepted") : plan.error().message;
  };
  EXPECT_EQ(message({0, 0}, {64, 4}), "sequence 1: keys [0, 4) are not a range within its kv_len 3");
  EXPECT_EQ(message({9, 0}, {8, 3}), "sequence 0: keys [9, 8) are not a range within its kv_len 64");
  EXPECT_EQ(message({-1, 0}, {}), "sequence 0: keys [-1, 64) are not a range within its kv_len 64");
  EXPECT_EQ(message({0}, {}), "kv_begin has 1 entries, expected num_seqs = 2 or none");
}

// One plan, several calls at the same time, each in its own workspace, shares run by whoever comes.
TEST(AttentionCall, SharesRunInAnyOrderInAnyWorkspace) {
  const AttentionSpec spec = MakeSpec(6, 2, 64);
  AttentionBatch batch(spec, {1, 40, 3, 1}, {900, 200, 300, 5}, {.seed = 11});
  const auto expected = RunAttention(batch, "", {.num_threads = 1});
  ASSERT_TRUE(expected);
  const auto router = AttentionRouter::Create(ThisCpu()).value();
  for (const int shares : {1, 2, 5}) {
    const auto plan = PlanAttention(router, spec, batch.lengths(), shares, PlanScratch::kCallers);
    ASSERT_TRUE(plan);
    const GuardedBytes a((*plan)->scratch_bytes()), b((*plan)->scratch_bytes());
    const AttentionBatch::Output out_a = batch.MakeOutput(kNaN), out_b = batch.MakeOutput(kNaN);
    AttentionCall first(**plan, batch.Tensors(out_a), a.data()),
        second(**plan, batch.Tensors(out_b), b.data());
    Team(3).Run([&](int rank) {  // share s of both calls on rank s mod 3
      for (int share = rank; share < shares; share += 3) {
        second.RunShare(share);
        first.RunShare(shares - 1 - share);
      }
    });
    EXPECT_TRUE(a.GuardsIntact() && b.GuardsIntact());
    for (size_t i = 0; i < expected->out.size(); ++i) {
      ASSERT_EQ(out_a.out.as<float>()[i], expected->out[i]);
      ASSERT_EQ(out_b.out.as<float>()[i], expected->out[i]);
    }
  }
}

}  // namespace
}  // namespace attest::testing
