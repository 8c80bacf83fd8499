// Run, the second verb of a step, on this machine: plans attention once for each KV group and sends the batch
// through the model.
#pragma once

#include <span>
#include <vector>

#include "attention/sentinel.h"
#include "base/thread_team.h"
#include "cache/kv_storage.h"
#include "engine/engine.h"
#include "model/model.h"

namespace attest {

// Owns the KV bytes; the model and the team outlive it and are used on the engine thread only.
class ModelRunner final : public StepRunner {
 public:
  // kInvalidArgument when `kv` does not have the model's layers, heads, dims, dtype or block size.
  // `sentinel` may be null: nothing is checked. It outlives the runner and is driven by it.
  static Expected<std::unique_ptr<ModelRunner>> Create(Model& model, KvStorage kv, ThreadTeam& team,
                                                       Sentinel* sentinel = nullptr);
  ~ModelRunner() override { model_.set_sentinel(nullptr); }

  // The KV cache a model needs.
  [[nodiscard]] static KvShape KvShapeOf(const Model& model);

  Status Run(const StepBatch& batch, View<float, 2> logits) override;
  Status Logits(const StepBatch& batch, std::span<const int32_t> rows, View<float, 2> logits) override;
  // What the sentinel saw, turned into what it was told to do about it. With kQuarantine the kernels at fault
  // are out of the list from the next Run on; where none is left for a phase, the engine must stop.
  [[nodiscard]] StepVerdict TakeVerdict() override;
  void OnThreadStart() override { team_.PinCaller(); }
  [[nodiscard]] std::span<const PlannedRoute> last_routes() const override { return routes_; }
  [[nodiscard]] ThreadTeam* team() override { return &team_; }

 private:
  ModelRunner(Model& model, KvStorage kv, ThreadTeam& team, Sentinel* sentinel)
      : model_(model),
        kv_(std::move(kv)),
        team_(team),
        sentinel_(sentinel),
        router_(model.attention_router()) {
    model_.set_sentinel(sentinel_);
  }

  Model& model_;
  KvStorage kv_;
  ThreadTeam& team_;
  Sentinel* const sentinel_;
  AttentionRouter router_;  // the model's, less what was quarantined
  std::vector<PlannedRoute> routes_;
};

}  // namespace attest
