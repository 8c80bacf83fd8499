// What the server is, as far as the reading of a request needs to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "server/json_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace attest {

// What requests are checked against. Immutable.
struct CallLimits {
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template = nullptr;
  std::vector<std::string> model_names;  // the first answers for a request that names none
  SamplingParams default_sampling;
  int32_t max_model_len = 0;
  int64_t vocab_size = 0;
  int32_t max_choices = 0;                                     // prompts times n or best_of
  size_t max_text_bytes = std::numeric_limits<size_t>::max();  // see MaxTextBytes
  FieldReads* reads = nullptr;  // set only while the API's description is made: gets what the parsers ask for
};

// The name in `model`, or the first served one. kNotFound lists what is served.
Expected<std::string> ServedModelName(const JsonFields& fields, const CallLimits& limits);

// No text of more bytes can be a prompt: the context full of the longest token, and four times that for
// normalizers that shorten. Megabytes of one letter take seconds and a hundred times their size to encode.
size_t MaxTextBytes(const Tokenizer& tokenizer, int32_t max_model_len);
// `field` is where the text came from.
Status CheckTextSize(size_t bytes, const std::string& field, const CallLimits& limits);

}  // namespace attest
