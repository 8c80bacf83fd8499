#include "engine/step_batch.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace attest {

void BuildStepBatch(const StepPlan& plan, int block_size, StepBatch& batch) {
  const size_t num_seqs = plan.seqs.size();
  batch.tokens.clear();
  batch.positions.clear();
  batch.slots.clear();
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
  batch.block_ids.resize(num_seqs * static_cast<size_t>(widest));
  auto row = batch.block_ids.begin();
  for (size_t s = 0; s < num_seqs; ++s) {
    const ScheduledSeq& share = plan.seqs[s];
    const Sequence& seq = *share.seq;
    const int32_t used = (batch.kv_len[s] + block_size - 1) / block_size;
    ATTEST_CHECK_GE(seq.blocks.size(), static_cast<size_t>(used));
    std::fill(std::copy_n(seq.blocks.begin(), used, row), row + widest, -1);

    batch.tokens.insert(batch.tokens.end(), seq.tokens.begin() + share.begin,
                        seq.tokens.begin() + share.begin + share.count);
    for (int32_t position = share.begin; position < batch.kv_len[s]; ++position) {
      batch.positions.push_back(position);
      batch.slots.push_back(int64_t{row[position / block_size]} * block_size + position % block_size);
    }
    if (share.samples) batch.logit_rows.push_back(batch.q_begin.end(static_cast<int>(s)) - 1);
    row += widest;
  }
}

}  // namespace attest
