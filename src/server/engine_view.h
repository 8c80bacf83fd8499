// The answer of GET /engine: the engine at this moment, for the page at / and for people. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/sentinel.h"
#include "engine/engine.h"
#include "server/metrics.h"

namespace attest {

struct EngineView {
  std::string_view model, version;
  bool has_chat_template = false;
  bool draining = false;
  int64_t uptime_seconds = 0;
  const EngineOptions& options;
  const SamplingParams& default_sampling;
  const EngineStats& stats;
  const std::vector<std::pair<std::string, std::string>>& kernels_at_load;  // phase, kernel
  const std::vector<AttentionRows>& rows;
  const std::optional<SentinelStats>& sentinel;
};

// docs/http.md has the fields. Holds counts, names and settings; never anything of a request.
[[nodiscard]] std::string EngineJson(const EngineView& view);

}  // namespace attest
