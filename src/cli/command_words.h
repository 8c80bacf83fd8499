// The words of a command line before CLI11 takes them: spellings that it cannot be told, and words that it
// would silently take for something else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/config_file.h"

namespace attest {

// Writes -tp as its long name, and the '_' of a known flag's name as '-': vLLM takes both.
[[nodiscard]] std::vector<std::string> SpellOut(std::vector<std::string> words,
                                                const std::vector<KnownFlag>& known);

// What is wrong, if a flag that takes a value has none: nothing behind its '=', or another flag, which would
// become the value
// ("--api-key --port 80" would make "--port" a key). REQUIRES: spelled out.
[[nodiscard]] std::optional<std::string> FindFlagWithoutValue(const std::vector<std::string>& words,
                                                              const std::vector<KnownFlag>& known);

// What is wrong, if --served-model-name has taken what looks like the MODEL for one more name
// ("--served-model-name a b/c"). REQUIRES: spelled out, and no MODEL was found elsewhere.
[[nodiscard]] std::optional<std::string> FindSwallowedModel(const std::vector<std::string>& words);

// Takes apart what vLLM's users type as one list: '["https://a", "https://b"]'.
[[nodiscard]] std::vector<std::string> SplitLists(const std::vector<std::string>& origins);

}  // namespace attest
