// The rules that hold for a config whatever file it came from.
#pragma once

#include <string_view>

#include "base/error.h"
#include "model/config.h"

namespace attest {

// Ranges and divisibility; the error names the field and the value.
[[nodiscard]] Status CheckConfig(const ModelConfig& config);

// The error for a model this build cannot run; lists what it can.
[[nodiscard]] Error UnsupportedArchitecture(std::string_view field, std::string_view value);

// True when a key speaks of something that changes what the layers compute (rope, window, norm, softcap):
// such a key may not go unread.
[[nodiscard]] bool KeyMustBeRead(std::string_view key);

}  // namespace attest
