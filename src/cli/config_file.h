// --config FILE: flags written down as YAML, one key per flag, named as the flag without its dashes ('_' and
// '-' are the same); `model` is the MODEL. A flag of the command line wins over the file.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace attest {

struct KnownFlag {
  std::vector<std::string> names;  // without dashes: {"enable-prefix-caching", "no-enable-prefix-caching"}
  bool takes_value = true;
};

struct ConfigEntry {
  std::string key;                // as a flag is named
  int line = 0;                   // from 1
  std::vector<std::string> args;  // what the user would have typed; may be empty
};

// Errors name the file, the line, the key and, for one that is not known, the nearest known one.
[[nodiscard]] Expected<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path,
                                                                const std::vector<KnownFlag>& known);

using ConfigReader = decltype(&ReadConfigFile);

}  // namespace attest
