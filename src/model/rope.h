// Frequencies of the rotary embedding for every scaling variant. Pure functions, computed once at load.
#pragma once

#include <vector>

#include "model/config.h"

namespace attest {

// [rotary_dim / 2] angle per position of each pair (i, i + rotary_dim / 2), scaling applied, then divided by
// freq_divisors where the file has them. Computed in double, rounded once.
// REQUIRES: rotary_dim even; freq_divisors empty or [rotary_dim / 2]; scaling fields set as CheckConfig
// wants.
[[nodiscard]] std::vector<float> RopeInverseFrequencies(const RopeConfig& rope);

// What YaRN multiplies cos and sin by when the file gives no attention_factor: with m(s, a) = 0.1 a ln(s) + 1
// (1 for s <= 1), m(factor, 1), or m(factor, mscale) / m(factor, mscale_all_dim) when both are set (not 0).
[[nodiscard]] double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim);

}  // namespace attest
