// Everything an attention kernel may depend on, in one value. The contract layer reasons about this struct
// alone: Check, Choose and the plan are pure functions of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "tensor/cu_seqlens.h"
#include "tensor/dtype.h"
#include "tensor/paged_kv.h"

namespace attest {

// Computed from the lengths by PhaseOf, in this order; no flag can disagree with the lengths.
enum class AttentionPhase {
  kDecode,         // q_len == 1 (any context, also none)
  kPrefill,        // q_len == kv_len
  kExtend,         // otherwise: chunked prefill, prefix-cache hits
  kUniformDecode,  // an extend whose sequences all have the same small q_len (speculative tokens)
};
[[nodiscard]] const char* AttentionPhaseName(AttentionPhase phase);
// REQUIRES: 1 <= q_len <= kv_len. Never returns kUniformDecode, which is a property of a group (plan.cc).
[[nodiscard]] AttentionPhase PhaseOf(int32_t q_len, int32_t kv_len);

enum class KvLayout { kContiguous, kPagedHnd, kPagedNhd };
[[nodiscard]] const char* KvLayoutName(KvLayout layout);

// What is fixed at load: one per distinct kind of layer of the model.
struct AttentionSpec {
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  DType q_dtype = DType::kF32;
  DType kv_dtype = DType::kBF16;
  DType out_dtype = DType::kF32;
  KvLayout layout = KvLayout::kPagedHnd;
  int block_size = 16;  // tokens; paged layouts only
  float scale = 1.0f;
  bool causal = true;
  std::optional<int32_t> window_left;
  std::optional<int32_t> window_right;
  std::optional<int32_t> chunk;
  int32_t sink_tokens = 0;
  float softcap = 0.0f;
  bool has_alibi = false;
  bool has_sinks = false;
  bool has_k_descale = false;
  bool has_v_descale = false;
  bool wants_lse = false;
  bool precise = false;  // --compute f32: products and softmax in float32 only
};

// A spec plus one group's lengths.
struct AttentionProblem {
  AttentionSpec spec;
  AttentionPhase phase = AttentionPhase::kPrefill;
  int32_t num_seqs = 0;
  int32_t min_q_len = 0, max_q_len = 0;    // exact
  int32_t min_kv_len = 0, max_kv_len = 0;  // exact
  [[nodiscard]] bool uniform_q_len() const { return min_q_len == max_q_len; }
};

}  // namespace attest
