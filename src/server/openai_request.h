// A request body of /v1/completions or /v1/chat/completions, checked and tokenized. Nothing is ignored in
// silence: a field that asks for something this server cannot do yet is an error that names it, and only
// unknown keys are skipped. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "server/call_limits.h"

namespace attest {

struct GenerationCall {
  bool is_chat = false;
  std::string model;                          // the served name the client used
  std::vector<std::vector<int32_t>> prompts;  // ids, none empty
  int32_t n = 1;                              // choices of each prompt
  // >= n, samples of each prompt: the n with the best mean logprob are its choices.
  int32_t best_of = 1;
  SamplingParams sampling;  // max_tokens as asked for; SamplingOf cuts it
  // completions: each prompt's text precedes its choices'; empty unless echoed.
  std::vector<std::string> echo_texts;
  // completions with logprobs and without echo: the length of each prompt's text in code points, where the
  // offsets of its choices' tokens begin.
  std::vector<int64_t> prompt_lengths;
  bool echo = false;
  bool only_prompt = false;                // max_tokens 0: the one generated token is not shown
  std::optional<int32_t> prompt_logprobs;  // to answer with; sampling's may be larger, for echo
  bool tokens_as_ids = false;              // logprobs show "token_id:5"
  std::vector<std::string> stop;
  bool keep_stop_text = false;
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;           // one usage chunk at the end of a stream
  bool continuous_usage_stats = false;  // usage in every chunk of a stream
  int32_t priority = 0;                 // of all its sequences; smaller goes first
  std::string cache_salt;               // prefixes are shared only with requests of the same salt
};

// Errors: kInvalidArgument and kUnsupported name the field; kNotFound is an unknown model.
Expected<GenerationCall> ParseCompletionCall(std::string_view body, const CallLimits& limits);
Expected<GenerationCall> ParseChatCall(std::string_view body, const CallLimits& limits);

// How one sample of a prompt is drawn: max_tokens cut to what fits behind the prompt, and the seed of
// `sample` = seed + sample, so that they differ and each can be had again. The first alone scores the prompt,
// for all. REQUIRES: prompt and sample are in range.
[[nodiscard]] SamplingParams SamplingOf(const GenerationCall& call, size_t prompt, int32_t sample,
                                        int32_t max_model_len);

}  // namespace attest
