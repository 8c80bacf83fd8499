// Writes K and V rows into pages, converted to the page's dtype: the only code that writes a page. And copies
// of whole pages.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention_params.h"
#include "tensor/paged_kv.h"
#include "tensor/view.h"

namespace attest {

// Rows for the pages. What is stored is value / scale, to the nearest and to even on a tie; fp8 and int8
// saturate (infinities too), fp8 keeps NaN.
struct KvRows {
  View<const std::byte, 3>
      k;  // [num_tokens, kv_heads, head_dim] of `dtype`, strides in elements, innermost 1
  View<const std::byte, 3> v;  // [num_tokens, kv_heads, v_head_dim]
  DType dtype = DType::kF32;   // f32, bf16 or f16
  // Slot of each token: block * block_size + offset. Negative: the token is not written.
  std::span<const int64_t> slots;
  // The attention call's descales; each > 0. Absent: 1.
  KvDescale k_scale;
  KvDescale v_scale;
  // [num_tokens] the sequence of each token, for scales that differ between sequences. Empty: all are
  // sequence 0.
  std::span<const int32_t> seqs;
};

// Writes rows [row_begin, row_end). Any thread; rows of different threads must not share a slot. Returns how
// many NaN met an int8 page, which cannot hold one: they are stored as 0. REQUIRES: pages of f32, bf16, f16,
// fp8 or int8; slots and seqs in range.
[[nodiscard]] int64_t AppendKvRows(const KvRows& rows, const PagedKv& kv, int64_t row_begin, int64_t row_end);

// The same for f32 rows and the scales of the pages, as the engine has them.
int64_t AppendKvRows(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots,
                     const PagedKv& kv, int64_t row_begin, int64_t row_end);

// One copy of a block, K and V of every head and slot.
struct BlockCopy {
  int64_t from = 0;
  int64_t to = 0;
};
// Copies pairs in order. REQUIRES: blocks in [0, kv.num_blocks).
void CopyKvBlocks(std::span<const BlockCopy> copies, const PagedKv& kv);

}  // namespace attest
