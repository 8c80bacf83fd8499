// The description of a decoder model, read from config.json or GGUF metadata. Immutable after load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/problem.h"

namespace attest {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double theta = 0;  // a missing key is an error at load, never a default
  int rotary_dim = 0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_positions = 0;                    // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 1.0;                         // yarn: multiplies cos and sin
  bool truncate = true;                                  // yarn
  std::vector<float> freq_divisors;                      // GGUF rope_freqs: per pair, empty when absent
};

struct ModelConfig {
  std::string architecture;  // "llama": mistral and ministral are it with windows
  std::string name;          // for people
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int num_layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  double rms_norm_eps = 0;
  int64_t max_positions = 0;
  bool tied_head = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  RopeConfig rope;
  // [num_layers] tokens that a row of the layer sees, its own included; none: all. Empty: none in any layer.
  std::vector<std::optional<int32_t>> layer_windows;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // from config.json, generation_config.json or GGUF
};

}  // namespace attest
