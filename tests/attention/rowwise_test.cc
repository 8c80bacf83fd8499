// A kernel whose contract says rowwise gives a row the same bits whatever rows are computed with it: the
// whole prompt at once, any chunks of it, single tokens, with companions or alone, on one thread or two.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "conform/subject.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

AttentionSpec RowwiseSpec() {
  AttentionSpec spec;
  spec.q_heads = 6;
  spec.kv_heads = 2;
  spec.head_dim = spec.v_head_dim = 64;
  spec.scale = 0.125f;
  spec.wants_lse = true;
  spec.rowwise = true;
  return spec;
}

template <class Change>
AttentionSpec With(Change change) {
  AttentionSpec spec = RowwiseSpec();
  change(spec);
  return spec;
}

std::vector<AttentionSpec> Specs() {
  return {RowwiseSpec(),
          With([](auto& s) { s.kv_dtype = DType::kF32, s.head_dim = s.v_head_dim = 96; }),
          With([](auto& s) { s.kv_dtype = DType::kF16, s.block_size = 32; }),
          With([](auto& s) { s.kv_dtype = DType::kF8E4M3; }),
          With([](auto& s) { s.kv_dtype = DType::kF8E5M2, s.softcap = 20.0f; }),
          With([](auto& s) { s.kv_dtype = DType::kI8, s.has_k_descale = s.has_v_descale = true; }),
          With([](auto& s) { s.window_left = 20; }),
          With([](auto& s) { s.window_left = 99, s.kv_dtype = DType::kF32; }),
          With([](auto& s) { s.has_alibi = true; }),
          With([](auto& s) { s.has_sinks = true, s.q_heads = 2; }),
          With([](auto& s) { s.chunk = 24; })};
}

constexpr int32_t kKeys = 300;

// Row 0 of the result is position kv_len - q_len.
void ExpectSameRows(const AttentionResult& whole, const AttentionResult& part, int32_t part_first_token,
                    int32_t first_position, int32_t rows, const AttentionSpec& spec,
                    const std::string& what) {
  const auto width = static_cast<size_t>(spec.q_heads * spec.v_head_dim);
  for (int32_t row = 0; row < rows; ++row) {
    const double* a = whole.out.data() + static_cast<size_t>(first_position + row) * width;
    const double* b = part.out.data() + static_cast<size_t>(part_first_token + row) * width;
    ASSERT_EQ(std::memcmp(a, b, width * sizeof(double)), 0) << what << ", position " << first_position + row;
  }
}

TEST(Rowwise, ARowHasTheSameBitsInAnyChunkAndCompany) {
  std::mt19937 random(5);
  int kernels = 0;
  for (const KernelEntry* entry : conform::RunnableKernels()) {
    if (!entry->contract.rowwise) continue;
    ++kernels;
    for (const AttentionSpec& spec : Specs()) {
      if (!Check(entry->contract, {.spec = spec}, conform::ThisCpu()).empty()) continue;
      const std::string name(entry->contract.name);
      AttentionBatch prompt(spec, {kKeys}, {kKeys}, {.seq_ids = {3}});
      prompt.FillRandom();
      const auto whole = RunAttention(prompt, name, {.num_threads = 1});
      ASSERT_TRUE(whole) << name << ": " << whole.error().message;
      const int rounds = name == "reference" ? 1 : 4;
      for (int round = 0; round < rounds; ++round) {
        for (int32_t end = 0; end < kKeys;) {
          const int32_t most = round == 0 ? kKeys / 2 : round == 1 ? 40 : 9;
          const auto wanted = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(most));
          const int32_t count = std::min(kKeys - end, wanted);
          end += count;
          // Behind a companion of a few rows, in a third of the cases.
          const bool alone = random() % 3 != 0;
          const std::vector<int32_t> q_lens = alone ? std::vector{count} : std::vector{5, count};
          const std::vector<int32_t> kv_lens = alone ? std::vector{end} : std::vector{70, end};
          AttentionBatch batch(spec, q_lens, kv_lens,
                               {.seq_ids = alone ? std::vector<int32_t>{3} : std::vector<int32_t>{8, 3}});
          batch.FillRandom();
          const auto part = RunAttention(batch, name, {.num_threads = 1 + static_cast<int>(random() % 2)});
          ASSERT_TRUE(part) << name << ": " << part.error().message;
          ExpectSameRows(*whole, *part, alone ? 0 : 5, end - count, count, spec,
                         name + " " + std::string(DTypeName(spec.kv_dtype)));
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_GE(kernels, 3);
}

TEST(Rowwise, KernelsThatDoNotPromiseItRefuse) {
  for (const KernelEntry* entry : KernelList()) {
    if (entry->contract.rowwise) continue;
    bool named = false;
    for (const AttentionPhase phase : kAttentionPhases) {
      for (const Reason& reason :
           Check(entry->contract, {.spec = RowwiseSpec(), .phase = phase}, conform::ThisCpu())) {
        named |= reason.field == "rowwise";
      }
    }
    EXPECT_TRUE(named) << entry->contract.name;
  }
}

TEST(Rowwise, EveryPhaseHasOneKernel) {
  std::string first;
  for (const AttentionPhase phase : kAttentionPhases) {
    const auto route = Choose({.spec = RowwiseSpec(), .phase = phase}, conform::ThisCpu());
    ASSERT_TRUE(route) << route.error().message;
    if (first.empty()) first = route->name();
    EXPECT_EQ(route->name(), first);
  }
}

}  // namespace
}  // namespace attest::testing
