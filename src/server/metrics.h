// The series of /metrics (docs/metrics.md). Owned by the CLI: it is the engine's observer, so it exists
// before the engine, and the server renders it. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/sentinel.h"
#include "engine/engine.h"
#include "server/http_server.h"
#include "server/step_profile.h"

namespace attest {

struct MetricsOptions {
  std::string prefix = "attest:";  // "vllm:" lets dashboards and routers made for vLLM read the same series
  std::string model_name;          // label of every series
  int32_t max_model_len = 0;       // sets the length buckets
  int32_t block_size = 0;
  int64_t num_blocks = 0;
  // Kernel chosen at load for each phase, such as {"decode", "cpu_avx2"}: an information gauge.
  std::vector<std::pair<std::string, std::string>> attention_kernels;
};

// Query rows that a kernel has computed in a phase so far.
struct AttentionRows {
  std::string phase, kernel;
  int64_t num_rows = 0;
};

class ServerMetrics : public EngineObserver {
 public:
  explicit ServerMetrics(const MetricsOptions& options);
  ~ServerMetrics() override;

  void OnStep(const StepRecord& step) override;
  void OnRequestFinished(const RequestRecord& request) override;

  // One sequence as the client saw it end.
  void CountFinished(FinishReason reason);
  void ObserveRequest(int n);      // an accepted request and its n
  void CountResponse(int status);  // by status code
  // From the first token of a batch in the engine's hands until all of the batch was written to the sockets.
  void ObserveDelivery(std::chrono::duration<double> delay);

  [[nodiscard]] StepProfile& profile() { return profile_; }

  // Prometheus text format 0.0.4.
  [[nodiscard]] std::string Render(const EngineStats& engine, const HttpStats& http,
                                   const std::optional<SentinelStats>& sentinel = std::nullopt) const;

  // For /engine, in no order: what really ran. And what was chosen at load.
  [[nodiscard]] std::vector<AttentionRows> attention_rows() const;
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& attention_kernels() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  StepProfile profile_;
};

}  // namespace attest
