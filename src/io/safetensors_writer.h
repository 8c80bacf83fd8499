// Writes a safetensors file: what ParseSafetensorsFile (io/safetensors.h) reads back equal.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "base/error.h"
#include "io/safetensors.h"

namespace attest {

// Beside the target first, then renamed: a reader sees the whole file or none, and after an error nothing is
// left behind. The file is readable by its owner only. kInvalidArgument names an entry whose shape and data
// disagree, and text that is no UTF-8; kIo: what the system refused.
[[nodiscard]] Status WriteSafetensors(const std::filesystem::path& path,
                                      std::span<const SafetensorsEntry> entries,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace attest
