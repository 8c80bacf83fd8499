// How io/ speaks about bad files: one line with file, byte offset, field, value and limit. Text that comes
// out of a file is quoted and escaped, so that a hostile name can neither break the line nor flood it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace attest {

// 'text' with control, quote and non-ASCII bytes as \xNN, cut after 96 bytes.
[[nodiscard]] std::string Quoted(std::string_view text);

// Fail, with the message's control bytes as '?': paths hold whatever bytes the user and the disk like.
[[nodiscard]] std::unexpected<Error> FailOnOneLine(ErrorCode code, std::string message,
                                                   std::string field = {});

// kCorruptFile "FILE: byte OFFSET: PROBLEM". `field`: the tensor or metadata key at fault, or empty.
[[nodiscard]] std::unexpected<Error> BadFile(std::string_view file, uint64_t offset, std::string_view problem,
                                             std::string field = {});
// The same with another code.
[[nodiscard]] std::unexpected<Error> BadFile(ErrorCode code, std::string_view file, uint64_t offset,
                                             std::string_view problem, std::string field = {});

// True for what a broken download leaves behind: a Git LFS pointer ("version https..."), an HTML page, a JSON
// error. Neither GGUF nor safetensors begins with 8 printable bytes.
[[nodiscard]] bool LooksLikeText(std::span<const std::byte> bytes);

// True for a name or key without control bytes; such bytes would end up in logs and terminals.
[[nodiscard]] bool IsPrintableName(std::string_view name);

}  // namespace attest
