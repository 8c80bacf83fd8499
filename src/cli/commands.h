// What each command does. All return the process's exit status; errors are printed to standard error.
#pragma once

#include <cstdio>
#include <string>

#include "cli/options.h"
#include "io/checkpoint.h"

namespace attest {

[[nodiscard]] int RunServe(const ServeOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunGenerate(const GenerateOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunChat(const ChatOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunTokenize(const TokenizeOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunInspect(const InspectOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunKernels(const KernelsOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunReplay(const ReplayOptions& options, const HubEnvironment& environment);
[[nodiscard]] int RunExplain(const ExplainOptions& options, const HubEnvironment& environment);

// Status 1: a kernel is wrong; 2: the trial could not be held.
[[nodiscard]] int RunConform(const ConformOptions& options, const HubEnvironment& environment);

// A line on standard output.
inline void PrintLine(const std::string& line) { std::puts(line.c_str()); }

}  // namespace attest
