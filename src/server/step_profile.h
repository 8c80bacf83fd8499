// What the steps between POST /start_profile and POST /stop_profile did. Owned by ServerMetrics, which sees
// every step. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace attest {

class StepProfile {
 public:
  bool Start();                       // false: one runs already
  std::optional<std::string> Stop();  // JSON; nothing: none runs
  void OnStep(const StepRecord& step);

 private:
  struct Counts {
    std::chrono::steady_clock::time_point begin;
    int64_t steps = 0, failed = 0, discarded = 0, tokens = 0, sampled = 0, preempted = 0;
    int32_t max_seqs = 0, max_tokens = 0;
    double schedule_seconds = 0, run_seconds = 0, commit_seconds = 0;
    std::map<std::pair<std::string, std::string>, int64_t> rows;  // by phase and kernel
  };
  std::atomic<bool> is_running_ = false;  // so that a step outside a profile costs one load
  std::mutex mutex_;
  Counts counts_;  // guarded by mutex_
};

}  // namespace attest
