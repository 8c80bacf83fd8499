#include "model/decoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "attention/sentinel.h"
#include "base/check.h"
#include "kernels/elementwise.h"

namespace attest {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

View<float, 2> Rows(float* data, int64_t rows, int64_t cols) {
  return View<float, 2>::Dense(data, {rows, cols});
}

// Columns [first, first + heads * head_dim) of x as heads.
View<float, 3> Heads(View<float, 2> x, int64_t first, int64_t heads, int64_t head_dim) {
  return {
      .data = x.data + first, .shape = {x.shape[0], heads, head_dim}, .stride = {x.stride[0], head_dim, 1}};
}

const float* DataOrNull(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

}  // namespace

const char* ForwardStageName(ForwardStage stage) {
  switch (stage) {
    case ForwardStage::kEmbed:
      return "embed";
    case ForwardStage::kNorm:
      return "norm";
    case ForwardStage::kQkv:
      return "qkv";
    case ForwardStage::kRope:
      return "rope";
    case ForwardStage::kKvWrite:
      return "kv_write";
    case ForwardStage::kAttention:
      return "attention";
    case ForwardStage::kOutput:
      return "output";
    case ForwardStage::kGateUp:
      return "gate_up";
    case ForwardStage::kActivation:
      return "activation";
    case ForwardStage::kDown:
      return "down";
    case ForwardStage::kHead:
      return "head";
    case ForwardStage::kCount:
      break;
  }
  return "unknown";
}

Status Decoder::Reserve(int64_t num_tokens, int64_t num_logit_rows, ThreadTeam& team) {
  if (num_tokens <= run_.tokens && num_logit_rows <= run_.logit_rows) return {};
  const int64_t tokens = std::max(num_tokens, run_.tokens);
  const int64_t logit_rows = std::max(num_logit_rows, run_.logit_rows);
  struct Part {
    float** data;
    int64_t elements;
  };
  const int64_t q_width = int64_t{config_.q_heads} * config_.head_dim;
  const int64_t kv_width = int64_t{config_.kv_heads} * config_.head_dim;
  const Part parts[] = {
      {&run_.residual, tokens * config_.hidden_size},
      {&run_.normed, tokens * config_.hidden_size},
      {&run_.qkv, tokens * (q_width + 2 * kv_width)},
      {&run_.attention, tokens * q_width},
      {&run_.gate_up, tokens * 2 * config_.intermediate_size},
      {&run_.activated, tokens * config_.intermediate_size},
      {&run_.rope, tokens * config_.rope.rotary_dim},
      {&run_.last, logit_rows * config_.hidden_size},
  };
  constexpr int64_t kAlignment = 64 / sizeof(float);  // each part starts on a cache line
  int64_t total = 0;
  for (const Part& part : parts) total += (part.elements + kAlignment - 1) / kAlignment * kAlignment;
  run_.storage = Buffer();  // the old one goes first, so that both never exist at once
  run_.tokens = run_.logit_rows = run_.last_tokens = 0;
  ATTEST_ASSIGN_OR_RETURN(run_.storage,
                          Buffer::Allocate(total * int64_t{sizeof(float)}, "activations of one step"));
  float* next = run_.storage.as<float>();
  for (const Part& part : parts) {
    *part.data = next;
    next += (part.elements + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (const LayerWeights& layer : weights_.layers) {
    for (const PackedMatrix* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      ATTEST_RETURN_IF_ERROR(run_.scratch.Reserve(*matrix, tokens, team));
    }
  }
  ATTEST_RETURN_IF_ERROR(run_.scratch.Reserve(weights_.head, logit_rows, team));
  run_.tokens = tokens;
  run_.logit_rows = logit_rows;
  return {};
}

void Decoder::Mark(ForwardStage stage) {
  if (stage_times_ == nullptr) return;
  const int64_t now = NowNs();
  stage_times_->ns[static_cast<size_t>(stage)] += now - last_mark_ns_;
  last_mark_ns_ = now;
}

void Decoder::Embed(const StepBatch& batch, ThreadTeam& team) {
  const PackedMatrix& embedding = weights_.embedding();
  team.Run([&](int rank) {
    const IndexRange rows = PartitionRange(batch.num_tokens(), rank, team.size());
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      embedding.DequantizeRow(batch.tokens[static_cast<size_t>(row)],
                              run_.residual + row * config_.hidden_size);
    }
  });
  Mark(ForwardStage::kEmbed);
}

void Decoder::RunLayer(int index, const StepBatch& batch, const AttentionPlan& plan,
                       std::span<const int64_t> slots, const PagedKv& kv, ThreadTeam& team) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const int64_t tokens = batch.num_tokens();
  const int64_t head_dim = config_.head_dim;
  const int64_t q_width = config_.q_heads * head_dim;
  const int64_t kv_width = config_.kv_heads * head_dim;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const View<float, 2> residual = Rows(run_.residual, tokens, config_.hidden_size);
  const View<float, 2> normed = Rows(run_.normed, tokens, config_.hidden_size);
  const View<float, 2> qkv = Rows(run_.qkv, tokens, q_width + 2 * kv_width);
  const View<float, 2> gate_up = Rows(run_.gate_up, tokens, 2 * config_.intermediate_size);
  const View<float, 2> activated = Rows(run_.activated, tokens, config_.intermediate_size);
  const View<float, 3> q = Heads(qkv, 0, config_.q_heads, head_dim);
  const View<float, 3> k = Heads(qkv, q_width, config_.kv_heads, head_dim);
  const View<float, 3> v = Heads(qkv, q_width + kv_width, config_.kv_heads, head_dim);

  RmsNorm(residual, layer.attention_norm.data(), eps, normed, team);
  Mark(ForwardStage::kNorm);
  MatMul(layer.qkv, {.x = normed, .y = qkv, .bias = DataOrNull(layer.qkv_bias)}, run_.scratch, team);
  Mark(ForwardStage::kQkv);
  // Q and K lie side by side, so one region rotates the heads of both.
  ApplyRope(Heads(qkv, 0, config_.q_heads + config_.kv_heads, head_dim),
            View<const float, 2>::Dense(run_.rope, {tokens, config_.rope.rotary_dim}), team);
  Mark(ForwardStage::kRope);
  lost_nans_ += AppendKv(k, v, slots, kv, team);
  Mark(ForwardStage::kKvWrite);
  const View<float, 2> attention = Rows(run_.attention, tokens, q_width);
  const AttendArgs attend{.q = q, .out = Heads(attention, 0, config_.q_heads, head_dim), .kv = &kv};
  Attend(plan, attend, team);
  if (sentinel_ != nullptr) sentinel_->AfterAttend(index, plan, attend, team);
  Mark(ForwardStage::kAttention);
  MatMul(layer.output,
         {.x = attention,
          .y = residual,
          .bias = DataOrNull(layer.output_bias),
          .epilogue = MatMulEpilogue::kAdd},
         run_.scratch, team);
  Mark(ForwardStage::kOutput);

  RmsNorm(residual, layer.mlp_norm.data(), eps, normed, team);
  Mark(ForwardStage::kNorm);
  MatMul(layer.gate_up, {.x = normed, .y = gate_up, .bias = DataOrNull(layer.gate_up_bias)}, run_.scratch,
         team);
  Mark(ForwardStage::kGateUp);
  SiluMul(gate_up, activated, team);
  Mark(ForwardStage::kActivation);
  MatMul(
      layer.down,
      {.x = activated, .y = residual, .bias = DataOrNull(layer.down_bias), .epilogue = MatMulEpilogue::kAdd},
      run_.scratch, team);
  Mark(ForwardStage::kDown);
}

// REQUIRES: at most run_.logit_rows rows.
void Decoder::WriteLogits(std::span<const int32_t> token_rows, View<float, 2> logits, ThreadTeam& team) {
  const auto rows = static_cast<int64_t>(token_rows.size());
  if (rows == 0) return;
  const int64_t hidden = config_.hidden_size;
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(run_.last + i * hidden, run_.residual + token_rows[static_cast<size_t>(i)] * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
  const View<float, 2> last = Rows(run_.last, rows, hidden);
  RmsNorm(last, weights_.final_norm.data(), static_cast<float>(config_.rms_norm_eps), last, team);
  Mark(ForwardStage::kNorm);
  MatMul(weights_.head, {.x = last, .y = logits}, run_.scratch, team);
  Mark(ForwardStage::kHead);
}

void Decoder::Forward(const StepBatch& batch, std::span<const AttentionPlan* const> plans,
                      const std::vector<PagedKv>& kv, View<float, 2> logits, ThreadTeam& team) {
  const int64_t tokens = batch.num_tokens();
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  ATTEST_CHECK_EQ(static_cast<int64_t>(batch.tokens.size()), tokens);
  ATTEST_CHECK_EQ(static_cast<int64_t>(batch.positions.size()), tokens);
  ATTEST_CHECK_EQ(plans.size(), groups_.size());
  ATTEST_CHECK_EQ(batch.num_groups(), std::ssize(groups_));
  for (int group = 0; group < batch.num_groups(); ++group) {
    ATTEST_CHECK_EQ(std::ssize(batch.slots_of(group)), tokens);
  }
  ATTEST_CHECK_EQ(static_cast<int>(kv.size()), config_.num_layers);
  ATTEST_CHECK_EQ(logits.shape[0], rows);
  ATTEST_CHECK_EQ(logits.shape[1], config_.vocab_size);
  for (const int32_t token : batch.tokens) {
    ATTEST_CHECK_GE(token, 0);
    ATTEST_CHECK_LT(token, config_.vocab_size);
  }
  for (const int32_t row : batch.logit_rows) {
    ATTEST_CHECK_GE(row, 0);
    ATTEST_CHECK_LT(row, tokens);
  }
  if (tokens == 0) return;
  const Status reserved = Reserve(tokens, std::max<int64_t>(rows, 1), team);  // Logits wants at least one
  ATTEST_CHECK(reserved.has_value());  // callers that must survive this call Reserve first
  run_.last_tokens = tokens;
  lost_nans_ = 0;

  if (stage_times_ != nullptr) {
    last_mark_ns_ = NowNs();
    ++stage_times_->steps;
  }
  Embed(batch, team);
  const RopeTable table = {.inv_freq = weights_.inv_freq.data(),
                           .rotary_dim = config_.rope.rotary_dim,
                           .attention_factor = static_cast<float>(config_.rope.attention_factor)};
  ComputeRopeAngles(batch.positions, table, Rows(run_.rope, tokens, config_.rope.rotary_dim), team);
  Mark(ForwardStage::kRope);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const int group = places_[static_cast<size_t>(layer)].group;
    RunLayer(layer, batch, *plans[static_cast<size_t>(group)], batch.slots_of(group),
             kv[static_cast<size_t>(layer)], team);
  }
  WriteLogits(batch.logit_rows, logits, team);
}

void Decoder::Logits(std::span<const int32_t> rows, View<float, 2> logits, ThreadTeam& team) {
  ATTEST_CHECK_EQ(logits.shape[0], static_cast<int64_t>(rows.size()));
  ATTEST_CHECK_EQ(logits.shape[1], config_.vocab_size);
  for (const int32_t row : rows) {
    ATTEST_CHECK_GE(row, 0);
    ATTEST_CHECK_LT(row, run_.last_tokens);
  }
  if (stage_times_ != nullptr) last_mark_ns_ = NowNs();
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(run_.logit_rows)) {
    const size_t count = std::min(static_cast<size_t>(run_.logit_rows), rows.size() - begin);
    View<float, 2> part = logits;
    part.data = logits.At(static_cast<int64_t>(begin));
    part.shape[0] = static_cast<int64_t>(count);
    WriteLogits(rows.subspan(begin, count), part, team);
  }
}

}  // namespace attest
