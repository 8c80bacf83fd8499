#include "engine/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/problem.h"
#include "cache/kv_groups.h"

namespace attest {
namespace {

std::unexpected<Error> Invalid(const char* field, std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message), field);
}

Status CheckIds(const char* field, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Invalid(field,
                     fmt::format("{}[{}] is {}, not a token id in [0, {})", field, i, ids[i], vocab_size));
    }
  }
  return {};
}

Status CheckSampling(const SamplingParams& s) {
  if (!std::isfinite(s.temperature) || s.temperature < 0) {
    return Invalid("temperature", fmt::format("temperature {} is not a number >= 0", s.temperature));
  }
  if (s.top_k < 0) return Invalid("top_k", fmt::format("top_k {} is negative; 0 turns it off", s.top_k));
  if (!(s.top_p > 0 && s.top_p <= 1)) {
    return Invalid("top_p", fmt::format("top_p {} is out of range (0, 1]", s.top_p));
  }
  if (!(s.min_p >= 0 && s.min_p <= 1)) {
    return Invalid("min_p", fmt::format("min_p {} is out of range [0, 1]", s.min_p));
  }
  if (!(s.typical_p > 0 && s.typical_p <= 1)) {
    return Invalid("typical_p", fmt::format("typical_p {} is out of range (0, 1]", s.typical_p));
  }
  if (!(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty))) {
    return Invalid("repetition_penalty",
                   fmt::format("repetition_penalty {} is not a number > 0", s.repetition_penalty));
  }
  for (const auto& [name, value] : {std::pair("presence_penalty", s.presence_penalty),
                                    std::pair("frequency_penalty", s.frequency_penalty)}) {
    if (!std::isfinite(value)) return Invalid(name, fmt::format("{} {} is not finite", name, value));
  }
  for (const IdBias& bias : s.logit_bias) {
    if (!std::isfinite(bias.bias)) {
      return Invalid("logit_bias", fmt::format("logit_bias of id {} is {}, not finite", bias.id, bias.bias));
    }
  }
  for (const auto& [name, value] :
       {std::pair("logprobs", s.logprobs), std::pair("prompt_logprobs", s.prompt_logprobs)}) {
    if (value && (*value < 0 || *value > kMaxTopLogprobs)) {
      return Invalid(name, fmt::format("{} {} is out of range [0, {}]", name, *value, kMaxTopLogprobs));
    }
  }
  if (s.max_tokens < 1) {
    return Invalid("max_tokens", fmt::format("max_tokens {} is out of range: at least 1", s.max_tokens));
  }
  if (s.min_tokens < 0 || s.min_tokens > s.max_tokens) {
    return Invalid("min_tokens", fmt::format("min_tokens {} is out of range [0, max_tokens = {}]",
                                             s.min_tokens, s.max_tokens));
  }
  return {};
}

}  // namespace

Status CheckOptions(const EngineOptions& options) {
  struct Field {
    const char* name;
    int64_t value, low, high;
  };
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (const Field& f :
       {Field{"block_size", options.block_size, 1, 1 << 20}, Field{"num_blocks", options.num_blocks, 2, kMax},
        Field{"max_model_len", options.max_model_len, 2, kMaxSeqTokens},
        Field{"max_num_seqs", options.max_num_seqs, 1, 1 << 20},
        Field{"max_num_batched_tokens", options.max_num_batched_tokens, 1, 1 << 24},
        Field{"max_queue", options.max_queue, 1, kMax},
        Field{"long_prefill_tokens", options.long_prefill_tokens, 0, kMax},
        Field{"vocab_size", options.vocab_size, 1, kMax}}) {
    if (f.value < f.low || f.value > f.high) {
      return Invalid(f.name, fmt::format("{} {} is out of range [{}, {}]", f.name, f.value, f.low, f.high));
    }
  }
  if (options.kv_windows.empty()) return Invalid("kv_windows", "kv_windows is empty: at least one KV group");
  for (const std::optional<int32_t>& window : options.kv_windows) {
    if (window && *window < 1) {
      return Invalid("kv_windows",
                     fmt::format("kv_windows holds {}; a window has at least 1 token", *window));
    }
  }
  return {};
}

Status CheckRequest(const Request& request, const EngineOptions& options) {
  const auto prompt_len = static_cast<int64_t>(request.prompt.size());
  const SamplingParams& sampling = request.sampling;
  if (request.sink == nullptr) return Invalid("sink", "the request has no sink");
  if (prompt_len == 0) return Invalid("prompt", "the prompt has 0 tokens; at least 1 is needed");
  if (prompt_len >= options.max_model_len) {
    return Invalid("prompt",
                   fmt::format("the prompt has {} tokens; max_model_len {} leaves room for at most {}",
                               prompt_len, options.max_model_len, options.max_model_len - 1));
  }
  ATTEST_RETURN_IF_ERROR(CheckIds("prompt", request.prompt, options.vocab_size));
  ATTEST_RETURN_IF_ERROR(CheckIds("eos_ids", request.eos_ids, options.vocab_size));
  ATTEST_RETURN_IF_ERROR(CheckIds("stop_token_ids", sampling.stop_token_ids, options.vocab_size));
  ATTEST_RETURN_IF_ERROR(CheckIds("allowed_token_ids", sampling.allowed_token_ids, options.vocab_size));
  for (const IdBias& bias : sampling.logit_bias) {
    ATTEST_RETURN_IF_ERROR(CheckIds("logit_bias", {bias.id}, options.vocab_size));
  }
  for (const std::vector<int32_t>& word : sampling.bad_words) {
    if (word.empty()) return Invalid("bad_words", "bad_words holds a word of 0 tokens");
    ATTEST_RETURN_IF_ERROR(CheckIds("bad_words", word, options.vocab_size));
  }
  ATTEST_RETURN_IF_ERROR(CheckSampling(sampling));
  if (prompt_len + sampling.max_tokens > options.max_model_len) {
    return Invalid(
        "max_tokens",
        fmt::format("max_tokens {} and a prompt of {} tokens pass max_model_len {}; at most {} fit",
                    sampling.max_tokens, prompt_len, options.max_model_len,
                    options.max_model_len - prompt_len));
  }
  if (request.priority != 0 && options.policy != SchedulingPolicy::kPriority) {
    return Invalid("priority", fmt::format("priority is {}, but the scheduling policy is fcfs: it must be 0",
                                           request.priority));
  }
  // Block 0 is reserved, and the last token that is generated is never written to the cache. With windows a
  // sequence may be longer than the blocks it holds at once.
  const int64_t capacity =
      MostTokens({.windows = options.kv_windows,
                  .block_size = options.block_size,
                  .max_step_tokens = options.max_num_batched_tokens},
                 options.num_blocks - 1,
                 std::max((options.num_blocks - 1) * options.block_size, int64_t{options.max_model_len}));
  if (prompt_len > capacity) {
    return Invalid("prompt", fmt::format("the prompt has {} tokens; the KV cache holds {} ({} blocks of {})",
                                         prompt_len, capacity, options.num_blocks - 1, options.block_size));
  }
  if (prompt_len + sampling.max_tokens - 1 > capacity) {
    return Invalid(
        "max_tokens",
        fmt::format(
            "max_tokens {} and a prompt of {} tokens need {} KV slots; the cache holds {} ({} blocks of "
            "{}), so at most {} fit",
            sampling.max_tokens, prompt_len, prompt_len + sampling.max_tokens - 1, capacity,
            options.num_blocks - 1, options.block_size, capacity - prompt_len + 1));
  }
  return {};
}

}  // namespace attest
