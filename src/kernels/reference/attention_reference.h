// The oracle: attention as the canon states it, in double precision, one row at a time. Every kernel is
// judged by it, so it shares nothing with them: no mask helper, no address builder, no element decoder. It
// supports every feature, every shape and every length, and is slow.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/attention_params.h"

namespace attest {

// The keys [begin, end) of a sequence that take part; positions and masks stay those of the whole sequence.
struct ReferenceKeys {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

// One row and head: fills out[v_head_dim] and returns the natural-log LSE (-inf when the row sees no key and
// has no sink). `row` is counted within the sequence. Any thread; reads only keys the row sees.
double ReferenceAttentionRow(const AttentionParams& params, int seq, int32_t row, int head,
                             std::span<double> out, ReferenceKeys keys = {});

// Every row of every owned sequence, on the calling thread, into params.out (and params.lse).
void ReferenceAttention(const AttentionParams& params);

// The same for some rows and heads of one sequence: [row_begin, row_end) x [head_begin, head_end).
void ReferenceAttentionBlock(const AttentionParams& params, int seq, int32_t row_begin, int32_t row_end,
                             int head_begin, int head_end, ReferenceKeys keys = {});

// One stored element as the oracle reads it. Exposed so that tests can check it against the formats' tables.
double ReferenceElement(const void* data, DType dtype, int64_t index);

// The oracle's reading of the mask and of the pages, for whoever bounds the error of a row
// (attention/row_check.h). `p` is the row's position and may be negative; j is a key.
bool ReferenceSees(const AttentionMask& mask, int64_t p, int64_t j);
struct ReferenceKey {
  const void* data = nullptr;
  int64_t first = 0;  // element index of dim 0
};
ReferenceKey ReferenceKeyAt(const AttentionParams& params, bool value, int seq, int kv_head, int64_t j);

}  // namespace attest
