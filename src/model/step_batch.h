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
  std::vector<int64_t> slots;      // [num_tokens] block * block_size + offset, where K and V are written
  std::vector<int32_t> block_ids;  // [num_seqs, block_ids_per_seq], unused entries are -1
};

struct StepBatch {
  std::vector<int32_t> tokens;     // [num_tokens] token ids
  std::vector<int32_t> positions;  // [num_tokens] absolute position of each token in its sequence, from 0
  CuSeqlens q_begin;               // [num_seqs + 1] rows of each sequence
  std::vector<int32_t> kv_len;     // [num_seqs] keys after this step's write; 1 <= q_len <= kv_len
  int32_t block_ids_per_seq = 0;
  // One per KV group of the model. Block ids behind a group's window are not looked at.
  std::vector<StepBlocks> groups = std::vector<StepBlocks>(1);
  std::vector<int32_t> logit_rows;  // token rows whose logits are wanted, ascending

  [[nodiscard]] int num_seqs() const { return q_begin.num_seqs(); }
  [[nodiscard]] int num_tokens() const { return q_begin.total(); }
  [[nodiscard]] int num_groups() const { return static_cast<int>(groups.size()); }
  [[nodiscard]] BlockTables block_tables(int group = 0) const {
    return {.ids = groups[static_cast<size_t>(group)].block_ids.data(),
            .row_stride = block_ids_per_seq,
            .num_seqs = num_seqs()};
  }
  [[nodiscard]] const std::vector<int64_t>& slots_of(int group) const {
    return groups[static_cast<size_t>(group)].slots;
  }
};

}  // namespace attest
