#include "engine/step_batch.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace attest {

namespace {

// The block table of every sequence in one KV group, and the slots of its new tokens.
void PlaceGroup(const StepPlan& plan, size_t group, int block_size, StepBatch& batch) {
  auto& [slots, block_ids] = batch.groups[group];
  slots.clear();
  block_ids.resize(plan.seqs.size() * static_cast<size_t>(batch.block_ids_per_seq));
  auto row = block_ids.begin();
  for (size_t s = 0; s < plan.seqs.size(); ++s, row += batch.block_ids_per_seq) {
    const ScheduledSeq& share = plan.seqs[s];
    const std::vector<int32_t>& blocks = share.seq->tables[group].blocks;
    const int32_t used = (batch.kv_len[s] + block_size - 1) / block_size;
    ATTEST_CHECK_GE(blocks.size(), static_cast<size_t>(used));
    std::fill(std::copy_n(blocks.begin(), used, row), row + batch.block_ids_per_seq, -1);
    for (int32_t position = share.begin; position < batch.kv_len[s]; ++position) {
      const int32_t block = row[position / block_size];
      ATTEST_CHECK_GT(block, kNullBlock);  // a passed block is never written
      slots.push_back(int64_t{block} * block_size + position % block_size);
    }
  }
}

}  // namespace

void BuildStepBatch(const StepPlan& plan, int block_size, StepBatch& batch) {
  const size_t num_seqs = plan.seqs.size();
  batch.tokens.clear();
  batch.positions.clear();
  batch.kv_len.clear();
  batch.logit_rows.clear();
  std::vector<int32_t> q_lens;
  q_lens.reserve(num_seqs);

  int32_t widest = 0;
  for (const ScheduledSeq& share : plan.seqs) {
    const int32_t kv_len = share.begin + share.count;
    q_lens.push_back(share.count);
    batch.kv_len.push_back(kv_len);
    widest = std::max(widest, (kv_len + block_size - 1) / block_size);
  }
  Expected<CuSeqlens> q_begin = CuSeqlens::FromLengths(q_lens);
  ATTEST_CHECK(q_begin.has_value());
  batch.q_begin = std::move(*q_begin);

  batch.block_ids_per_seq = widest;
  for (size_t s = 0; s < num_seqs; ++s) {
    const ScheduledSeq& share = plan.seqs[s];
    const auto first = share.seq->tokens.begin() + share.begin;
    batch.tokens.insert(batch.tokens.end(), first, first + share.count);
    for (int32_t position = share.begin; position < batch.kv_len[s]; ++position) {
      batch.positions.push_back(position);
    }
    if (share.samples) batch.logit_rows.push_back(batch.q_begin.end(static_cast<int>(s)) - 1);
  }
  batch.groups.resize(num_seqs == 0 ? 1 : plan.seqs.front().seq->tables.size());
  for (size_t g = 0; g < batch.groups.size(); ++g) PlaceGroup(plan, g, block_size, batch);
}

}  // namespace attest
