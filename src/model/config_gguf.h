// Reads a ModelConfig from GGUF metadata (architecture llama). As strict as config_json.h: a missing required
// key or a "llama." key that nothing here reads is an error that names it. Pure; any thread.
#pragma once

#include <string>

#include "base/error.h"
#include "io/gguf.h"
#include "model/config.h"

namespace attest {

// What the tensors tell and the metadata does not.
struct GgufTensorFacts {
  int64_t embedding_rows = 0;   // of token_embd.weight: the vocabulary
  bool has_output = false;      // output.weight; absent means tied
  bool attention_bias = false;  // blk.0.attn_q.bias
  bool mlp_bias = false;        // blk.0.ffn_gate.bias
  std::string name;             // for people, when general.name is absent
};

// rope.freq_divisors stays empty: the tensor rope_freqs.weight fills it (weights.h).
[[nodiscard]] Expected<ModelConfig> ConfigFromGguf(const GgufFile& file, const GgufTensorFacts& facts);

}  // namespace attest
