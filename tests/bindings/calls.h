// A small call through the C interface, with every tensor owned, for tests that change one thing.
#pragma once

#include <attest/attention_c.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tests/support/attention_batch.h"

namespace attest::testing {

inline int32_t CType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ATTEST_F32;
    case DType::kF16:
      return ATTEST_F16;
    case DType::kBF16:
      return ATTEST_BF16;
    case DType::kF8E4M3:
      return ATTEST_F8_E4M3FN;
    case DType::kF8E5M2:
      return ATTEST_F8_E5M2;
    default:
      return ATTEST_I8;
  }
}

template <class T, size_t kRank>
attest_tensor CTensor(T* data, DType dtype, const std::array<int64_t, kRank>& shape,
                      const std::array<int64_t, kRank>& stride) {
  attest_tensor t{};
  t.data = const_cast<void*>(static_cast<const void*>(data));
  t.dtype = CType(dtype);
  t.rank = static_cast<int32_t>(kRank);
  for (size_t i = 0; i < kRank; ++i) {
    t.shape[i] = shape[i];
    t.stride[i] = stride[i];
  }
  return t;
}
inline attest_tensor CTensor(const float* data, std::initializer_list<int64_t> shape) {
  return attest_tensor_dense(const_cast<float*>(data), ATTEST_F32, static_cast<int32_t>(shape.size()),
                             shape.begin());
}

struct FreeBytes {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using Bytes64 = std::unique_ptr<std::byte[], FreeBytes>;
inline Bytes64 Aligned(size_t bytes) { return Bytes64(new (std::align_val_t{64}) std::byte[bytes]); }

// The C structs of a conformance batch.
struct CCall {
  CCall(AttentionBatch& b, const AttentionBatch::Output& output)
      : spec(attest_attention_spec_default()),
        batch(attest_attention_batch_default()),
        options(attest_attention_options_default()),
        args(attest_attention_args_default()) {
    const AttentionSpec& s = b.spec();
    spec.q_heads = s.q_heads, spec.kv_heads = s.kv_heads, spec.head_dim = s.head_dim,
    spec.v_head_dim = s.v_head_dim;
    spec.q_dtype = CType(s.q_dtype), spec.kv_dtype = CType(s.kv_dtype), spec.out_dtype = CType(s.out_dtype);
    spec.kv_layout = s.layout == KvLayout::kContiguous ? ATTEST_KV_CONTIGUOUS : ATTEST_KV_PAGED;
    spec.block_size = s.block_size, spec.scale = s.scale, spec.causal = s.causal ? 1 : 0;
    spec.window_left = s.window_left.value_or(ATTEST_NO_LIMIT),
    spec.window_right = s.window_right.value_or(ATTEST_NO_LIMIT);
    spec.chunk = s.chunk.value_or(ATTEST_NO_LIMIT), spec.sink_tokens = s.sink_tokens,
    spec.softcap = s.softcap;
    spec.has_alibi = s.has_alibi ? 1 : 0, spec.has_sinks = s.has_sinks ? 1 : 0;
    spec.has_k_descale = s.has_k_descale ? 1 : 0, spec.has_v_descale = s.has_v_descale ? 1 : 0;
    spec.wants_lse = s.wants_lse ? 1 : 0, spec.precise = s.precise ? 1 : 0;
    const AttentionLengths lengths = b.lengths();
    starts.assign(b.q_begin().offsets().begin(), b.q_begin().offsets().end());
    kv_lens = b.kv_len();
    batch.num_seqs = b.num_seqs();
    batch.cu_seqlens_q = starts.data(), batch.cu_seqlens_q_count = static_cast<int64_t>(starts.size());
    batch.kv_lens = kv_lens.data(), batch.kv_lens_count = static_cast<int64_t>(kv_lens.size());
    const AttentionParams p = b.Tensors(output);
    if (p.paged != nullptr) {
      batch.block_tables = lengths.block_tables.ids;
      batch.block_table_stride = lengths.block_tables.row_stride;
      batch.block_tables_count = lengths.block_tables.row_stride * b.num_seqs();
      batch.num_blocks = p.paged->num_blocks;
      const auto tensor_of = [&](const KvPages& pages, int dim) {
        return CTensor<void, 4>(pages.data, s.kv_dtype, {p.paged->num_blocks, s.kv_heads, s.block_size, dim},
                                {pages.block_stride, pages.head_stride, pages.slot_stride, 1});
      };
      args.k = tensor_of(p.paged->k, s.head_dim), args.v = tensor_of(p.paged->v, s.v_head_dim);
    } else {
      const int64_t total = p.contiguous->k_begin.back();
      args.k = CTensor<const void, 3>(p.contiguous->k, s.kv_dtype, {total, s.kv_heads, s.head_dim},
                                      {p.contiguous->k_token_stride, p.contiguous->k_head_stride, 1});
      args.v = CTensor<const void, 3>(p.contiguous->v, s.kv_dtype, {total, s.kv_heads, s.v_head_dim},
                                      {p.contiguous->v_token_stride, p.contiguous->v_head_stride, 1});
    }
    args.q = CTensor(p.q.data, s.q_dtype, p.q.shape, p.q.stride);
    args.out = CTensor(p.out.data, s.out_dtype, p.out.shape, p.out.stride);
    if (s.wants_lse) args.lse = CTensor(p.lse.data, DType::kF32, p.lse.shape, p.lse.stride);
    if (s.has_alibi) args.alibi_slopes = CTensor(p.alibi_slopes, {s.q_heads});
    if (s.has_sinks) args.sinks = CTensor(p.sinks, {s.q_heads});
    const auto descale = [&](const KvDescale& d) {
      return CTensor<const float, 2>(d.data, DType::kF32, {b.num_seqs(), s.kv_heads},
                                     {d.seq_stride, d.head_stride});
    };
    if (s.has_k_descale) args.k_descale = descale(p.k_descale);
    if (s.has_v_descale) args.v_descale = descale(p.v_descale);
  }

