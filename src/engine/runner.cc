#include "engine/runner.h"

#include <fmt/format.h>

#include <utility>

#include "attention/dispatch.h"
#include "base/log.h"

namespace attest {

KvShape ModelRunner::KvShapeOf(const Model& model) {
  const AttentionSpec& spec = model.attention_spec();
  return {.num_layers = model.config().num_layers,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .v_head_dim = spec.v_head_dim,
          .dtype = spec.kv_dtype,
          .block_size = spec.block_size,
          .buffers = BuffersOf(model.kv_groups(), static_cast<size_t>(model.config().num_layers))};
}

Expected<std::unique_ptr<ModelRunner>> ModelRunner::Create(Model& model, KvStorage kv, ThreadTeam& team,
                                                           Sentinel* sentinel) {
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
    const AttentionSpec& spec = model.attention_spec();
    if ((layer.k_scales != nullptr) != spec.has_k_descale ||
        (layer.v_scales != nullptr) != spec.has_v_descale) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the KV cache has {}, the model's {} cache needs {}",
                              layer.k_scales != nullptr ? "scales" : "no scales", DTypeName(want.dtype),
                              spec.has_k_descale ? "them" : "none"),
                  "kv_scales");
    }
  }
  return std::unique_ptr<ModelRunner>(new ModelRunner(model, std::move(kv), team, sentinel));
}

Status ModelRunner::Run(const StepBatch& batch, View<float, 2> logits) {
  routes_.clear();
  const auto num_groups = static_cast<int>(model_.kv_groups().size());
  if (batch.num_groups() != num_groups) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the step has the blocks of {} KV groups, the model has {}", batch.num_groups(),
                            num_groups),
                "kv_groups");
  }
  std::vector<AttentionPlanPtr> plans;
  std::vector<const AttentionPlan*> all;
  for (int group = 0; group < num_groups; ++group) {
    AttentionLengths lengths;
    lengths.q_begin = &batch.q_begin;
    lengths.kv_len = batch.kv_len;
    lengths.block_tables = batch.block_tables(group);
    ATTEST_ASSIGN_OR_RETURN(AttentionPlanPtr plan,
                            PlanAttention(router_, model_.attention_spec(group), lengths, team_.size()));
    all.push_back(plan.get());
    plans.push_back(std::move(plan));
  }
  if (sentinel_ != nullptr) sentinel_->BeginStep();
  model_.Forward(batch, all, kv_.layers(), logits, team_);
  if (model_.lost_nans() > 0) {
    return Fail(
        ErrorCode::kInternal,
        fmt::format("{} keys or values of this step are not numbers, which the {} KV cache cannot hold",
                    model_.lost_nans(), DTypeName(model_.attention_spec().kv_dtype)),
        "kv_cache");
  }
  // Every group computes every token: the tokens of a phase count once, with the kernel of the first group.
  routes_ = PlannedRoutes(*all.front());
  return {};
}

Status ModelRunner::Logits(const StepBatch& /*batch*/, std::span<const int32_t> rows, View<float, 2> logits) {
  model_.Logits(rows, logits, team_);
  return {};
}

StepVerdict ModelRunner::TakeVerdict() {
  using Action = StepVerdict::Action;
  if (sentinel_ == nullptr) return {};
  const std::vector<Mismatch> mismatches = sentinel_->TakeMismatches();
  const OnMismatch policy = sentinel_->options().on_mismatch;
  if (mismatches.empty()) return {};
  if (policy == OnMismatch::kLog) return {.error = {}, .ends_sharing = true};
  const auto stop = [](std::string message) -> StepVerdict {
    return {.action = Action::kStop,
            .error = {.code = ErrorCode::kInternal, .message = std::move(message), .field = "attention"}};
  };
  if (policy == OnMismatch::kStop) return stop(Describe(mismatches.front()));
  const AttentionRouter before = router_;
  for (const Mismatch& mismatch : mismatches) {
    router_ = router_.Without(mismatch.kernel);
    sentinel_->NoteQuarantined(mismatch.kernel);
    LogError(fmt::format("attention kernel {} is quarantined until this process ends", mismatch.kernel));
  }
  for (size_t group = 0; group < model_.kv_groups().size(); ++group) {
    for (const AttentionPhase phase : kAttentionPhases) {
      const AttentionProblem problem{.spec = model_.attention_spec(static_cast<int>(group)), .phase = phase};
      const auto choose = [&](const AttentionRouter& router) {
        return Choose(problem, router.cpu(), router.forced_for(phase), router.excluded());
      };
      const auto old_route = choose(before), route = choose(router_);
      if (!route) {
        return stop(fmt::format("attention kernel {} is quarantined and {} for {}", mismatches.front().kernel,
                                router_.forced_for(phase).empty() ? "no other is left" : "no other may run",
                                AttentionPhaseName(phase)));
      }
      if (old_route && old_route->name() == route->name()) continue;
      LogWarning(fmt::format("attention: {} runs {} from now on", AttentionPhaseName(phase), route->name()));
    }
  }
  // At rate 1 every row of every step that was committed has been checked.
  return {.action = sentinel_->options().rate == 1 ? Action::kRunAgain : Action::kRecomputeAll, .error = {}};
}

}  // namespace attest
