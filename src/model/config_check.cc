#include "model/config_check.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "attention/problem.h"

namespace attest {
namespace {

Status InRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return Fail(ErrorCode::kCorruptFile, fmt::format("{} is {}, expected {} to {}", field, value, low, high),
              field);
}

}  // namespace

Status CheckConfig(const ModelConfig& config) {
  // Upper limits are far above any released model; they keep products of two fields below 2^63.
  ATTEST_RETURN_IF_ERROR(InRange("vocab_size", config.vocab_size, 1, int64_t{1} << 24));
  ATTEST_RETURN_IF_ERROR(InRange("hidden_size", config.hidden_size, 1, int64_t{1} << 20));
  ATTEST_RETURN_IF_ERROR(InRange("intermediate_size", config.intermediate_size, 1, int64_t{1} << 22));
  ATTEST_RETURN_IF_ERROR(InRange("num_hidden_layers", config.num_layers, 1, 1 << 12));
  ATTEST_RETURN_IF_ERROR(InRange("num_attention_heads", config.q_heads, 1, 1 << 12));
  ATTEST_RETURN_IF_ERROR(InRange("num_key_value_heads", config.kv_heads, 1, config.q_heads));
  ATTEST_RETURN_IF_ERROR(InRange("head_dim", config.head_dim, 2, 1 << 12));
  ATTEST_RETURN_IF_ERROR(InRange("max_position_embeddings", config.max_positions, 1, kMaxSeqTokens));
  if (config.q_heads % config.kv_heads != 0) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("num_key_value_heads is {}, which does not divide num_attention_heads {}",
                            config.kv_heads, config.q_heads),
                "num_key_value_heads");
  }
  if (config.head_dim % 2 != 0) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("head_dim is {}; rotary embedding needs an even number", config.head_dim),
                "head_dim");
  }
  if (!(config.rms_norm_eps > 0) || !(config.rms_norm_eps < 1)) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("rms_norm_eps is {}, expected a number between 0 and 1", config.rms_norm_eps),
                "rms_norm_eps");
  }
  if (!config.layer_windows.empty() && std::ssize(config.layer_windows) != config.num_layers) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("layer_types has {} entries, num_hidden_layers is {}",
                            config.layer_windows.size(), config.num_layers),
                "layer_types");
  }
  for (const std::optional<int32_t>& window : config.layer_windows) {
    if (window) ATTEST_RETURN_IF_ERROR(InRange("sliding_window", *window, 1, (int64_t{1} << 31) - 1));
  }
  const RopeConfig& rope = config.rope;
  if (!(rope.theta > 1) || !std::isfinite(rope.theta)) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("rope_theta is {}, expected a number above 1", rope.theta), "rope_theta");
  }
  if (!(rope.factor > 0) || !std::isfinite(rope.factor)) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("rope factor is {}, expected a number above 0", rope.factor), "rope.factor");
  }
  if (!(rope.attention_factor > 0) || !std::isfinite(rope.attention_factor)) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("rope attention_factor is {}, expected a number above 0", rope.attention_factor),
                "rope.attention_factor");
  }
  if (rope.scaling == RopeScaling::kYarn &&
      (!(rope.beta_slow > 0) || !(rope.beta_fast >= rope.beta_slow) || !std::isfinite(rope.beta_fast))) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("rope beta_fast is {} and beta_slow {}, expected beta_fast >= beta_slow > 0",
                            rope.beta_fast, rope.beta_slow),
                "rope.beta_fast");
  }
  for (const int32_t id : config.eos_ids) {
    ATTEST_RETURN_IF_ERROR(InRange("eos_token_id", id, 0, config.vocab_size - 1));
  }
  if (config.bos_id) {
    ATTEST_RETURN_IF_ERROR(InRange("bos_token_id", *config.bos_id, 0, config.vocab_size - 1));
  }
  return {};
}

Error UnsupportedArchitecture(std::string_view field, std::string_view value) {
  return Error{.code = ErrorCode::kUnsupported,
               .message = fmt::format("{} is \"{}\"; supported: llama (LlamaForCausalLM; SmolLM2 and Llama 2 "
                                      "and 3 are of this kind), mistral (MistralForCausalLM) and ministral "
                                      "(MinistralForCausalLM)",
                                      field, value),
               .field = std::string(field)};
}

bool KeyMustBeRead(std::string_view key) {
  constexpr std::array<std::string_view, 6> kWords = {"rope", "rotary", "window", "norm", "softcap", "yarn"};
  for (const std::string_view word : kWords) {
    if (key.find(word) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace attest
