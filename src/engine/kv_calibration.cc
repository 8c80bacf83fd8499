#include "engine/kv_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/runner.h"
#include "tensor/buffer.h"

namespace attest {
namespace {

// One sequence over blocks 1, 2, ... in every group.
StepBatch BatchOf(std::span<const int32_t> tokens, int block_size, size_t num_groups) {
  StepBatch batch;
  const auto count = static_cast<int32_t>(tokens.size());
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.positions.resize(tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  StepBlocks blocks;
  for (int64_t token = 0; token < count; ++token) blocks.slots.push_back(block_size + token);
  Expected<CuSeqlens> q_begin = CuSeqlens::FromLengths({{count}});
  ATTEST_CHECK(q_begin.has_value());
  batch.q_begin = std::move(*q_begin);
  batch.kv_len = {count};
  batch.block_ids_per_seq = (count + block_size - 1) / block_size;
  blocks.block_ids.resize(static_cast<size_t>(batch.block_ids_per_seq));
  std::iota(blocks.block_ids.begin(), blocks.block_ids.end(), 1);
  batch.groups.assign(num_groups, blocks);
  return batch;
}

Expected<float> ScaleOf(const KvPages& pages, int head, int dim, const PagedKv& kv, int64_t num_tokens) {
  float largest = 0;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t block = 1 + token / kv.block_size;
    const auto* row = static_cast<const float*>(pages.data) + block * pages.block_stride +
                      head * pages.head_stride + token % kv.block_size * pages.slot_stride;
    for (int d = 0; d < dim; ++d) {
      if (!std::isfinite(row[d])) {
        return Fail(ErrorCode::kInternal,
                    fmt::format("the key or value of token {}, KV head {} is not a finite number; an int8 KV "
                                "cache has no scale for it",
                                token, head),
                    "kv_cache_dtype");
      }
      largest = std::max(largest, std::abs(row[d]));
    }
  }
  return std::max(kKvScaleHeadroom * largest / 127.0f, std::numeric_limits<float>::min());
}

}  // namespace

Expected<KvScales> CalibrateKvScales(Model& model, std::span<const int32_t> tokens, ThreadTeam& team) {
  ATTEST_CHECK(!tokens.empty());
  tokens = tokens.first(std::min(tokens.size(), static_cast<size_t>(kMaxCalibrationTokens)));
  KvShape shape = ModelRunner::KvShapeOf(model);
  shape.dtype = DType::kF32;
  shape.buffers.clear();  // one sequence needs no pool: a buffer for each layer
  const StepBatch batch = BatchOf(tokens, shape.block_size, model.kv_groups().size());
  ATTEST_ASSIGN_OR_RETURN(const KvStorage kv, KvStorage::Allocate(shape, batch.block_ids_per_seq + 1));
  ATTEST_RETURN_IF_ERROR(model.Reserve(batch.num_tokens(), 1, team));
  AttentionLengths lengths;
  lengths.q_begin = &batch.q_begin;
  lengths.kv_len = batch.kv_len;
  lengths.block_tables = batch.block_tables();
  // A kernel that was forced for int8 need not take f32.
  ATTEST_ASSIGN_OR_RETURN(const AttentionRouter router,
                          AttentionRouter::Create(model.attention_router().cpu()));
  std::vector<AttentionPlanPtr> plans;
  std::vector<const AttentionPlan*> all;
  for (size_t group = 0; group < model.kv_groups().size(); ++group) {
    AttentionSpec spec = model.attention_spec(static_cast<int>(group));
    spec.kv_dtype = DType::kF32;
    spec.has_k_descale = spec.has_v_descale = false;
    ATTEST_ASSIGN_OR_RETURN(AttentionPlanPtr plan, PlanAttention(router, spec, lengths, team.size()));
    all.push_back(plan.get());
    plans.push_back(std::move(plan));
  }
  model.Forward(batch, all, kv.layers(),
                View<float, 2>::Dense(static_cast<float*>(nullptr), {0, model.config().vocab_size}), team);

  KvScales scales;
  for (const PagedKv& layer : kv.layers()) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      ATTEST_ASSIGN_OR_RETURN(const float k,
                              ScaleOf(layer.k, head, layer.head_dim, layer, batch.num_tokens()));
      ATTEST_ASSIGN_OR_RETURN(const float v,
                              ScaleOf(layer.v, head, layer.v_head_dim, layer, batch.num_tokens()));
      scales.k.push_back(k);
      scales.v.push_back(v);
    }
  }
  return scales;
}

}  // namespace attest
