// Finding key rows in the pages. Include only from files compiled for the instruction set.
#pragma once

#include "kernels/cpu/attention_simd_hidden.h"
#include "kernels/cpu/attention_simd_tile.h"
#include "kernels/cpu/attention_simd_vec.h"

namespace attest {
namespace {

// The rows of K and V of keys [first, first + keys), whatever pages they lie in. Up to a multiple of
// `granule` the last row of K is repeated and V rows are zeros, so that blocks of keys are whole and still no
// slot outside the range is read.
// REQUIRES: keys >= 0; k and v have room for RoundUp(keys, granule) entries.
template <class KvT>
void FindKeyRows(const AttentionTile& t, int32_t first, int keys, int granule, const KvT** k, const KvT** v) {
  int done = 0;
  while (done < keys) {
    const int32_t key = first + done;
    const int32_t block = key / t.block_size;  // rounded down on purpose
    const int32_t slot = key - block * t.block_size;
    const int run = MinInt(keys - done, t.block_size - slot);
    const int64_t id = t.table[block];
    const KvT* k_row = static_cast<const KvT*>(t.k) + id * t.k_block_stride + slot * t.k_slot_stride;
    const KvT* v_row = static_cast<const KvT*>(t.v) + id * t.v_block_stride + slot * t.v_slot_stride;
    for (int i = 0; i < run; ++i, ++done, k_row += t.k_slot_stride, v_row += t.v_slot_stride) {
      k[done] = k_row;
      v[done] = v_row;
    }
  }
  for (; done % granule != 0; ++done) {
    k[done] = k[keys - 1];
    v[done] = kZeroRow<KvT>;
  }
}

}  // namespace
}  // namespace attest
