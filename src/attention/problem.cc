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

}  // namespace

std::string ToString(const Reason& reason) {
  return fmt::format("{} is {}, expected {}", reason.field, reason.value, reason.expected);
}

std::vector<Reason> SpecReasons(const AttentionSpec& spec) {
  std::vector<Reason> reasons;
  const auto require = [&reasons](bool holds, const char* field, const auto& value, std::string expected) {
    if (!holds) reasons.push_back({field, fmt::format("{}", value), std::move(expected)});
  };
  require(spec.q_heads >= 1, "q_heads", spec.q_heads, ">= 1");
  require(spec.kv_heads >= 1, "kv_heads", spec.kv_heads, ">= 1");
  if (spec.q_heads >= 1 && spec.kv_heads >= 1) {
    require(spec.q_heads % spec.kv_heads == 0, "q_heads", spec.q_heads,
            fmt::format("a multiple of kv_heads = {}", spec.kv_heads));
  }
  require(spec.head_dim >= 1, "head_dim", spec.head_dim, ">= 1");
  require(spec.v_head_dim >= 1, "v_head_dim", spec.v_head_dim, ">= 1");
  require(IsComputeType(spec.q_dtype), "q_dtype", DTypeName(spec.q_dtype), "f32, f16 or bf16");
  require(IsComputeType(spec.out_dtype), "out_dtype", DTypeName(spec.out_dtype), "f32, f16 or bf16");
  require(!IsQuantised(spec.kv_dtype), "kv_dtype", DTypeName(spec.kv_dtype), "a plain element type");
  require(spec.layout == KvLayout::kContiguous || spec.block_size >= 1, "block_size", spec.block_size,
          ">= 1 token");
  require(std::isfinite(spec.scale), "scale", spec.scale, "a finite number");
  require(!spec.window_left || *spec.window_left >= 0, "window_left", spec.window_left.value_or(0),
          ">= 0 tokens, or absent for no limit");
  require(!spec.window_right || *spec.window_right >= 0, "window_right", spec.window_right.value_or(0),
          ">= 0 tokens, or absent for no limit");
  require(!spec.chunk || *spec.chunk >= 1, "chunk", spec.chunk.value_or(0), ">= 1 token, or absent");
  require(spec.sink_tokens >= 0, "sink_tokens", spec.sink_tokens, ">= 0");
  require(spec.softcap >= 0.0f && std::isfinite(spec.softcap), "softcap", spec.softcap,
          "0 (off) or a positive number");
  return reasons;
}

Status ValidateSpec(const AttentionSpec& spec) {
  const std::vector<Reason> reasons = SpecReasons(spec);
  if (reasons.empty()) return {};
  return Fail(ErrorCode::kInvalidArgument, "attention " + ToString(reasons.front()), reasons.front().field);
}

}  // namespace attest
