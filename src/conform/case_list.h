// The one list of shapes and features that every attention kernel is run on: by the unit tests, by
// `attest conform` and by the benchmarks. A kernel either refuses a case with a reason or computes it within
// the budget; adding a kernel adds no case of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "conform/batch.h"

namespace attest::conform {

struct AttentionCase {
  std::string name;
  AttentionSpec spec;
  std::vector<int32_t> q_len, kv_len;
  std::string capability = {};  // the row of the report's matrix that it belongs to
  BatchOptions options = {.seed = 7};
};

// scale 1 / sqrt(head_dim), bf16 pages of 16 slots, LSE wanted.
[[nodiscard]] AttentionSpec MakeSpec(int q_heads, int kv_heads, int head_dim);

// Every feature with every phase in one batch: what the unit tests run kernel by kernel.
[[nodiscard]] std::vector<AttentionCase> AttentionCases();
// Every declared value of every dimension: each head size, group, page size, dtype, layout and descale shape,
// and pairs of features. `quick` keeps about one in eight of the long dimensions.
[[nodiscard]] std::vector<AttentionCase> SweepCases(bool quick);
// One problem drawn from (seed, index): any combination of features, lengths and layouts.
[[nodiscard]] AttentionCase RandomCase(uint64_t seed, uint64_t index);

// What the benchmarks time: `seqs` sequences of the same lengths.
struct TimedCase {
  int q_heads = 0, kv_heads = 0, head_dim = 0;
  int q_len = 0, kv_len = 0, seqs = 0;
  DType kv_dtype = DType::kBF16;
};
[[nodiscard]] std::vector<TimedCase> TimedCases();

// A spec, lengths and options in words, naming only what differs from the plain call (1 of 1 heads of 64,
// bf16 pages of 16 in HND order, causal): "q_len [1] kv_len [2] head_dim 8 window_left 0".
[[nodiscard]] std::string DescribeCase(const AttentionCase& attention_case);
// The call that DescribeCase says nothing about.
[[nodiscard]] AttentionSpec PlainSpec();

}  // namespace attest::conform
