// The details of GET /health: whether the engine works, and what the sentinel has seen. Pure.
#pragma once

#include <string>

#include "attention/sentinel.h"
#include "engine/engine.h"

namespace attest {

// {"status": "ok" | "degraded" | "failing" | "stopped", "reason": ..., "attention": {...}}; docs/http.md has
// the fields. Holds no text and no ids of any request.
[[nodiscard]] std::string HealthJson(const EngineStats& engine, const SentinelStats& sentinel);

}  // namespace attest
