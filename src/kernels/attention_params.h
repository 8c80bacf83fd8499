// What an attention kernel receives: arithmetic inputs only. Plain data, valid for the call.
//
// Numerics are section "canon" of docs/attention.md. In short, for query row i of sequence b at absolute
// position p = i + (kv_len - q_len): s = scale * <q, k_j>; softcap; ALiBi slope * (j - p); visible iff causal
// (j <= p) and inside the window p - left <= j <= p + right (streaming sink tokens j < sink_tokens are exempt
// from the left limit); softmax in f32 with an optional sink logit that enters the denominator once; a row
// that sees no key is 0 with lse -inf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/cu_seqlens.h"
#include "tensor/dtype.h"
#include "tensor/paged_kv.h"
#include "tensor/view.h"

namespace attest {

// The sequences whose rows a call must write: all of their rows and no others. There is no minimum length and
// no threshold (vLLM PR #28670: an "inclusive skip threshold" silently dropped the shortest rows).
struct OwnedSeqs {
  std::span<const int32_t> seqs;  // indices into the batch, ascending, no duplicates
};

// Contiguous K and V for encoder-style library calls: [total_k, kv_heads, head_dim] with row boundaries.
struct ContiguousKv {
  const void* k = nullptr;
  const void* v = nullptr;
  DType dtype = DType::kF32;
  int64_t k_token_stride = 0, k_head_stride = 0;  // elements
  int64_t v_token_stride = 0, v_head_stride = 0;
  std::span<const int32_t> k_begin;  // [num_seqs + 1]
};

// Multiplier of stored K or V values: value = stored * scale. Strides may be 0 (one scale for all).
struct KvDescale {
  const float* data = nullptr;  // nullptr: 1.0
  int64_t seq_stride = 0;
  int64_t head_stride = 0;
  [[nodiscard]] float at(int seq, int kv_head) const {
    return data == nullptr ? 1.0f : data[seq * seq_stride + kv_head * head_stride];
  }
};

struct AttentionMask {
  bool causal = true;
  std::optional<int32_t> window_left = {};   // tokens left of p that stay visible; p itself always counts
  std::optional<int32_t> window_right = {};  // tokens right of p; causal means 0
  int32_t sink_tokens = 0;                   // streaming sinks: the first keys, exempt from the left limit
  std::optional<int32_t> chunk = {};         // local attention: floor(j / chunk) == floor(p / chunk)
};

// Strides of q and out are in elements of their dtype and the innermost one is 1; take addresses with QRow
// and OutRow, not with View::At, which would count bytes.
struct AttentionParams {
  View<const std::byte, 3> q;  // [num_tokens, q_heads, head_dim], q_dtype
  DType q_dtype = DType::kF32;
  View<std::byte, 3> out;  // [num_tokens, q_heads, v_head_dim], out_dtype
  DType out_dtype = DType::kF32;
  View<float, 2> lse;  // [q_heads, num_tokens], natural log; data == nullptr when not wanted

  const PagedKv* paged = nullptr;  // exactly one of paged and contiguous
  const ContiguousKv* contiguous = nullptr;
  BlockTables block_tables;  // with paged

  const CuSeqlens* q_begin = nullptr;  // [num_seqs + 1]
  std::span<const int32_t> kv_len;     // [num_seqs], keys of each sequence, this step's tokens included
  OwnedSeqs owned;

  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  float scale = 1.0f;
  AttentionMask mask;
  float softcap = 0.0f;                 // 0: off
  const float* alibi_slopes = nullptr;  // [q_heads]
  const float* sinks = nullptr;         // [q_heads], logits compared with final scores
  KvDescale k_descale;
  KvDescale v_descale;

  // Where K or V of one head begins, so many bytes behind `data`. Null where no row has a key: then there may
  // be no memory to point into.
  [[nodiscard]] static const std::byte* KvHead(const void* data, int64_t offset_bytes) {
    return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + offset_bytes;
  }
  // The head_dim query elements, and the v_head_dim output elements, of one token and query head.
  [[nodiscard]] const std::byte* QRow(int64_t token, int64_t head) const {
    return q.data + (token * q.stride[0] + head * q.stride[1]) * BlockBytes(q_dtype);
  }
  [[nodiscard]] std::byte* OutRow(int64_t token, int64_t head) const {
    return out.data + (token * out.stride[0] + head * out.stride[1]) * BlockBytes(out_dtype);
  }
};

}  // namespace attest
