#include "server/health.h"

#include <fmt/format.h>

#include <cmath>

#include "server/json_writer.h"

namespace attest {
namespace {

// JSON has no infinity: a value that was not finite is null.
std::string Number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string HealthJson(const EngineStats& engine, const SentinelStats& sentinel) {
  const char* status = !engine.stopped_because.empty() ? "stopped"
                       : !engine.healthy               ? "failing"
                       : !sentinel.quarantined.empty() ? "degraded"
                                                       : "ok";
  int64_t rows_checked = 0, mismatches = 0;
  for (const SentinelCounts& counts : sentinel.counts) {
    rows_checked += counts.rows_checked;
    mismatches += counts.mismatches;
  }
  std::string body;
  JsonWriter json(body);
  json.BeginObject().Key("status").String(status);
  if (!engine.stopped_because.empty()) json.Key("reason").String(engine.stopped_because);
  json.Key("attention").BeginObject();
  json.Key("verify_rate").Raw(Number(sentinel.rate));
  json.Key("on_mismatch").String(OnMismatchName(sentinel.on_mismatch));
  json.Key("rows_checked").Int(rows_checked).Key("mismatches").Int(mismatches);
  json.Key("quarantined").BeginArray();
  for (const std::string& kernel : sentinel.quarantined) json.String(kernel);
  json.EndArray().Key("kernels").BeginArray();
  for (const SentinelCounts& counts : sentinel.counts) {
    json.BeginObject()
        .Key("kernel")
        .String(counts.kernel)
        .Key("phase")
        .String(AttentionPhaseName(counts.phase));
    json.Key("rows_checked").Int(counts.rows_checked).Key("mismatches").Int(counts.mismatches);
    json.Key("worst_error").Raw(Number(counts.worst_error));
    json.Key("worst_error_ratio").Raw(Number(counts.worst_ratio)).EndObject();
  }
  json.EndArray();
  json.Key("cases_written").Int(sentinel.cases.written).Key("cases_failed").Int(sentinel.cases.failed);
  json.EndObject().EndObject();
  return body;
}

}  // namespace attest
