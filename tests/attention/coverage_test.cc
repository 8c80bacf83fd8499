// All small batches: up to four sequences of 0, 1, 2, 3 or 5 new tokens with 0, 1, 15, 16 or 17 tokens of
// context, in every order. Each row is computed by exactly one group and equals the reference.
//
// Each of the 25 shapes exists in four variants with other data, one per place in the batch, so that a row
// computed from the wrong sequence shows. All live in one pool and their answers are computed once.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"
#include "tests/support/sanitizers.h"

namespace attest::testing {
namespace {

constexpr int32_t kQueryLengths[] = {0, 1, 2, 3, 5};
constexpr int32_t kContexts[] = {0, 1, 15, 16, 17};
constexpr int kPlaces = 4;
constexpr int kShapes = 25;

struct World {
  AttentionBatch batch;
  AttentionResult oracle;
  ErrorBudget budget;
};

World MakeWorld() {
  AttentionSpec spec = MakeSpec(2, 1, 8);
  spec.wants_lse = false;
  std::vector<int32_t> q, kv;
  for (int i = 0; i < kShapes * kPlaces; ++i) {
    const int shape = i % kShapes;
    q.push_back(kQueryLengths[shape / 5]);
    kv.push_back(kQueryLengths[shape / 5] + kContexts[shape % 5]);
  }
  World world{.batch = AttentionBatch(spec, q, kv, {.seed = 11}), .oracle = {}, .budget = {}};
  world.oracle = RunOracle(world.batch);
  world.budget = BudgetOf(world.batch, world.oracle, AttentionArithmetic::kF32);
  return world;
}

// Runs the batch made of the given shapes and compares every row.
// `kernel`, when given, must run for every phase it accepts.
::testing::AssertionResult BatchIsRight(World& world, const AttentionRouter& router,
                                        const KernelEntry* kernel, std::span<const int> shapes) {
  const AttentionSpec& spec = world.batch.spec();
  const int64_t row = int64_t{spec.q_heads} * spec.head_dim;
  int32_t q_len[kPlaces], kv_len[kPlaces];
  static std::vector<int32_t> tables;
  static std::vector<float> q, out;
  tables.clear();
  q.clear();
  AttentionBatch::Output none;
  AttentionParams params = world.batch.Params(none);
  const auto* all_q = reinterpret_cast<const float*>(params.q.data);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int source = static_cast<int>(i) * kShapes + shapes[i];
    q_len[i] = world.batch.q_begin().length(source);
    kv_len[i] = world.batch.kv_len()[static_cast<size_t>(source)];
    tables.insert(tables.end(), world.batch.block_ids(source),
                  world.batch.block_ids(source) + world.batch.table_width());
    q.insert(q.end(), all_q + world.batch.q_begin().begin(source) * row,
             all_q + world.batch.q_begin().end(source) * row);
  }
  const CuSeqlens q_begin = CuSeqlens::FromLengths({q_len, shapes.size()}).value();
  const AttentionLengths lengths{.q_begin = &q_begin,
                                 .kv_len = {kv_len, shapes.size()},
                                 .block_tables = {.ids = tables.data(),
                                                  .row_stride = world.batch.table_width(),
                                                  .num_seqs = static_cast<int>(shapes.size())},
                                 .owned = {}};
  const auto plan = PlanAttention(router, spec, lengths, 1);
  if (!plan) return ::testing::AssertionFailure() << plan.error().message;
  int tokens = 0, seqs = 0;
  for (const PlannedRoute& route : PlannedRoutes(**plan)) {
    tokens += route.num_tokens;
    seqs += route.num_seqs;
    if (kernel == nullptr) continue;
    const bool accepts = router.forced_for(route.phase) == kernel->contract.name;
    if (route.kernel != (accepts ? kernel->contract.name : "attention_general")) {
      return ::testing::AssertionFailure() << route.kernel << " ran for " << AttentionPhaseName(route.phase);
    }
  }
  if (tokens != q_begin.total()) return ::testing::AssertionFailure() << tokens << " rows are in a group";
  const auto with_rows = std::count_if(q_len, q_len + shapes.size(), [](int32_t n) { return n > 0; });
  if (seqs != with_rows) return ::testing::AssertionFailure() << seqs << " sequences are in a group";
  out.assign(q.size(), kNaN);
  const std::array<int64_t, 3> shape{q_begin.total(), spec.q_heads, spec.head_dim};
  Attend(**plan,
         {.q = View<const float, 3>::Dense(q.data(), shape),
          .out = View<float, 3>::Dense(out.data(), shape),
          .kv = &world.batch.paged(),
          .poison_outputs = false},
         Team(1));
  int64_t at = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int source = static_cast<int>(i) * kShapes + shapes[i];
    const int64_t first = world.batch.q_begin().begin(source) * row;
    const double* expected = world.oracle.out.data() + first;
    for (int64_t j = 0; j < q_len[i] * row; ++j, ++at) {
      const double allowed = world.budget.OutOf(static_cast<size_t>((first + j) / spec.v_head_dim));
      if (!(std::abs(static_cast<double>(out[static_cast<size_t>(at)]) - expected[j]) <= allowed)) {
        return ::testing::AssertionFailure()
               << "sequence " << i << " of " << shapes.size() << ", q_len " << q_len[i] << " kv_len "
               << kv_len[i] << ", element " << j << " is " << out[static_cast<size_t>(at)] << ", expected "
               << expected[j];
      }
    }
  }
  return ::testing::AssertionSuccess();
}

void AllBatches(World& world, const KernelEntry* kernel, const std::string& forced, int max_seqs,
                int stride) {
  const AttentionRouter router = AttentionRouter::Create(ThisCpu(), forced).value();
  for (int n = 1; n <= max_seqs; ++n) {
    int count = 1;
    for (int i = 0; i < n; ++i) count *= kShapes;
    // With a stride (prime to 25) every n-th batch of the largest size runs.
    for (int code = 0; code < count; code += n == max_seqs ? stride : 1) {
      int shapes[kPlaces] = {}, rest = code;
      for (int i = 0; i < n; ++i, rest /= kShapes) shapes[i] = rest % kShapes;
      const auto right = BatchIsRight(world, router, kernel, {shapes, static_cast<size_t>(n)});
      ASSERT_TRUE(right) << forced << " on batch " << code << " of " << n;
    }
  }
}

constexpr int kSampled = kSanitized ? 101 : 1;  // sanitizers cost tenfold

TEST(AttentionCoverage, EveryRowOfEverySmallBatchIsComputedOnceByTheChosenKernels) {
  World world = MakeWorld();
  AllBatches(world, nullptr, "", 4, kSampled);
}

TEST(AttentionCoverage, EveryRowOfEverySmallBatchIsComputedOnceByEachKernelForcedByName) {
  World world = MakeWorld();
  for (const KernelEntry* entry : RunnableKernels()) {
    const std::string forced = ForcedWherePossible(*entry, world.batch.spec());
    if (forced.empty()) continue;
    AllBatches(world, entry, forced, 3, entry->contract.name == "reference" ? 101 : kSampled);
  }
}

}  // namespace
}  // namespace attest::testing
