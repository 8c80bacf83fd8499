// One step's work as flat arrays, with no pointers upward: what the engine hands to the model (and, later,
// what rank 0 broadcasts). Built by engine/step_batch.cc; sequences appear in any order and any mix of
// phases.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/cu_seqlens.h"
#include "tensor/paged_kv.h"

namespace attest {

struct StepBatch {
  std::vector<int32_t> tokens;     // [num_tokens] token ids
  std::vector<int32_t> positions;  // [num_tokens] absolute position of each token in its sequence, from 0
  std::vector<int64_t> slots;      // [num_tokens] block * block_size + offset, where its K and V are written
  CuSeqlens q_begin;               // [num_seqs + 1] rows of each sequence
  std::vector<int32_t> kv_len;     // [num_seqs] keys after this step's write; 1 <= q_len <= kv_len
  std::vector<int32_t> block_ids;  // [num_seqs, block_ids_per_seq], unused entries are -1
  int32_t block_ids_per_seq = 0;
  std::vector<int32_t> logit_rows;  // token rows whose logits are wanted, ascending

  [[nodiscard]] int num_seqs() const { return q_begin.num_seqs(); }
  [[nodiscard]] int num_tokens() const { return q_begin.total(); }
  [[nodiscard]] BlockTables block_tables() const {
    return {.ids = block_ids.data(), .row_stride = block_ids_per_seq, .num_seqs = num_seqs()};
  }
};

}  // namespace attest
