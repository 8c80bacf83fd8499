// The plan behind the C handle: owns copies of everything a plan looks at.
#pragma once

#include <attest/attention_c.h>

#include <vector>

#include "attention/attention.h"
#include "attention/plan.h"
#include "bindings/reasons.h"
#include "tensor/cu_seqlens.h"

struct attest_attention_plan {
  attest::AttentionSpec spec;
  attest::CuSeqlens q_begin;
  std::vector<int32_t> kv_len, kv_begin, kv_end, owned;
  std::vector<int32_t> tables;   // [num_seqs, table_width], only entries of existing keys
  std::vector<int32_t> k_begin;  // contiguous: [num_seqs + 1]
  attest::AttentionPlanPtr plan;
};

namespace attest::bindings {

inline constexpr int32_t kMaxDim = 4096;
inline constexpr int32_t kMaxHeads = 4096;
inline constexpr int32_t kMaxBlockSize = 65536;
inline constexpr int32_t kMaxShares = 4096;
inline constexpr int64_t kMaxRows = int64_t{1} << 24;
inline constexpr int64_t kMaxTableEntries = int64_t{1} << 28;  // 1 GiB

// The spec of a C struct. Adds a reason for every member that makes no sense.
[[nodiscard]] AttentionSpec SpecOf(const attest_attention_spec& spec, Reasons& reasons);

}  // namespace attest::bindings
