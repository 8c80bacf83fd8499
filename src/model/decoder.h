// The decoder of the Llama family on the CPU: embeds, runs the layers, writes logits. Owns the weights and
// the run state of a step, whose buffers grow to the largest batch seen and are then reused. One thread
// drives it.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "model/weights.h"
#include "tensor/buffer.h"

namespace attest {

class Decoder final : public Model {
 public:
  // `specs`: one per group.
  Decoder(ModelConfig config, DecoderWeights weights, std::vector<KvGroup> groups,
          std::vector<AttentionSpec> specs, AttentionRouter router)
      : config_(std::move(config)),
        weights_(std::move(weights)),
        groups_(std::move(groups)),
        places_(PlacesOf(groups_, static_cast<size_t>(config_.num_layers))),
        specs_(std::move(specs)),
        router_(std::move(router)) {}

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] const std::vector<KvGroup>& kv_groups() const override { return groups_; }
  [[nodiscard]] const AttentionSpec& attention_spec(int group) const override {
    return specs_[static_cast<size_t>(group)];
  }
  [[nodiscard]] const AttentionRouter& attention_router() const override { return router_; }
  [[nodiscard]] int64_t weight_bytes() const override { return weights_.size_bytes; }
  void set_stage_times(StageTimes* times) override { stage_times_ = times; }
  void set_sentinel(Sentinel* sentinel) override { sentinel_ = sentinel; }

  [[nodiscard]] Status Reserve(int64_t num_tokens, int64_t num_logit_rows, ThreadTeam& team) override;
  using Model::attention_spec;
  using Model::Forward;
  void Forward(const StepBatch& batch, std::span<const AttentionPlan* const> plans,
               const std::vector<PagedKv>& kv, View<float, 2> logits, ThreadTeam& team) override;
  void Logits(std::span<const int32_t> rows, View<float, 2> logits, ThreadTeam& team) override;
  [[nodiscard]] int64_t lost_nans() const override { return lost_nans_; }

 private:
  // Activations of one step, f32, row-major. Views into `storage`, sized for `tokens` and `logit_rows`.
  struct RunState {
    int64_t tokens = 0;
    int64_t logit_rows = 0;
    int64_t last_tokens = 0;  // rows of `residual` that the last Forward wrote
    Buffer storage;
    float* residual = nullptr;   // [tokens, hidden_size]
    float* normed = nullptr;     // [tokens, hidden_size]
    float* qkv = nullptr;        // [tokens, (q_heads + 2 kv_heads) * head_dim]
    float* attention = nullptr;  // [tokens, q_heads * head_dim]
    float* gate_up = nullptr;    // [tokens, 2 * intermediate_size]
    float* activated = nullptr;  // [tokens, intermediate_size]
    float* rope = nullptr;       // [tokens, rotary_dim]: cosines, then sines
    float* last = nullptr;       // [logit_rows, hidden_size]
    MatMulScratch scratch;
  };

  void Embed(const StepBatch& batch, ThreadTeam& team);
  void RunLayer(int index, const StepBatch& batch, const AttentionPlan& plan, std::span<const int64_t> slots,
                const PagedKv& kv, ThreadTeam& team);
  void WriteLogits(std::span<const int32_t> token_rows, View<float, 2> logits, ThreadTeam& team);
  void Mark(ForwardStage stage);  // adds the time since the last mark to `stage`

  const ModelConfig config_;
  const DecoderWeights weights_;
  const std::vector<KvGroup> groups_;
  const std::vector<KvPlace> places_;       // of each layer
  const std::vector<AttentionSpec> specs_;  // of each group
  const AttentionRouter router_;
  RunState run_;
  StageTimes* stage_times_ = nullptr;
  Sentinel* sentinel_ = nullptr;
  int64_t last_mark_ns_ = 0;
  int64_t lost_nans_ = 0;  // by the last Forward
};

}  // namespace attest
