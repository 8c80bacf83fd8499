#include "engine/runner.h"

#include <fmt/format.h>

namespace attest {

KvShape ModelRunner::KvShapeOf(const Model& model) {
  const AttentionSpec& spec = model.attention_spec();
  return {.num_layers = model.config().num_layers,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .v_head_dim = spec.v_head_dim,
          .dtype = spec.kv_dtype,
          .block_size = spec.block_size};
}

Expected<std::unique_ptr<ModelRunner>> ModelRunner::Create(Model& model, KvStorage kv, ThreadTeam& team) {
  const KvShape want = KvShapeOf(model);
  if (kv.layers().size() != static_cast<size_t>(want.num_layers)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the KV cache has {} layers, the model {}", kv.layers().size(), want.num_layers),
                "num_layers");
  }
  for (const PagedKv& layer : kv.layers()) {
    if (layer.kv_heads != want.kv_heads || layer.head_dim != want.head_dim ||
        layer.v_head_dim != want.v_head_dim || layer.dtype != want.dtype ||
        layer.block_size != want.block_size) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("the KV cache holds {} heads of {}+{} {} in blocks of {}, the model needs {} of "
                      "{}+{} {} in blocks of {}",
                      layer.kv_heads, layer.head_dim, layer.v_head_dim, DTypeName(layer.dtype),
                      layer.block_size, want.kv_heads, want.head_dim, want.v_head_dim, DTypeName(want.dtype),
                      want.block_size));
    }
  }
  return std::unique_ptr<ModelRunner>(new ModelRunner(model, std::move(kv), team));
}

Status ModelRunner::Run(const StepBatch& batch, View<float, 2> logits) {
  routes_.clear();
  AttentionLengths lengths;
  lengths.q_begin = &batch.q_begin;
  lengths.kv_len = batch.kv_len;
  lengths.block_tables = batch.block_tables();
  ATTEST_ASSIGN_OR_RETURN(
      const AttentionPlanPtr plan,
      PlanAttention(model_.attention_router(), model_.attention_spec(), lengths, team_.size()));
  model_.Forward(batch, *plan, kv_.layers(), logits, team_);
  routes_ = PlannedRoutes(*plan);
  return {};
}

Status ModelRunner::Logits(const StepBatch& /*batch*/, std::span<const int32_t> rows, View<float, 2> logits) {
  model_.Logits(rows, logits, team_);
  return {};
}

}  // namespace attest
