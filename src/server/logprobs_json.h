// Logprobs as clients read them: the lists of /v1/completions, the objects of /v1/chat/completions, and
// prompt_logprobs. One float is written as the same text wherever it appears, because clients compare the
// logprob of a token with the best one to see whether it was the greedy choice. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace attest {

// One token of a choice's text, prompt included where it is echoed.
struct LoggedToken {
  int32_t token = 0;
  int64_t text_offset = 0;              // where it begins in the text, in code points
  std::optional<TokenLogprobs> scores;  // none for the first token of a prompt
};

class LogprobsWriter {
 public:
  // `as_token_ids`: tokens are shown as "token_id:5". The tokenizer must outlive it.
  LogprobsWriter(const Tokenizer& tokenizer, bool as_token_ids)
      : tokenizer_(tokenizer), as_token_ids_(as_token_ids) {}

  // {"text_offset", "token_logprobs", "tokens", "top_logprobs"}: the token itself first, then the `num_top`
  // best; of two ids with the same text the larger logprob stays.
  [[nodiscard]] std::string Completion(std::span<const LoggedToken> tokens, int32_t num_top) const;
  // {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...]}
  [[nodiscard]] std::string Chat(std::span<const LoggedToken> tokens, int32_t num_top) const;
  // [null, {id: {"logprob", "rank", "decoded_token"}, ...}, ...]: `prompt` without its first token.
  [[nodiscard]] std::string Prompt(std::span<const TokenLogprobs> prompt, int32_t num_top) const;

  // Bytes that are no text by themselves are shown as "bytes:\xe2\x80", so that different ones stay apart.
  [[nodiscard]] std::string TokenText(int32_t id) const;
  // How many code points of the text begin in this token.
  [[nodiscard]] int64_t NumCodePoints(int32_t id) const;

 private:
  [[nodiscard]] std::string BytesOf(int32_t id) const;

  const Tokenizer& tokenizer_;
  bool as_token_ids_;
};

}  // namespace attest
