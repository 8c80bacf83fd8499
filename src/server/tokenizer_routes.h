// /tokenize, /detokenize and /tokenizer_info: what a client needs to count and cut tokens as the model does,
// without files of its own. The fields follow vLLM, whose remote tokenizers read them. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "server/call_limits.h"

namespace attest {

// A request body to the body of the answer. Errors name the field.
Expected<std::string> Tokenize(std::string_view body, const CallLimits& limits);
Expected<std::string> Detokenize(std::string_view body, const CallLimits& limits);

// The answer of /tokenizer_info: the keys of `tokenizer_config_json` (the model's tokenizer_config.json; ""
// where it has none) without its tables of added tokens, every token of it as plain text, bos and eos as the
// tokenizer has them, and `chat_template` where there is one.
[[nodiscard]] std::string TokenizerInfoJson(const Tokenizer& tokenizer,
                                            std::string_view tokenizer_config_json,
                                            std::string_view chat_template);

}  // namespace attest
