// Run, the second verb of a step, on this machine: plans attention once and sends the batch through the
// model.
#pragma once

#include <span>
#include <vector>

#include "base/thread_team.h"
#include "cache/kv_storage.h"
#include "engine/engine.h"
#include "model/model.h"

namespace attest {

// Owns the KV bytes; the model and the team outlive it and are used on the engine thread only.
class ModelRunner final : public StepRunner {
 public:
  // kInvalidArgument when `kv` does not have the model's layers, heads, dims, dtype or block size.
  static Expected<std::unique_ptr<ModelRunner>> Create(Model& model, KvStorage kv, ThreadTeam& team);

  // The KV cache a model needs.
  [[nodiscard]] static KvShape KvShapeOf(const Model& model);

  Status Run(const StepBatch& batch, View<float, 2> logits) override;
  Status Logits(const StepBatch& batch, std::span<const int32_t> rows, View<float, 2> logits) override;
  void OnThreadStart() override { team_.PinCaller(); }
  [[nodiscard]] std::span<const PlannedRoute> last_routes() const override { return routes_; }
  [[nodiscard]] ThreadTeam* team() override { return &team_; }

 private:
  ModelRunner(Model& model, KvStorage kv, ThreadTeam& team)
      : model_(model), kv_(std::move(kv)), team_(team) {}

  Model& model_;
  KvStorage kv_;
  ThreadTeam& team_;
  std::vector<PlannedRoute> routes_;
};

}  // namespace attest
