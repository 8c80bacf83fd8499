// Everything an attention kernel may depend on, in one value. The contract layer reasons about this struct
// alone: Check, Choose and the plan are pure functions of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
inline constexpr int kNumAttentionPhases = 4;
inline constexpr AttentionPhase kAttentionPhases[kNumAttentionPhases] = {
    AttentionPhase::kDecode, AttentionPhase::kPrefill, AttentionPhase::kExtend,
    AttentionPhase::kUniformDecode};
[[nodiscard]] const char* AttentionPhaseName(AttentionPhase phase);
// The most rows, and the most keys, of one sequence: sums of two lengths, and the tile past the last key,
// stay below 2^31.
inline constexpr int32_t kMaxSeqTokens = 1 << 30;
// REQUIRES: q_len >= 1, kv_len >= 0 (the engine also keeps q_len <= kv_len; the library does not). Never
// returns kUniformDecode.
[[nodiscard]] AttentionPhase PhaseOf(int32_t q_len, int32_t kv_len);

// The most tokens of a uniform multi-token decode.
inline constexpr int32_t kMaxUniformDecodeTokens = 8;
// The phase whose route a sequence takes: PhaseOf, except that an extend of 2..kMaxUniformDecodeTokens tokens
// is kUniformDecode. The plan makes one uniform group per distinct q_len, so the group is uniform by
// construction and a sequence's route depends on its own two lengths alone, whoever shares its batch.
[[nodiscard]] AttentionPhase RoutePhaseOf(int32_t q_len, int32_t kv_len);

// kPagedHnd promises slot_stride == head_dim (one head's slots are consecutive); block and head strides are
// free (K and V may interleave per block). kPagedNhd promises nothing but an innermost stride of 1.
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
  std::optional<int32_t> window_left = {};
  std::optional<int32_t> window_right = {};
  std::optional<int32_t> chunk = {};
  int32_t sink_tokens = 0;
  float softcap = 0.0f;
  bool has_alibi = false;
  bool has_sinks = false;
  bool has_k_descale = false;
  bool has_v_descale = false;
  bool wants_lse = false;
  bool precise = false;  // --compute f32: products and softmax in float32 only
  // --deterministic: a row's bits depend on its own query and position and on the keys it sees, not on the
  // rows computed with it, so prefill, chunks of any size and decode give the same.
  bool rowwise = false;
};

// Why something is refused: the field, its offending value, and what was expected. One per cause; a check
// never stops at the first.
struct Reason {
  std::string field;     // "head_dim"
  std::string value;     // "36"
  std::string expected;  // "a multiple of 8 from 8 to 256"
};
[[nodiscard]] std::string ToString(const Reason& reason);  // "head_dim is 36, expected ..."

// Every field that contradicts itself whatever the kernel; empty: the spec makes sense.
[[nodiscard]] std::vector<Reason> SpecReasons(const AttentionSpec& spec);
// The first of them as an error, kInvalidArgument: heads that do not divide, a negative window (None and -1
// are normalised where configs are read), a block size of 0, quantised pages.
[[nodiscard]] Status ValidateSpec(const AttentionSpec& spec);

// A spec plus one group's lengths. num_seqs == 0: the lengths are not known yet (the check at load).
struct AttentionProblem {
  AttentionSpec spec;
  AttentionPhase phase = AttentionPhase::kPrefill;
  int32_t num_seqs = 0;
  int32_t min_q_len = 0, max_q_len = 0;    // exact
  int32_t min_kv_len = 0, max_kv_len = 0;  // exact
  [[nodiscard]] bool uniform_q_len() const { return min_q_len == max_q_len; }
};

}  // namespace attest
