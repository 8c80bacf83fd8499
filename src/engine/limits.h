// What the engine accepts. Pure checks; every error names the field, its value and the limit.
#pragma once

#include "base/error.h"
#include "engine/engine.h"

namespace attest {

[[nodiscard]] Status CheckOptions(const EngineOptions& options);

// REQUIRES: CheckOptions holds.
[[nodiscard]] Status CheckRequest(const Request& request, const EngineOptions& options);

}  // namespace attest
