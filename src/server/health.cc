#include "server/health.h"

#include "server/json_writer.h"

namespace attest {

std::string_view HealthStatus(const EngineStats& engine, const SentinelStats* sentinel) {
  if (!engine.stopped_because.empty()) return "stopped";
  if (!engine.healthy) return "failing";
  return sentinel != nullptr && !sentinel->quarantined.empty() ? "degraded" : "ok";
}

std::string SentinelJson(const SentinelStats& sentinel) {
  int64_t rows_checked = 0, mismatches = 0;
  for (const SentinelCounts& counts : sentinel.counts) {
    rows_checked += counts.rows_checked;
    mismatches += counts.mismatches;
  }
  std::string body;
  JsonWriter json(body);
  json.BeginObject().Key("verify_rate").Number(sentinel.rate);
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
    json.Key("worst_error").Number(counts.worst_error);
    json.Key("worst_error_ratio").Number(counts.worst_ratio).EndObject();
  }
  json.EndArray();
  json.Key("cases_written").Int(sentinel.cases.written).Key("cases_failed").Int(sentinel.cases.failed);
  json.EndObject();
  return body;
}

std::string HealthJson(const EngineStats& engine, const SentinelStats& sentinel) {
  std::string body;
  JsonWriter json(body);
  json.BeginObject().Key("status").String(HealthStatus(engine, &sentinel));
  if (!engine.stopped_because.empty()) json.Key("reason").String(engine.stopped_because);
  json.Key("attention").Raw(SentinelJson(sentinel)).EndObject();
  return body;
}

}  // namespace attest
