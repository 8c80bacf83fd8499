#include "server/step_profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/json_writer.h"

namespace attest {

bool StepProfile::Start() {
  const std::lock_guard lock(mutex_);
  if (is_running_) return false;
  counts_ = {.begin = std::chrono::steady_clock::now(), .rows = {}};
  is_running_ = true;
  return true;
}

std::optional<std::string> StepProfile::Stop() {
  const std::lock_guard lock(mutex_);
  if (!is_running_) return std::nullopt;
  is_running_ = false;
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - counts_.begin;
  std::string out;
  JsonWriter json(out);
  const auto seconds = [&](std::string_view name, double value) {
    json.Key(name).Raw(fmt::format("{:.6f}", value));
  };
  json.BeginObject();
  seconds("wall_seconds", wall.count());
  json.Key("steps").Int(counts_.steps).Key("failed_steps").Int(counts_.failed);
  json.Key("discarded_steps").Int(counts_.discarded).Key("preemptions").Int(counts_.preempted);
  json.Key("tokens").Int(counts_.tokens).Key("sampled_tokens").Int(counts_.sampled);
  json.Key("max_seqs").Int(counts_.max_seqs).Key("max_step_tokens").Int(counts_.max_tokens);
  seconds("schedule_seconds", counts_.schedule_seconds);
  seconds("run_seconds", counts_.run_seconds);
  seconds("commit_seconds", counts_.commit_seconds);
  json.Key("attention_rows").BeginArray();
  for (const auto& [route, rows] : counts_.rows) {
    json.BeginObject().Key("phase").String(route.first).Key("kernel").String(route.second);
    json.Key("rows").Int(rows).EndObject();
  }
  json.EndArray().EndObject();
  return out;
}

void StepProfile::OnStep(const StepRecord& step) {
  if (!is_running_) return;
  const std::lock_guard lock(mutex_);
  ++counts_.steps;
  counts_.failed += step.failed ? 1 : 0;
  counts_.discarded += step.discarded ? 1 : 0;
  counts_.preempted += step.num_preempted;
  counts_.tokens += step.num_tokens;
  counts_.sampled += step.num_sampled;
  counts_.max_seqs = std::max(counts_.max_seqs, step.num_seqs);
  counts_.max_tokens = std::max(counts_.max_tokens, step.num_tokens);
  counts_.schedule_seconds += step.schedule_seconds;
  counts_.run_seconds += step.run_seconds;
  counts_.commit_seconds += step.commit_seconds;
  for (const PlannedRoute& route : step.routes) {
    counts_.rows[{AttentionPhaseName(route.phase), std::string(route.kernel)}] += route.num_tokens;
  }
}

}  // namespace attest
