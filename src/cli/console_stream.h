// One sequence streamed to the terminal: the sink of the engine's thread and the loop of the caller's.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace attest {

struct StreamResult {
  std::string text;
  FinishReason reason = FinishReason::kStop;
  int32_t generated_tokens = 0;
  double seconds_to_first_token = 0;
  double decode_seconds = 0;  // first to last token
};

// Submits and prints each piece of text to standard output as it becomes final. Returns when the sequence
// ended.
[[nodiscard]] Expected<StreamResult> StreamToConsole(Engine& engine, const Tokenizer& tokenizer,
                                                     std::vector<int32_t> prompt,
                                                     const SamplingParams& sampling,
                                                     const std::vector<int32_t>& eos_ids);

// max_tokens is cut to what fits behind the prompt. kInvalidArgument when that is nothing.
[[nodiscard]] Expected<SamplingParams> ToSamplingParams(const SamplingFlags& flags, size_t prompt_tokens,
                                                        int32_t max_model_len);

}  // namespace attest
