// The command line as a value.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/config_file.h"
#include "cli/options.h"

namespace attest {

// The program ends here: print `text` to standard output (status 0) or standard error, exit with `status`.
struct ExitNow {
  int status = 0;
  std::string text;
};

// `args` without the program's name. Help, version and errors come back as ExitNow; an unknown flag is
// answered with the nearest known one. `read_config` reads the file of --config, which needs a YAML library;
// without one, --config is refused.
[[nodiscard]] std::variant<Command, ExitNow> ParseCommandLine(const std::vector<std::string>& args,
                                                              ConfigReader read_config = nullptr);

}  // namespace attest
