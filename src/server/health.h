// The details of GET /health: whether the engine works, and what the sentinel has seen. Pure.
#pragma once

#include <string>
#include <string_view>

#include "attention/sentinel.h"
#include "engine/engine.h"

namespace attest {

// {"status": "ok" | "degraded" | "failing" | "stopped", "reason": ..., "attention": {...}}; docs/http.md has
// the fields. Holds no text and no ids of any request.
[[nodiscard]] std::string HealthJson(const EngineStats& engine, const SentinelStats& sentinel);

// Its parts. `sentinel` may be null: nothing is checked.
[[nodiscard]] std::string_view HealthStatus(const EngineStats& engine, const SentinelStats* sentinel);
[[nodiscard]] std::string SentinelJson(const SentinelStats& sentinel);

}  // namespace attest
