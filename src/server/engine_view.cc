#include "server/engine_view.h"

#include "server/health.h"
#include "server/json_writer.h"

namespace attest {

std::string EngineJson(const EngineView& view) {
  const EngineStats& stats = view.stats;
  std::string body;
  JsonWriter json(body);
  json.BeginObject().Key("status");
  const std::string_view status = HealthStatus(stats, view.sentinel ? &*view.sentinel : nullptr);
  json.String(view.draining && stats.healthy ? "draining" : status);
  if (!stats.stopped_because.empty()) json.Key("reason").String(stats.stopped_because);
  json.Key("version").String(view.version).Key("uptime_seconds").Int(view.uptime_seconds);
  json.Key("model").BeginObject().Key("id").String(view.model);
  json.Key("max_model_len").Int(view.options.max_model_len);
  json.Key("chat_template").Bool(view.has_chat_template).EndObject();
  json.Key("sequences").BeginObject();
  json.Key("running").Int(stats.num_running).Key("max_running").Int(view.options.max_num_seqs);
  json.Key("waiting").Int(stats.num_waiting).Key("preempted").Int(stats.num_preemptions).EndObject();
  json.Key("kv_cache").BeginObject();
  json.Key("used_blocks").Int(stats.total_blocks - stats.free_blocks);
  json.Key("total_blocks").Int(stats.total_blocks).Key("block_size").Int(view.options.block_size).EndObject();
  json.Key("prefix_cache").BeginObject().Key("enabled").Bool(view.options.prefix_caching);
  json.Key("queried_tokens").Int(stats.prefix_cache_queries);
  json.Key("hit_tokens").Int(stats.prefix_cache_hits).EndObject();
  json.Key("tokens").BeginObject().Key("prompt").Int(stats.prompt_tokens);
  json.Key("prompt_cached").Int(stats.prompt_tokens_cached);
  json.Key("generated").Int(stats.generation_tokens).EndObject();
  json.Key("steps").BeginObject().Key("run").Int(stats.steps).Key("failed").Int(stats.failed_steps);
  json.Key("discarded").Int(stats.discarded_steps).EndObject();
  json.Key("attention").BeginObject().Key("at_load").BeginArray();
  for (const auto& [phase, kernel] : view.kernels_at_load) {
    json.BeginObject().Key("phase").String(phase).Key("kernel").String(kernel).EndObject();
  }
  json.EndArray().Key("rows").BeginArray();
  for (const AttentionRows& rows : view.rows) {
    json.BeginObject().Key("phase").String(rows.phase).Key("kernel").String(rows.kernel);
    json.Key("rows").Int(rows.num_rows).EndObject();
  }
  json.EndArray().EndObject().Key("sentinel");
  if (view.sentinel) {
    json.Raw(SentinelJson(*view.sentinel));
  } else {
    json.Null();
  }
  const SamplingParams& sampling = view.default_sampling;
  json.Key("default_sampling").BeginObject();
  json.Key("temperature").Number(sampling.temperature).Key("top_p").Number(sampling.top_p);
  json.Key("top_k").Int(sampling.top_k).Key("min_p").Number(sampling.min_p);
  json.Key("typical_p").Number(sampling.typical_p);
  json.Key("repetition_penalty").Number(sampling.repetition_penalty);
  json.Key("presence_penalty").Number(sampling.presence_penalty);
  json.Key("frequency_penalty").Number(sampling.frequency_penalty).EndObject();
  json.EndObject();
  return body;
}

}  // namespace attest
