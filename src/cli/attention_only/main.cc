// The program of a build with ATTEST_ATTENTION_ONLY: the trials of the attention kernels and the page about
// them, with the flags of the whole program, for a processor on which nothing else is built.
#include <cstdio>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "attention/support.h"
#include "cli/command_line.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  constexpr int kNotBuilt = 2;
  auto parsed = attest::ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (const auto* exit_now = std::get_if<attest::ExitNow>(&parsed)) {
    std::fputs(exit_now->text.c_str(), exit_now->status == 0 ? stdout : stderr);
    return exit_now->status;
  }
  return std::visit(
      [&](const auto& options) {
        using Options = std::decay_t<decltype(options)>;
        if constexpr (std::is_same_v<Options, attest::ConformOptions>) {
          return attest::RunConform(options, {});
        } else if constexpr (std::is_same_v<Options, attest::ReplayOptions>) {
          return attest::RunReplay(options, {});
        } else {
          if constexpr (std::is_same_v<Options, attest::KernelsOptions>) {
            if (options.markdown) {
              std::fputs(attest::SupportMarkdown().c_str(), stdout);
              return 0;
            }
          }
          std::fputs(
              "attest: this build holds the attention library alone; it has conform, replay and kernels "
              "--markdown\n",
              stderr);
          return kNotBuilt;
        }
      },
      std::get<attest::Command>(parsed));
}
