// Two requests share a prompt of 64 tokens: its keys lie in the cache once, and one call over all rows reads
// them once. Each request's own keys are a second call; the two merge. The answer is compared with one call
// that is told everything. Runs on threads of this program, and stores K and V as fp8.
#include <attest/attention.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace aa = attest::attention;

namespace {

constexpr int64_t kQHeads = 8, kKvHeads = 2, kDim = 64, kBlockSize = 16, kBlocks = 10;
constexpr int32_t kPrefix = 64;

void Must(const aa::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s:\n%s\n", what, status.error().text.c_str());
  std::exit(1);
}
template <class T>
T Must(aa::Result<T> result, const char* what) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s:\n%s\n", what, result.error().text.c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// The caller's own parallel loop: a thread pool, OpenMP or a task system in real life.
const auto kParallelFor = [](int32_t count, auto body) {
  std::vector<std::jthread> threads;
  for (int32_t i = 1; i < count; ++i) threads.emplace_back([body, i] { body(i); });
  if (count > 0) body(0);
};

}  // namespace

int main() {
  std::vector<uint8_t> k_cache(kBlocks * kKvHeads * kBlockSize * kDim), v_cache(k_cache.size());
  const aa::Tensor k_pages =
      aa::PagesHnd(k_cache.data(), aa::DType::kF8E4M3, kBlocks, kKvHeads, kBlockSize, kDim);
  const aa::Tensor v_pages =
      aa::PagesHnd(v_cache.data(), aa::DType::kF8E4M3, kBlocks, kKvHeads, kBlockSize, kDim);

  // Blocks 1 to 4 hold the prompt; request 0 goes on in block 5, request 1 in blocks 7 and 6.
  constexpr int64_t kTableWidth = 6;
  const std::vector<int32_t> tables = {1, 2, 3, 4, 5, -1, 1, 2, 3, 4, 7, 6};
  const std::vector<int32_t> kv_lens = {kPrefix + 5, kPrefix + 20};
  const std::vector<int32_t> starts = {0, 1, 4};  // one new row, and three
  constexpr int64_t kRows = 4;

  // Keys and values of everything in the cache, quantised with one scale per KV head.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<int64_t> slots;
  for (int32_t t = 0; t < kv_lens[0]; ++t)
    slots.push_back(tables[size_t(t / kBlockSize)] * kBlockSize + t % kBlockSize);
  for (int32_t t = kPrefix; t < kv_lens[1]; ++t) {
    slots.push_back(tables[size_t(kTableWidth + t / kBlockSize)] * kBlockSize + t % kBlockSize);
  }
  const auto tokens = static_cast<int64_t>(slots.size());
  std::vector<float> k(size_t(tokens * kKvHeads * kDim)), v(k.size()), q(size_t(kRows * kQHeads * kDim));
  for (auto* values : {&k, &v, &q}) {
    for (float& x : *values) x = normal(random);
  }
  const std::vector<float> scale = {0.02f, 0.03f};
  const aa::Tensor per_head = aa::Strided(scale.data(), aa::DType::kF32, {2, kKvHeads}, {0, 1});
  Must(aa::AppendKv({.k = aa::Dense(k.data(), {tokens, kKvHeads, kDim}),
                     .v = aa::Dense(v.data(), {tokens, kKvHeads, kDim}),
                     .slots = slots,
                     .k_pages = k_pages,
                     .v_pages = v_pages,
                     .k_scale = per_head,
                     .v_scale = per_head}),
       "append");

  aa::Spec spec{.q_heads = kQHeads,
                .kv_heads = kKvHeads,
                .head_dim = kDim,
                .v_head_dim = kDim,
                .kv_dtype = aa::DType::kF8E4M3,
                .block_size = kBlockSize,
                .scale = 0.125f,
                .has_k_descale = true,
                .has_v_descale = true,
                .wants_lse = true};
  const auto run = [&](const aa::Spec& of, const aa::Batch& batch, std::vector<float>& out,
                       std::vector<float>& lse) {
    aa::Plan plan = Must(aa::Plan::Create(of, batch, {.num_shares = 2}), "plan");
    const aa::Workspace workspace(plan.workspace_bytes());
    Must(plan.RunParallel({.q = aa::Dense(q.data(), {kRows, kQHeads, kDim}),
                           .out = aa::Dense(out.data(), {kRows, kQHeads, kDim}),
                           .lse = aa::Dense(lse.data(), {kQHeads, kRows}),
                           .k = k_pages,
                           .v = v_pages,
                           .k_descale = per_head,
                           .v_descale = per_head,
                           .workspace = workspace.memory()},
                          kParallelFor),
         "run");
    for (const aa::Route& route : plan.routes()) {
      std::printf("  %.*s: %d row(s) by %.*s\n", int(route.phase.size()), route.phase.data(),
                  route.num_tokens, int(route.kernel.size()), route.kernel.data());
    }
  };
  const auto new_out = [] { return std::vector<float>(size_t(kRows * kQHeads * kDim)); };
  const auto new_lse = [] { return std::vector<float>(size_t(kQHeads * kRows)); };

  std::puts("everything at once");
  const aa::Batch all{.cu_seqlens_q = starts,
                      .kv_lens = kv_lens,
                      .block_tables = tables,
                      .block_table_stride = kTableWidth,
                      .num_blocks = kBlocks};
  auto whole = new_out(), whole_lse = new_lse();
  run(spec, all, whole, whole_lse);

  std::puts("the prefix, as one sequence of all rows that sees all of it");
  aa::Spec prefix_spec = spec;
  prefix_spec.causal = false;
  const std::vector<int32_t> all_rows = {0, int32_t(kRows)}, prefix_len = {kPrefix};
  auto prefix = new_out(), prefix_lse = new_lse();
  run(prefix_spec,
      {.cu_seqlens_q = all_rows,
       .kv_lens = prefix_len,
       .block_tables = tables,
       .block_table_stride = kTableWidth,
       .num_blocks = kBlocks},
      prefix, prefix_lse);

  std::puts("what follows it");
  const std::vector<int32_t> kv_begin = {kPrefix, kPrefix};
  aa::Batch rest = all;
  rest.kv_begin = kv_begin;
  auto suffix = new_out(), suffix_lse = new_lse();
  run(spec, rest, suffix, suffix_lse);

  const aa::Tensor outs[] = {aa::Dense(prefix.data(), {kRows, kQHeads, kDim}),
                             aa::Dense(suffix.data(), {kRows, kQHeads, kDim})};
  const aa::Tensor lses[] = {aa::Dense(prefix_lse.data(), {kQHeads, kRows}),
                             aa::Dense(suffix_lse.data(), {kQHeads, kRows})};
  auto merged = new_out();
  Must(aa::MergeStates(
           {.state_out = outs, .state_lse = lses, .out = aa::Dense(merged.data(), {kRows, kQHeads, kDim})}),
       "merge");

  float largest = 0.0f;
  for (size_t i = 0; i < merged.size(); ++i) largest = std::fmax(largest, std::fabs(merged[i] - whole[i]));
  std::printf("largest difference: %g\n", double(largest));
  return largest < 1e-5f ? 0 : 1;
}