  // The error text of planning, "" when it succeeds; then the plan is in `plan`, with a workspace.
  std::string Plan() {
    attest_error* error = nullptr;
    attest_attention_plan_free(plan);
    plan = nullptr;
    status = attest_attention_plan_create(&spec, &batch, &options, &plan, &error);
    EXPECT_EQ(status == ATTEST_OK, plan != nullptr);
    EXPECT_EQ(status == ATTEST_OK, error == nullptr);
    if (status == ATTEST_OK) {
      args.workspace_bytes = attest_attention_plan_workspace_bytes(plan);
      workspace = Aligned(args.workspace_bytes);
      args.workspace = workspace.get();
    }
    return Take(error);
  }
  // The error text of a run on the calling thread.
  std::string Run() {
    attest_error* error = nullptr;
    status = attest_attention_run(plan, &args, &error);
    EXPECT_EQ(status == ATTEST_OK, error == nullptr);
    return Take(error);
  }
  static std::string Take(attest_error* error) {
    if (error == nullptr) return "";
    EXPECT_GE(attest_error_count(error), 1);
    for (int32_t i = 0; i < attest_error_count(error); ++i) {
      EXPECT_STRNE(attest_error_value(error, i), "");
      EXPECT_STRNE(attest_error_expected(error, i), "");
    }
    std::string text = attest_error_text(error);
    attest_error_free(error);
    return text;
  }
  ~CCall() { attest_attention_plan_free(plan); }
  CCall(const CCall&) = delete;
  CCall& operator=(const CCall&) = delete;

  std::vector<int32_t> starts, kv_lens;
  attest_attention_spec spec;
  attest_attention_batch batch;
  attest_attention_options options;
  attest_attention_args args;
  attest_attention_plan* plan = nullptr;
  attest_status status = ATTEST_OK;
  Bytes64 workspace;
};

}  // namespace attest::testing
