// One step's work as flat arrays, with no pointers upward: what the engine hands to the model (and, later,
// what rank 0 broadcasts). Built by engine/step_batch.cc; sequences appear in any order and any mix of
// phases.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/cu_seqlens.h"
#include "tensor/paged_kv.h"

namespace attest {

// Where a step's keys and values lie for one KV group (cache/kv_groups.h).
struct StepBlocks {
  std::vector<int64_t> slots;      // as StepBatch::slots
  std::vector<int32_t> block_ids;  // as StepBatch::block_ids
};

struct StepBatch {
  std::vector<int32_t> tokens;     // [num_tokens] token ids
  std::vector<int32_t> positions;  // [num_tokens] absolute position of each token in its sequence, from 0
  std::vector<int64_t> slots;      // [num_tokens] block * block_size + offset, where its K and V are written
  CuSeqlens q_begin;               // [num_seqs + 1] rows of each sequence
  std::vector<int32_t> kv_len;     // [num_seqs] keys after this step's write; 1 <= q_len <= kv_len
  std::vector<int32_t> block_ids;  // [num_seqs, block_ids_per_seq], unused entries are -1
  int32_t block_ids_per_seq = 0;
  // Of the second KV group on, in models that have several: `slots` and `block_ids` are those of the first.
  // Entries behind a group's window are not looked at.
  std::vector<StepBlocks> further_groups;
  std::vector<int32_t> logit_rows;  // token rows whose logits are wanted, ascending

  [[nodiscard]] int num_seqs() const { return q_begin.num_seqs(); }
  [[nodiscard]] int num_tokens() const { return q_begin.total(); }
  [[nodiscard]] int num_groups() const { return 1 + static_cast<int>(further_groups.size()); }
  [[nodiscard]] BlockTables block_tables(int group = 0) const {
    const std::vector<int32_t>& ids =
        group == 0 ? block_ids : further_groups[static_cast<size_t>(group) - 1].block_ids;
    return {.ids = ids.data(), .row_stride = block_ids_per_seq, .num_seqs = num_seqs()};
  }
  [[nodiscard]] const std::vector<int64_t>& slots_of(int group) const {
    return group == 0 ? slots : further_groups[static_cast<size_t>(group) - 1].slots;
  }
};

}  // namespace attest
