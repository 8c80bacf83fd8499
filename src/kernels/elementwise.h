// The steps of a decoder layer between matrix products: RMS norm, rotary embedding, SiLU times up.
//
// Every function runs one region on the team (call from outside a region), cut by rows, and keeps no state.
// Views have last stride 1; other strides are free. A row's result does not depend on the other rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"
#include "tensor/view.h"

namespace attest {

// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. The mean of squares is taken in f32 over 8 or more
// partial sums. x and out: [num_tokens, dim]; weight: [dim]. `out` may be `x` itself; otherwise they do not
// overlap.
void RmsNorm(View<const float, 2> x, const float* weight, float eps, View<float, 2> out, ThreadTeam& team);

// Frequencies of the rotary embedding. Plain data, valid for the call.
struct RopeTable {
  const float* inv_freq = nullptr;  // [rotary_dim / 2], scaling variants already applied
  int rotary_dim = 0;               // even, <= head_dim; dimensions past it pass through
  float attention_factor = 1.0f;    // multiplies cos and sin (YaRN)
};

// Rotates the pairs (i, i + rotary_dim / 2) of each head by angle position * inv_freq[i], in place.
// x: [num_tokens, heads, head_dim]; positions: [num_tokens]. Angles are f64 products reduced to one turn, so
// position 100,000 is as exact as position 1.
void ApplyRope(View<float, 3> x, std::span<const int32_t> positions, const RopeTable& table,
               ThreadTeam& team);

// The same in two steps, for a table that many layers share: cos and sin of a step's positions are computed
// once, [num_tokens, rotary_dim] as rotary_dim/2 cosines, then rotary_dim/2 sines, attention_factor included.
void ComputeRopeAngles(std::span<const int32_t> positions, const RopeTable& table, View<float, 2> cos_sin,
                       ThreadTeam& team);
void ApplyRope(View<float, 3> x, View<const float, 2> cos_sin, ThreadTeam& team);

// out[t][j] = silu(gate_up[t][j]) * gate_up[t][n + j], silu(v) = v / (1 + exp(-v)).
// gate_up: [num_tokens, 2 n], gate columns first; out: [num_tokens, n], not overlapping.
void SiluMul(View<const float, 2> gate_up, View<float, 2> out, ThreadTeam& team);

}  // namespace attest
