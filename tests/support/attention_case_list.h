// The one list of shapes and features that every attention kernel is run on. A kernel either refuses a case
// with a reason or computes it within the budget; adding a kernel adds no case of its own.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/problem.h"

namespace attest::testing {

struct AttentionCase {
  std::string name;
  AttentionSpec spec;
  std::vector<int32_t> q_len, kv_len;
};

inline AttentionSpec MakeSpec(int q_heads, int kv_heads, int head_dim) {
  return {.q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .v_head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .wants_lse = true};
}

inline std::vector<AttentionCase> AttentionCases() {
  // Every phase in one batch: decode with and without context, prefill, extend, uniform decode, and an order
  // that no classification by position survives.
  const std::vector<int32_t> q{1, 9, 5, 1, 3, 17, 1, 33}, kv{1, 40, 5, 33, 19, 17, 2, 70};
  const std::vector<int32_t> long_q{1, 4, 40, 1}, long_kv{700, 600, 300, 5};
  std::vector<AttentionCase> cases;
  const auto add = [&](const std::string& name, const AttentionSpec& spec) {
    cases.push_back({name, spec, q, kv});
  };
  const auto with = [](AttentionSpec spec, auto change) {
    change(spec);
    return spec;
  };
  const AttentionSpec base = MakeSpec(6, 2, 64);

  add("plain", base);
  const AttentionSpec few_heads = MakeSpec(3, 1, 64);  // long cases: the oracle is slow
  cases.push_back({"long_contexts_split", few_heads, long_q, long_kv});
  cases.push_back({"one_long_decode", base, {1}, {1500}});
  cases.push_back({"long_prefill", MakeSpec(2, 1, 64), {200}, {200}});
  for (const int dim : {16, 32, 80, 96, 128, 256})
    add("head_dim_" + std::to_string(dim), MakeSpec(4, 2, dim));
  add("v_head_dim_differs", with(MakeSpec(4, 2, 96), [](auto& s) { s.v_head_dim = 64; }));
  for (const int group : {1, 2, 3, 5, 7, 8, 12, 16}) {
    add("group_" + std::to_string(group), MakeSpec(2 * group, 2, 32));
  }
  add("one_kv_head_group_32", MakeSpec(32, 1, 32));
  for (const int size : {1, 4, 8, 32, 64, 24}) {
    add("block_" + std::to_string(size), with(base, [&](auto& s) { s.block_size = size; }));
  }
  add("paged_nhd", with(base, [](auto& s) { s.layout = KvLayout::kPagedNhd; }));
  add("contiguous", with(base, [](auto& s) { s.layout = KvLayout::kContiguous; }));
  for (const DType type : {DType::kF32, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    add("kv_" + std::string(DTypeName(type)), with(base, [&](auto& s) {
          s.kv_dtype = type;
          if (type == DType::kI8) s.scale /= 40.0f;  // stored integers are about 40 times larger
        }));
  }
  for (const DType type : {DType::kBF16, DType::kF16}) {
    add("q_out_" + std::string(DTypeName(type)),
        with(base, [&](auto& s) { s.q_dtype = s.out_dtype = type; }));
  }
  add("scale_1_256", with(base, [](auto& s) { s.scale = 1.0f / 256.0f; }));
  add("scale_half", with(base, [](auto& s) { s.scale *= 0.5f; }));
  for (const int window : {0, 3, 15, 16, 17, 1000}) {
    add("window_left_" + std::to_string(window), with(base, [&](auto& s) { s.window_left = window; }));
  }
  cases.push_back({"window_long", with(few_heads, [](auto& s) { s.window_left = 255; }), long_q, long_kv});
  add("non_causal", with(base, [](auto& s) { s.causal = false; }));
  add("non_causal_window", with(base, [](auto& s) {
        s.causal = false;
        s.window_left = s.window_right = 4;
      }));
  add("streaming_sink_tokens", with(base, [](auto& s) {
        s.window_left = 7;
        s.sink_tokens = 4;
      }));
  add("chunk_16", with(base, [](auto& s) { s.chunk = 16; }));
  add("softcap", with(base, [](auto& s) { s.softcap = 2.0f; }));
  add("softcap_window", with(base, [](auto& s) {
        s.softcap = 2.0f;
        s.window_left = 8;
      }));
  add("alibi", with(base, [](auto& s) { s.has_alibi = true; }));
  add("alibi_non_causal", with(base, [](auto& s) {
        s.has_alibi = true;
        s.causal = false;
      }));
  add("softcap_alibi", with(base, [](auto& s) {
        s.softcap = 2.0f;
        s.has_alibi = true;
      }));
  add("sinks", with(base, [](auto& s) { s.has_sinks = true; }));
  cases.push_back({"sinks_split", with(few_heads, [](auto& s) { s.has_sinks = true; }), long_q, long_kv});
  add("sinks_window", with(base, [](auto& s) {
        s.has_sinks = true;
        s.window_left = 8;
      }));
  add("descales", with(base, [](auto& s) {
        s.kv_dtype = DType::kF8E4M3;
        s.has_k_descale = s.has_v_descale = true;
      }));
  add("descales_softcap_sinks", with(base, [](auto& s) {
        s.kv_dtype = DType::kI8;
        s.scale /= 40.0f;
        s.has_k_descale = s.has_v_descale = true;
        s.softcap = 3.0f;
        s.has_sinks = true;
      }));
  add("without_lse", with(base, [](auto& s) { s.wants_lse = false; }));
  add("precise_f32", with(base, [](auto& s) {
        s.precise = true;
        s.kv_dtype = DType::kF32;
      }));
  add("all_features", with(base, [](auto& s) {
        s.causal = true;
        s.window_left = 9;
        s.sink_tokens = 2;
        s.softcap = 5.0f;
        s.has_alibi = s.has_sinks = true;
        s.kv_dtype = DType::kF16;
      }));
  // The library accepts what the engine never makes: rows without tokens, without keys, and more rows than
  // keys.
  cases.push_back({"empty_rows_and_empty_keys", base, {0, 3, 2, 1, 0, 4, 2}, {0, 3, 0, 0, 7, 2, 5}});
  cases.push_back(
      {"empty_keys_with_sinks", with(base, [](auto& s) { s.has_sinks = true; }), {2, 1, 3, 5}, {0, 0, 1, 2}});
  return cases;
}

}  // namespace attest::testing
