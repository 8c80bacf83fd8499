// GPT-2's printable alphabet for bytes: 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves, the other 68
// bytes are the code points from 256 on, in order. Pure; any thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace attest {

// The code point that stands for each byte; all are below 324.
[[nodiscard]] const std::array<char32_t, 256>& ByteLevelAlphabet();
// The bytes that `token` stands for, or nullopt if some code point is outside the alphabet.
[[nodiscard]] std::optional<std::string> ByteLevelToBytes(std::string_view token);

}  // namespace attest
