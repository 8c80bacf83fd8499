// What the front end hands to the engine: token ids, sampling, a sink. No strings: text is the front end's
// business.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace attest {

inline constexpr int32_t kMaxTopLogprobs = 20;

struct IdBias {
  int32_t id = 0;
  float bias = 0;
};

struct SamplingParams {
  float temperature = 1.0f;  // < 1e-5 means greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  float typical_p = 1.0f;    // (0, 1]
  // Of ids that came before: in prompt or output, > 0, 1 is off; in the output, once or per time, 0 is off.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::vector<IdBias> logit_bias = {};               // added to the logits; each id at most once
  std::vector<int32_t> allowed_token_ids = {};       // nothing else can be drawn; empty: all ids can
  std::vector<std::vector<int32_t>> bad_words = {};  // runs of ids that the output never holds; none empty
  std::optional<int64_t> seed = {};                  // unset: the engine draws one
  int32_t max_tokens = 16;                           // >= 1, generated tokens
  int32_t min_tokens = 0;  // ids that would end the sequence cannot be drawn before this many tokens
  bool ignore_eos = false;
  // Logprobs of each generated token, and of each prompt token but the first: the token's own and those of so
  // many best ids, 0 to kMaxTopLogprobs. Unset: none.
  std::optional<int32_t> logprobs = {}, prompt_logprobs = {};
  // End the sequence; the id is reported, its text is not part of the output. Also with ignore_eos.
  std::vector<int32_t> stop_token_ids = {};
};

enum class FinishReason { kStop, kLength, kAbort, kError };
inline constexpr int kNumFinishReasons = 4;
[[nodiscard]] const char* FinishReasonName(FinishReason reason);  // "stop", "length", "abort", "error"

struct IdLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// One token and its place in the distribution the model gave, see engine/logprobs.h.
struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 1;                 // 1 + the number of ids with a larger logprob
  std::vector<IdLogprob> top = {};  // the best, in descending order; among equal ones the lower id first
};

// Events of one sequence, in order. Called on the engine thread; implementations hand over and return at
// once, and do not throw. The stop or eos id that ends a sequence is not passed to OnToken but to OnFinish;
// it is a generated token all the same (it counts against max_tokens and in usage).
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // The prompt is done; K and V of its first `cached_tokens` tokens were in the prefix cache. At most once,
  // before the first token; not for a sequence that ended without one.
  virtual void OnPromptDone(int32_t cached_tokens) { (void)cached_tokens; }
  virtual void OnToken(int32_t token) = 0;
  // With SamplingParams::logprobs: right before the OnToken, or the OnFinish with the stop_token, of its
  // token.
  virtual void OnLogprobs(TokenLogprobs /*logprobs*/) {}
  // With SamplingParams::prompt_logprobs: before the first token; of the prompt's tokens 1, 2, ... in order.
  virtual void OnPromptLogprobs(std::vector<TokenLogprobs> /*logprobs*/) {}
  // Asks whether every token so far can be taken back: the attention that led to them may have been wrong.
  // True: nobody has read them, they are forgotten, and OnToken begins again with the first. False: they
  // stay, and what follows is computed anew from them.
  virtual bool Retract() { return false; }
  // Exactly once, last. stop_token: the stop or eos id that ended it. `error` is set with kError, and points
  // to a value that lives during the call only.
  virtual void OnFinish(FinishReason reason, std::optional<int32_t> stop_token, const Error* error) = 0;
};

using RequestId = uint64_t;

struct Request {
  std::vector<int32_t> prompt;  // >= 1 ids in [0, vocab_size)
  SamplingParams sampling;
  std::vector<int32_t> eos_ids;  // end the sequence unless ignore_eos
  std::unique_ptr<TokenSink> sink;
  int32_t priority = 0;  // smaller goes first; other than 0 only under SchedulingPolicy::kPriority
  // Requests share K and V only with those of the same salt.
  std::string cache_salt = {};
};

}  // namespace attest
