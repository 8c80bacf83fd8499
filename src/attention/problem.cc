#include "attention/problem.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"

namespace attest {

const char* AttentionPhaseName(AttentionPhase phase) {
  switch (phase) {
    case AttentionPhase::kDecode:
      return "decode";
    case AttentionPhase::kPrefill:
      return "prefill";
    case AttentionPhase::kExtend:
      return "extend";
    case AttentionPhase::kUniformDecode:
      return "uniform_decode";
  }
  return "unknown";
}

const char* KvLayoutName(KvLayout layout) {
  switch (layout) {
    case KvLayout::kContiguous:
      return "contiguous";
    case KvLayout::kPagedHnd:
      return "paged_hnd";
    case KvLayout::kPagedNhd:
      return "paged_nhd";
  }
  return "unknown";
}

AttentionPhase PhaseOf(int32_t q_len, int32_t kv_len) {
  ATTEST_CHECK_GE(q_len, 1);
  if (q_len == 1) return AttentionPhase::kDecode;
  if (q_len == kv_len) return AttentionPhase::kPrefill;
  return AttentionPhase::kExtend;
}

AttentionPhase RoutePhaseOf(int32_t q_len, int32_t kv_len) {
  const AttentionPhase phase = PhaseOf(q_len, kv_len);
  // q_len > kv_len (library calls only) has rows that see nothing; it stays with the extend kernels.
  if (phase == AttentionPhase::kExtend && q_len <= kMaxUniformDecodeTokens && q_len < kv_len) {
    return AttentionPhase::kUniformDecode;
  }
  return phase;
}

namespace {

bool IsComputeType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Status Invalid(const char* field, const std::string& value, const char* expected) {
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("attention {} is {}, expected {}", field, value, expected), field);
}

}  // namespace

Status ValidateSpec(const AttentionSpec& spec) {
  using std::to_string;
  if (spec.q_heads < 1) return Invalid("q_heads", to_string(spec.q_heads), ">= 1");
  if (spec.kv_heads < 1) return Invalid("kv_heads", to_string(spec.kv_heads), ">= 1");
  if (spec.q_heads % spec.kv_heads != 0) {
    return Invalid("q_heads", to_string(spec.q_heads),
                   fmt::format("a multiple of kv_heads = {}", spec.kv_heads).c_str());
  }
  if (spec.head_dim < 1) return Invalid("head_dim", to_string(spec.head_dim), ">= 1");
  if (spec.v_head_dim < 1) return Invalid("v_head_dim", to_string(spec.v_head_dim), ">= 1");
  if (!IsComputeType(spec.q_dtype)) {
    return Invalid("q_dtype", std::string(DTypeName(spec.q_dtype)), "f32, f16 or bf16");
  }
  if (!IsComputeType(spec.out_dtype)) {
    return Invalid("out_dtype", std::string(DTypeName(spec.out_dtype)), "f32, f16 or bf16");
  }
  if (IsQuantised(spec.kv_dtype)) {
    return Invalid("kv_dtype", std::string(DTypeName(spec.kv_dtype)), "a plain element type");
  }
  if (spec.layout != KvLayout::kContiguous && spec.block_size < 1) {
    return Invalid("block_size", to_string(spec.block_size), ">= 1 token");
  }
  if (!std::isfinite(spec.scale)) return Invalid("scale", fmt::format("{}", spec.scale), "a finite number");
  if (spec.window_left && *spec.window_left < 0) {
    return Invalid("window_left", to_string(*spec.window_left), ">= 0 tokens, or absent for no limit");
  }
  if (spec.window_right && *spec.window_right < 0) {
    return Invalid("window_right", to_string(*spec.window_right), ">= 0 tokens, or absent for no limit");
  }
  if (spec.chunk && *spec.chunk < 1) return Invalid("chunk", to_string(*spec.chunk), ">= 1 token, or absent");
  if (spec.sink_tokens < 0) return Invalid("sink_tokens", to_string(spec.sink_tokens), ">= 0");
  if (!(spec.softcap >= 0.0f) || !std::isfinite(spec.softcap)) {
    return Invalid("softcap", fmt::format("{}", spec.softcap), "0 (off) or a positive number");
  }
  return {};
}

}  // namespace attest
