// Merges attention results over disjoint sets of keys. A state is (normalised output, natural-log LSE); the
// empty set is (anything, -inf), the identity. A producer that marks empty with +inf is read as -inf. A state
// whose weight is 0 is left out, not multiplied, so its output may hold anything, NaN included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace attest {

// n states of one row: state i is out + i * out_stride [dim] and lse[i * lse_stride].
struct StateRow {
  const float* out = nullptr;
  int64_t out_stride = 0;
  const float* lse = nullptr;
  int64_t lse_stride = 0;
  int n = 0;
};
// Writes the merged output [dim] and returns its LSE. `sink` adds exp(sink) to the denominator, once. `out`
// may be the output of any of the states.
float MergeStateRow(const StateRow& states, std::optional<float> sink, int dim, float* out);

struct AttentionState {
  View<const float, 3> out;  // [num_tokens, heads, dim], innermost stride 1
  View<const float, 2> lse;  // [heads, num_tokens], any strides
};
// Merges n states row by row on the calling thread. out [num_tokens, heads, dim] (innermost stride 1); lse
// may have a null data when it is not wanted. REQUIRES: equal shapes.
void MergeStates(std::span<const AttentionState> states, View<float, 3> out, View<float, 2> lse);

// The same for tensors of f32, bf16 or f16 (strides in their elements), with sinks, for some of the tokens.
// Sums are in float32. `out` may be the output of a state with the same dtype and strides.
struct StateTensor {
  View<const std::byte, 3> out;
  DType dtype = DType::kF32;
  View<const float, 2> lse;
};
struct MergeTensors {
  std::span<const StateTensor> states;
  View<std::byte, 3> out;
  DType out_dtype = DType::kF32;
  View<float, 2> lse;            // data == nullptr: not wanted
  const float* sinks = nullptr;  // [heads] logits no state has counted; nullptr: none
};
void MergeTokens(const MergeTensors& tensors, int64_t token_begin, int64_t token_end);

}  // namespace attest
