// Conversion of float32 to the 8-bit types of KV pages, saturating, to the nearest value and to even on a
// tie. Decoding is in the kernels (and, separately, in the oracle).
//
//   e4m3fn: sign, 4 exponent bits (bias 7), 3 fraction bits; largest 448, no infinity, NaN 0x7f and 0xff
//   e5m2:   sign, 5 exponent bits (bias 15), 2 fraction bits; largest finite 57344
#pragma once

#include <bit>
#include <cstdint>

namespace attest {

namespace float8 {

// Values below the smallest normal are counted in steps of the smallest subnormal: adding `magic`, whose last
// place is that step, makes the hardware round. Above, the exponent is rebased and the fraction cut.
template <int kFractionBits, int kBias, uint8_t kLargestBits, uint8_t kNanBits>
[[nodiscard]] inline uint8_t Encode(float value, float largest, float smallest_normal, float magic) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | kNanBits;
  const float size = std::bit_cast<float>(magnitude);
  if (size >= largest) return sign | kLargestBits;  // infinity too
  if (size < smallest_normal) {
    const uint32_t steps = std::bit_cast<uint32_t>(size + magic) - std::bit_cast<uint32_t>(magic);
    return sign | static_cast<uint8_t>(steps);  // 2^kFractionBits steps are the smallest normal itself
  }
  constexpr int kCut = 23 - kFractionBits;
  const uint32_t half_even = (1u << (kCut - 1)) - 1 + ((magnitude >> kCut) & 1u);
  const uint32_t code = ((magnitude + half_even) >> kCut) - (uint32_t{127 - kBias} << kFractionBits);
  return sign | static_cast<uint8_t>(code);
}

}  // namespace float8

[[nodiscard]] inline uint8_t ToF8E4M3(float value) {
  return float8::Encode<3, 7, 0x7e, 0x7f>(value, 448.0f, 0x1p-6f, 0x1p14f);
}
[[nodiscard]] inline uint8_t ToF8E5M2(float value) {
  return float8::Encode<2, 15, 0x7b, 0x7e>(value, 57344.0f, 0x1p-14f, 0x1p7f);
}
// NaN has no int8; it becomes 0, and whoever writes pages reports it.
[[nodiscard]] inline int8_t ToI8(float value) {
  if (!(value > -128.0f)) return value <= -128.0f ? int8_t{-128} : int8_t{0};
  if (value >= 127.0f) return 127;
  // Adding 1.5 * 2^23 leaves the integer, rounded to even, in the low bits.
  return static_cast<int8_t>(std::bit_cast<uint32_t>(value + 12582912.0f) & 0xffu);
}

}  // namespace attest
