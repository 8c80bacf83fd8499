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

struct SamplingParams {
  float temperature = 1.0f;     // < 1e-5 means greedy
  int32_t top_k = 0;            // 0: off
  float top_p = 1.0f;           // (0, 1]
  float min_p = 0.0f;           // [0, 1]
  std::optional<int64_t> seed;  // unset: the engine draws one
  int32_t max_tokens = 16;      // >= 1, generated tokens
  int32_t min_tokens = 0;       // ids that would end the sequence cannot be drawn before this many tokens
  bool ignore_eos = false;
  // End the sequence; the id is reported, its text is not part of the output. Also with ignore_eos.
  std::vector<int32_t> stop_token_ids;
};

enum class FinishReason { kStop, kLength, kAbort, kError };
inline constexpr int kNumFinishReasons = 4;
[[nodiscard]] const char* FinishReasonName(FinishReason reason);  // "stop", "length", "abort", "error"

// Events of one sequence, in order. Called on the engine thread; implementations hand over and return at
// once, and do not throw. The stop or eos id that ends a sequence is not passed to OnToken but to OnFinish;
// it is a generated token all the same (it counts against max_tokens and in usage).
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnToken(int32_t token) = 0;
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
};

}  // namespace attest
