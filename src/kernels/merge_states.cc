#include "kernels/merge_states.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "tensor/convert.h"

namespace attest {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// +inf is how some producers (FlashAttention 2 among them) mark an empty set.
inline float Normalised(float lse) { return lse == kInfinity ? -kInfinity : lse; }

}  // namespace

float MergeStateRow(const StateRow& states, std::optional<float> sink, int dim, float* out) {
  float max = sink ? Normalised(*sink) : -kInfinity;
  bool is_nan = false;
  for (int i = 0; i < states.n; ++i) {
    const float lse = Normalised(states.lse[i * states.lse_stride]);
    is_nan = is_nan || std::isnan(lse);
    if (lse > max) max = lse;
  }
  if (is_nan) {  // a broken state must show, not vanish in a comparison
    for (int d = 0; d < dim; ++d) out[d] = std::numeric_limits<float>::quiet_NaN();
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (max == -kInfinity) {
    for (int d = 0; d < dim; ++d) out[d] = 0.0f;
    return -kInfinity;
  }
  float total = sink ? std::exp(Normalised(*sink) - max) : 0.0f;
  for (int i = 0; i < states.n; ++i) total += std::exp(Normalised(states.lse[i * states.lse_stride]) - max);
  // Blocks of dims so that `out` may alias a state: a block is read from all states before it is written.
  constexpr int kBlock = 64;
  float sum[kBlock];
  for (int d0 = 0; d0 < dim; d0 += kBlock) {
    const int width = dim - d0 < kBlock ? dim - d0 : kBlock;
    for (int d = 0; d < width; ++d) sum[d] = 0.0f;
    for (int i = 0; i < states.n; ++i) {
      const float weight = std::exp(Normalised(states.lse[i * states.lse_stride]) - max) / total;
      if (weight == 0.0f) continue;
      const float* state = states.out + i * states.out_stride + d0;
      for (int d = 0; d < width; ++d) sum[d] += weight * state[d];
    }
    for (int d = 0; d < width; ++d) out[d0 + d] = sum[d];
  }
  return max + std::log(total);
}

void MergeTokens(const MergeTensors& tensors, int64_t token_begin, int64_t token_end) {
  const auto dim = static_cast<int>(tensors.out.shape[2]);
  for (const StateTensor& state : tensors.states) {
    ATTEST_CHECK(state.out.shape == tensors.out.shape);
    ATTEST_CHECK_EQ(state.out.stride[2], 1);
    ATTEST_CHECK_EQ(state.lse.shape[0], tensors.out.shape[1]);
    ATTEST_CHECK_EQ(state.lse.shape[1], tensors.out.shape[0]);
  }
  ATTEST_CHECK_EQ(tensors.out.stride[2], 1);
  // States are separate tensors: gather their rows, then merge.
  std::vector<float> rows((tensors.states.size() + 1) * static_cast<size_t>(dim)),
      lses(tensors.states.size());
  float* merged = rows.data() + tensors.states.size() * static_cast<size_t>(dim);
  for (int64_t token = token_begin; token < token_end; ++token) {
    for (int64_t head = 0; head < tensors.out.shape[1]; ++head) {
      for (size_t i = 0; i < tensors.states.size(); ++i) {
        const StateTensor& state = tensors.states[i];
        const int64_t at = token * state.out.stride[0] + head * state.out.stride[1];
        RowToFloats(state.out.data + at * BlockBytes(state.dtype), state.dtype, dim,
                    rows.data() + i * static_cast<size_t>(dim));
        lses[i] = *state.lse.At(head, token);
      }
      const StateRow row{.out = rows.data(),
                         .out_stride = dim,
                         .lse = lses.data(),
                         .lse_stride = 1,
                         .n = static_cast<int>(tensors.states.size())};
      const std::optional<float> sink =
          tensors.sinks != nullptr ? std::optional<float>(tensors.sinks[head]) : std::nullopt;
      const float lse = MergeStateRow(row, sink, dim, merged);
      const int64_t at = token * tensors.out.stride[0] + head * tensors.out.stride[1];
      RowFromFloats(merged, tensors.out_dtype, dim, tensors.out.data + at * BlockBytes(tensors.out_dtype));
      if (tensors.lse.data != nullptr) *tensors.lse.At(head, token) = lse;
    }
  }
}

void MergeStates(std::span<const AttentionState> states, View<float, 3> out, View<float, 2> lse) {
  std::vector<StateTensor> tensors;
  for (const AttentionState& state : states) {
    tensors.push_back({.out = {.data = reinterpret_cast<const std::byte*>(state.out.data),
                               .shape = state.out.shape,
                               .stride = state.out.stride},
                       .dtype = DType::kF32,
                       .lse = state.lse});
  }
  MergeTokens(
      {.states = tensors,
       .out = {.data = reinterpret_cast<std::byte*>(out.data), .shape = out.shape, .stride = out.stride},
       .out_dtype = DType::kF32,
       .lse = lse},
      0, out.shape[0]);
}

}  // namespace attest
