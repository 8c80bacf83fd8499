// The messages of a chat, checked and written through the model's template into prompt ids. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "server/call_limits.h"
#include "server/json_fields.h"

namespace attest {

// Reads messages, add_generation_prompt, chat_template_kwargs and add_special_tokens (false by default:
// templates write their own BOS). Errors name the field.
Expected<std::vector<int32_t>> EncodeMessages(const JsonFields& fields, const CallLimits& limits);

}  // namespace attest
