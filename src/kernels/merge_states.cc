#include "kernels/merge_states.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"

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

void MergeStates(std::span<const AttentionState> states, View<float, 3> out, View<float, 2> lse) {
  for (const AttentionState& state : states) {
    ATTEST_CHECK(state.out.shape == out.shape);
    ATTEST_CHECK_EQ(state.out.stride[2], 1);
    ATTEST_CHECK_EQ(state.lse.shape[0], out.shape[1]);
    ATTEST_CHECK_EQ(state.lse.shape[1], out.shape[0]);
  }
  ATTEST_CHECK_EQ(out.stride[2], 1);
  const auto dim = static_cast<int>(out.shape[2]);
  // States are separate tensors: gather their rows, then merge.
  std::vector<float> rows(states.size() * static_cast<size_t>(dim)), lses(states.size());
  for (int64_t token = 0; token < out.shape[0]; ++token) {
    for (int64_t head = 0; head < out.shape[1]; ++head) {
      for (size_t i = 0; i < states.size(); ++i) {
        const float* row = states[i].out.At(token, head);
        for (int d = 0; d < dim; ++d) rows[i * static_cast<size_t>(dim) + static_cast<size_t>(d)] = row[d];
        lses[i] = *states[i].lse.At(head, token);
      }
      const StateRow row{.out = rows.data(),
                         .out_stride = dim,
                         .lse = lses.data(),
                         .lse_stride = 1,
                         .n = static_cast<int>(states.size())};
      const float merged = MergeStateRow(row, std::nullopt, dim, out.At(token, head));
      if (lse.data != nullptr) *lse.At(head, token) = merged;
    }
  }
}

}  // namespace attest
