#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace attest {
namespace {

// Llama 3: wavelengths the original training length covers less than low_freq_factor times are stretched by
// `factor`, those covered high_freq_factor times or more stay, and between the two it is blended.
double Llama3Frequency(double frequency, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return frequency * ((1.0 - smooth) / rope.factor + smooth);
}

struct YarnRamp {
  double low = 0;
  double high = 0;
  [[nodiscard]] double At(int pair) const { return std::clamp((pair - low) / (high - low), 0.0, 1.0); }
};

// The pairs that turn beta_fast times or more within the original length keep their frequency (ramp 0), those
// that turn beta_slow times or fewer are divided by factor (ramp 1).
YarnRamp MakeYarnRamp(const RopeConfig& rope) {
  const auto pair_of = [&](double turns) {
    return rope.rotary_dim *
           std::log(static_cast<double>(rope.original_max_positions) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast);
  double high = pair_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;  // the reference's guard against 0 / 0
  return {.low = low, .high = high};
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope) {
  ATTEST_CHECK_EQ(rope.rotary_dim % 2, 0);
  const int pairs = rope.rotary_dim / 2;
  ATTEST_CHECK(rope.freq_divisors.empty() || rope.freq_divisors.size() == static_cast<size_t>(pairs));
  const YarnRamp ramp = rope.scaling == RopeScaling::kYarn ? MakeYarnRamp(rope) : YarnRamp{};
  std::vector<float> result(static_cast<size_t>(pairs));
  for (int i = 0; i < pairs; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / rope.rotary_dim);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = Llama3Frequency(frequency, rope);
        break;
      case RopeScaling::kYarn:
        frequency = frequency / rope.factor * ramp.At(i) + frequency * (1.0 - ramp.At(i));
        break;
    }
    if (!rope.freq_divisors.empty())
      frequency /= static_cast<double>(rope.freq_divisors[static_cast<size_t>(i)]);
    result[static_cast<size_t>(i)] = static_cast<float>(frequency);
  }
  return result;
}

double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim) {
  const auto scale_of = [factor](double weight) {
    return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  if (mscale != 0 && mscale_all_dim != 0) return scale_of(mscale) / scale_of(mscale_all_dim);
  return scale_of(1.0);
}

}  // namespace attest
