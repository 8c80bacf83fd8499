// The immutable weights of a decoder, loaded once: matrices repacked in their stored types, vectors in f32.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_team.h"
#include "io/checkpoint.h"
#include "kernels/matmul.h"
#include "model/config.h"

namespace attest {

// Bias vectors are empty where the model has none.
struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden_size]
  PackedMatrix qkv;                   // [(q_heads + 2 kv_heads) * head_dim, hidden_size]: Q, K, V rows
  std::vector<float> qkv_bias;
  PackedMatrix output;  // [hidden_size, q_heads * head_dim]
  std::vector<float> output_bias;
  std::vector<float> mlp_norm;  // [hidden_size]
  PackedMatrix gate_up;         // [2 * intermediate_size, hidden_size]: gate rows, then up rows
  std::vector<float> gate_up_bias;
  PackedMatrix down;  // [hidden_size, intermediate_size]
  std::vector<float> down_bias;
};

struct DecoderWeights {
  BufferArena arena;                 // bytes of the matrices below; first, so that it goes last
  PackedMatrix head;                 // [vocab_size, hidden_size]
  PackedMatrix untied_embedding;     // [vocab_size, hidden_size]; empty when the head is the embedding
  std::vector<float> final_norm;     // [hidden_size]
  std::vector<LayerWeights> layers;  // [num_layers]
  std::vector<float> inv_freq;       // [rotary_dim / 2]
  int64_t size_bytes = 0;            // of everything above

  bool tied = false;
  [[nodiscard]] const PackedMatrix& embedding() const { return tied ? head : untied_embedding; }
};

// Takes every tensor of the checkpoint (one that is left over is an error), repacks it and drops its file
// pages. May correct config.tied_head (the file holds another lm_head) and fills config.rope.freq_divisors
// from the file.
struct LoadWeightsOptions {
  PackedMatrix::PackOptions pack;  // its arena is set by LoadWeights
  std::optional<DType>
      plain_dtype;  // matrices that are not quantised are converted to this type; unset keeps theirs
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};
[[nodiscard]] Expected<DecoderWeights> LoadWeights(const Checkpoint& checkpoint,
                                                   const LoadWeightsOptions& options, ModelConfig& config,
                                                   ThreadTeam& team);

}  // namespace attest
