// Flags and wiring: reads the environment, parses the command line, runs the command. Nothing below the
// command line reads the environment.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int main(int argc, char** argv) {
  const attest::HubEnvironment environment{.hf_hub_cache = Variable("HF_HUB_CACHE"),
                                           .hf_home = Variable("HF_HOME"),
                                           .xdg_cache_home = Variable("XDG_CACHE_HOME"),
                                           .home = Variable("HOME")};
  auto parsed =
      attest::ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc), &attest::ReadConfigFile);
  if (const auto* exit_now = std::get_if<attest::ExitNow>(&parsed)) {
    std::fputs(exit_now->text.c_str(), exit_now->status == 0 ? stdout : stderr);
    return exit_now->status;
  }
  return std::visit(
      [&](const auto& options) {
        using Options = std::decay_t<decltype(options)>;
        if constexpr (std::is_same_v<Options, attest::ServeOptions>)
          return attest::RunServe(options, environment);
        if constexpr (std::is_same_v<Options, attest::GenerateOptions>)
          return attest::RunGenerate(options, environment);
        if constexpr (std::is_same_v<Options, attest::ChatOptions>)
          return attest::RunChat(options, environment);
        if constexpr (std::is_same_v<Options, attest::TokenizeOptions>)
          return attest::RunTokenize(options, environment);
        if constexpr (std::is_same_v<Options, attest::InspectOptions>)
          return attest::RunInspect(options, environment);
        if constexpr (std::is_same_v<Options, attest::KernelsOptions>)
          return attest::RunKernels(options, environment);
        if constexpr (std::is_same_v<Options, attest::ReplayOptions>)
          return attest::RunReplay(options, environment);
        if constexpr (std::is_same_v<Options, attest::ExplainOptions>)
          return attest::RunExplain(options, environment);
        if constexpr (std::is_same_v<Options, attest::ConformOptions>)
          return attest::RunConform(options, environment);
      },
      std::get<attest::Command>(parsed));
}
