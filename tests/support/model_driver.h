// Drives a Model without an engine: own KV cache, own block tables, steps of any mix. Pages of the sequences
// are dealt out in a shuffled order, and every slot starts as NaN, so that a read past kv_len or of another
// sequence's page shows in the logits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "cache/kv_storage.h"
#include "io/checkpoint.h"
#include "model/model.h"

namespace attest {

// One sequence's part of a step: its next tokens.
struct StepPiece {
  int seq = 0;
  std::span<const int32_t> tokens;
};

class ModelDriver {
 public:
  ModelDriver(Model& model, ThreadTeam& team, int num_seqs, int max_len)
      : model_(model),
        team_(team),
        block_size_(model.attention_spec().block_size),
        blocks_per_seq_(std::max(2, (max_len + block_size_ - 1) / block_size_)),
        kv_(Allocate(model, int64_t{num_seqs} * blocks_per_seq_)),
        kv_len_(static_cast<size_t>(num_seqs), 0),
        tables_(static_cast<size_t>(num_seqs * blocks_per_seq_)) {
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(7));
  }

  // Appends the tokens of every piece and returns the logits of all rows, in the order of the pieces. Valid
  // until the next step.
  View<const float, 2> Step(std::span<const StepPiece> pieces, bool last_rows_only = false) {
    StepBatch batch = MakeBatch(pieces, last_rows_only);
    std::vector<AttentionPlanPtr> plans;
    std::vector<const AttentionPlan*> all;
    for (int group = 0; group < batch.num_groups(); ++group) {
      auto plan = PlanAttention(model_.attention_router(), model_.attention_spec(group),
                                {.q_begin = &batch.q_begin,
                                 .kv_len = batch.kv_len,
                                 .block_tables = batch.block_tables(group),
                                 .owned = std::nullopt},
                                team_.size());
      if (!plan) {
        ADD_FAILURE() << plan.error().message;
        return {};
      }
      all.push_back(plan->get());
      plans.push_back(std::move(*plan));
    }
    const auto rows = static_cast<int64_t>(batch.logit_rows.size());
    const int64_t vocab = model_.config().vocab_size;
    logits_.assign(static_cast<size_t>(rows * vocab), std::nanf(""));
    const auto logits = View<float, 2>::Dense(logits_.data(), {rows, vocab});
    model_.Forward(batch, all, kv_.layers(), logits, team_);
    return logits;
  }
  View<const float, 2> Step(int seq, std::span<const int32_t> tokens, bool last_row_only = false) {
    const StepPiece piece{.seq = seq, .tokens = tokens};
    return Step(std::span(&piece, 1), last_row_only);
  }

  // Without running it; `pieces` count as appended.
  StepBatch MakeBatch(std::span<const StepPiece> pieces, bool last_rows_only) {
    StepBatch batch;
    StepBlocks blocks;
    std::vector<int32_t> lengths;
    batch.block_ids_per_seq = blocks_per_seq_;
    for (const StepPiece& piece : pieces) {
      const auto seq = static_cast<size_t>(piece.seq);
      const auto* table = tables_.data() + piece.seq * blocks_per_seq_;
      for (size_t i = 0; i < piece.tokens.size(); ++i) {
        const int32_t position = kv_len_[seq]++;
        batch.tokens.push_back(piece.tokens[i]);
        batch.positions.push_back(position);
        blocks.slots.push_back(int64_t{table[position / block_size_]} * block_size_ + position % block_size_);
        if (!last_rows_only || i + 1 == piece.tokens.size()) {
          batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
        }
      }
      lengths.push_back(static_cast<int32_t>(piece.tokens.size()));
      batch.kv_len.push_back(kv_len_[seq]);
      const int used = (kv_len_[seq] + block_size_ - 1) / block_size_;
      for (int i = 0; i < blocks_per_seq_; ++i) blocks.block_ids.push_back(i < used ? table[i] : -1);
    }
    batch.q_begin = CuSeqlens::FromLengths(lengths).value();
    // Every layer has pages of its own here, so the groups may use the same blocks.
    batch.groups.assign(model_.kv_groups().size(), blocks);
    return batch;
  }

  void Forget(int seq) { kv_len_[static_cast<size_t>(seq)] = 0; }
  [[nodiscard]] const KvStorage& kv() const { return kv_; }

 private:
  static KvStorage Allocate(const Model& model, int64_t num_blocks) {
    const AttentionSpec& spec = model.attention_spec();
    KvStorage kv = KvStorage::Allocate({.num_layers = model.config().num_layers,
                                        .kv_heads = spec.kv_heads,
                                        .head_dim = spec.head_dim,
                                        .v_head_dim = spec.v_head_dim,
                                        .dtype = spec.kv_dtype,
                                        .block_size = spec.block_size},
                                       num_blocks)
                       .value();
    for (const PagedKv& layer : kv.layers()) {
      // K pages of all blocks, then V pages, in one dense buffer: all bits set is NaN in f32 and in bf16.
      std::memset(layer.k.data, 0xff,
                  static_cast<size_t>(PagedKvLayerBytes(spec.kv_dtype, num_blocks, spec.block_size,
                                                        spec.kv_heads, spec.head_dim, spec.v_head_dim)));
    }
    return kv;
  }

  Model& model_;
  ThreadTeam& team_;
  int block_size_;
  int blocks_per_seq_;
  KvStorage kv_;
  std::vector<int32_t> kv_len_;  // tokens of each sequence so far
  std::vector<int32_t> tables_;  // [num_seqs, blocks_per_seq]
  std::vector<float> logits_;
};

inline Expected<std::unique_ptr<Model>> LoadModel(const std::filesystem::path& path, ComputeMode compute,
                                                  ThreadTeam& team) {
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  ModelOptions options;
  options.cpu = DetectCpu();
  options.compute = compute;
  options.kv_dtype = compute == ComputeMode::kPrecise ? DType::kF32 : DType::kBF16;
  return Model::Load(*checkpoint, options, team);
}

// Natural logarithm of the softmax of one row of logits, in double.
class LogProbs {
 public:
  LogProbs(const float* logits, int64_t vocab) : logits_(logits), vocab_(vocab) {
    const float best = *std::max_element(logits, logits + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - best);
    log_sum_ = best + std::log(sum);
  }
  [[nodiscard]] double of(int64_t id) const { return static_cast<double>(logits_[id]) - log_sum_; }
  [[nodiscard]] int32_t argmax() const {
    return static_cast<int32_t>(std::max_element(logits_, logits_ + vocab_) - logits_);
  }
  // Ids of the `count` best, best first.
  [[nodiscard]] std::vector<int32_t> top(int count) const {
    std::vector<int32_t> ids(static_cast<size_t>(vocab_));
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(),
                      [this](int32_t a, int32_t b) { return logits_[a] > logits_[b]; });
    ids.resize(static_cast<size_t>(count));
    return ids;
  }

 private:
  const float* logits_;
  int64_t vocab_;
  double log_sum_ = 0;
};

}  // namespace attest
