// The changes a request makes to its logits before a token is chosen: which ids may come, which may not, and
// by how much some are moved. docs/sampling.md states each step; whoever has the logits and the tokens so far
// can recompute them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace attest {

// Owns scratch memory only. One thread at a time.
class LogitAdjuster {
 public:
  // Whether Apply would do anything; a request that asks for nothing pays this test.
  [[nodiscard]] static bool IsNeeded(const SamplingParams& params) {
    return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
           params.frequency_penalty != 0.0f || !params.logit_bias.empty() ||
           !params.allowed_token_ids.empty() || !params.bad_words.empty();
  }

  // `tokens`: the sequence so far, of which the first `prompt_len` are its prompt. Ids in range.
  void Apply(const SamplingParams& params, std::span<const int32_t> tokens, int32_t prompt_len,
             std::span<float> logits);

 private:
  void KeepAllowed(const SamplingParams& params, std::span<float> logits);
  void Penalise(const SamplingParams& params, std::span<const int32_t> tokens, size_t prompt_len,
                std::span<float> logits);

  struct Seen {
    int32_t times_generated = 0;
    bool is_known = false;  // in the prompt or the output
  };
  std::vector<Seen> seen_;         // by id; all default between calls
  std::vector<int32_t> seen_ids_;  // those that are not
  std::vector<float> allowed_;     // values of the allowed ids
};

}  // namespace attest
