// The paged KV cache as kernels see it. One layer's K and V live in `num_blocks` pages of `block_size` slots.
//
//   K page (HND, the layout the engine uses):      V page: the same with v_head_dim
//     kv_head 0:  slot 0 [head_dim] | slot 1 [head_dim] | ... | slot block_size-1
//     kv_head 1:  ...
//
// element (block, kv_head, slot, dim) is at  block * block_stride + kv_head * head_stride + slot *
// slot_stride + dim (elements, 64-bit; the innermost stride is 1). NHD pages are the same struct with other
// strides.
//
// Token t of a sequence is in block block_table[seq][t / block_size], slot t % block_size. The block table is
// the truth: blocks of a sequence may lie anywhere and in any order. Entries past ceil(kv_len / block_size)
// are never read; slots at or past kv_len are never read.
#pragma once

#include <cstdint>
#include <limits>

#include "tensor/dtype.h"

namespace attest {

struct KvPages {
  void* data = nullptr;
  int64_t block_stride = 0;  // elements
  int64_t head_stride = 0;   // elements
  int64_t slot_stride = 0;   // elements
};

// One layer of the cache. Copied freely, owns nothing.
struct PagedKv {
  KvPages k;  // [num_blocks, kv_heads, block_size, head_dim] through its strides
  KvPages v;  // [num_blocks, kv_heads, block_size, v_head_dim] through its strides
  DType dtype = DType::kBF16;
  int64_t num_blocks = 0;
  int block_size = 16;  // tokens
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  // value = stored * scale of its KV head, [kv_heads]; nullptr: 1. The writer of pages divides by it.
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
};

// Logical block -> physical block, one row per sequence. Row r is at ids + r * row_stride.
struct BlockTables {
  const int32_t* ids = nullptr;  // [num_seqs, row_stride]
  int64_t row_stride = 0;        // entries per row, >= ceil(kv_len / block_size) of each row
  int num_seqs = 0;
  int64_t num_blocks = std::numeric_limits<int64_t>::max();  // ids must be below, where it is known
  [[nodiscard]] const int32_t* row(int seq) const { return ids + seq * row_stride; }
};

// Dense HND pages in one buffer: K pages of all blocks, then V pages. Returns the byte size of one layer.
[[nodiscard]] inline int64_t PagedKvLayerBytes(DType dtype, int64_t num_blocks, int block_size, int kv_heads,
                                               int head_dim, int v_head_dim) {
  return RowBytes(dtype, num_blocks * block_size * kv_heads * (int64_t{head_dim} + v_head_dim));
}

}  // namespace attest
