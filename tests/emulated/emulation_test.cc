// The emulation of x86_emulation.h is worth what it agrees with: the instructions, on the machines that have
// them, bit for bit; and on every machine, the documented arithmetic on values where it shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/emulated/entries.h"
#include "tests/emulated/probe.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

constexpr int kRounds = 20000;

// Bit patterns with every kind of value: 1 in 4 is special (zero, subnormal, infinity, NaN, near the limits
// of the range), the others have exponents close enough to each other that sums cancel and round.
class Patterns {
 public:
  float Next() {
    const uint32_t bits = random_();
    switch (random_() % 16) {
      case 0:
        return std::bit_cast<float>(bits & 0x807fffffu);  // subnormal or zero
      case 1:
        return std::bit_cast<float>(bits & 0x80000000u);
      case 2:
        return std::bit_cast<float>((bits & 0x81ffffffu) | 0x7e000000u);  // huge, infinite, NaN
      case 3:
        return std::bit_cast<float>((bits & 0x83ffffffu) | 0x00800000u);  // tiny
      default:
        return std::bit_cast<float>((bits & 0x8fffffffu) | 0x38000000u);
    }
  }
  uint32_t NextPair() {
    return std::bit_cast<uint32_t>(Next()) >> 16 | (std::bit_cast<uint32_t>(Next()) & 0xffff0000u);
  }
  template <class T, size_t kSize>
  void Fill(std::array<T, kSize>& values) {
    for (T& value : values) {
      if constexpr (std::is_same_v<T, float>) {
        value = Next();
      } else {
        value = static_cast<T>(NextPair());
      }
    }
  }

 private:
  std::mt19937 random_{7};
};

// The same bits, or both NaN.
template <class T, size_t kSize>
void ExpectSame(const std::array<T, kSize>& emulated, const std::array<T, kSize>& real, const char* what) {
  for (size_t i = 0; i < kSize; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      if (std::isnan(emulated[i]) && std::isnan(real[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(emulated[i]), std::bit_cast<uint32_t>(real[i]))
          << what << " lane " << i << ": emulated " << emulated[i] << ", instruction " << real[i];
    } else {
      ASSERT_EQ(emulated[i], real[i]) << what << " lane " << i;
    }
  }
}

bool HasVectorInstructions() { return HasIsa(ThisCpu(), CpuIsa::kAvx512Bf16) && ThisCpu().avx512_vbmi; }

TEST(Emulation, HasTheBitsOfTheAvx512Instructions) {
  if (!HasVectorInstructions()) GTEST_SKIP() << "needs AVX-512 with BF16, VNNI and VBMI";
  const InstructionProbe& emulated = kEmulatedProbe;
  const InstructionProbe& real = kRealProbe;
  Patterns patterns;
  for (int round = 0; round < kRounds && !HasFatalFailure(); ++round) {
    std::array<float, 16> a, b, c, x, y;
    patterns.Fill(a), patterns.Fill(b), patterns.Fill(c);
    std::array<uint32_t, 16> pairs_a, pairs_b, pairs_x, pairs_y;
    patterns.Fill(pairs_a), patterns.Fill(pairs_b);

    emulated.dot_bf16(c.data(), pairs_a.data(), pairs_b.data(), x.data());
    real.dot_bf16(c.data(), pairs_a.data(), pairs_b.data(), y.data());
    ExpectSame(x, y, "vdpbf16ps");

    std::array<float, 32> values;
    patterns.Fill(values);
    std::array<uint16_t, 32> wide_x, wide_y;
    std::array<uint16_t, 8> narrow_x, narrow_y;
    emulated.round_to_bf16(values.data(), wide_x.data(), narrow_x.data());
    real.round_to_bf16(values.data(), wide_y.data(), narrow_y.data());
    ExpectSame(wide_x, wide_y, "vcvtne2ps2bf16");
    ExpectSame(narrow_x, narrow_y, "vcvtneps2bf16");

    for (float& value : c) value *= 1e4f;  // integers, halves, and what does not fit
    std::array<int32_t, 16> int_x, int_y;
    emulated.round_to_int(c.data(), int_x.data());
    real.round_to_int(c.data(), int_y.data());
    ExpectSame(int_x, int_y, "vcvtps2dq");

    std::array<float, 16> fma_x, fms_x, fnma_x, fma_y, fms_y, fnma_y;
    emulated.fused(a.data(), b.data(), c.data(), fma_x.data(), fms_x.data(), fnma_x.data());
    real.fused(a.data(), b.data(), c.data(), fma_y.data(), fms_y.data(), fnma_y.data());
    ExpectSame(fma_x, fma_y, "vfmadd");
    ExpectSame(fms_x, fms_y, "vfmsub");
    ExpectSame(fnma_x, fnma_y, "vfnmadd");

    emulated.fixed_point_weights(a.data(), b.data(), 0.125f, 3.0f, pairs_x.data());
    real.fixed_point_weights(a.data(), b.data(), 0.125f, 3.0f, pairs_y.data());
    ExpectSame(pairs_x, pairs_y, "fixed-point weights");

    // The order of a reduction is the compiler's: integers, whose sum is exact in any.
    for (size_t i = 0; i < 16; ++i) a[i] = static_cast<float>(static_cast<int>(pairs_a[i] % 2000) - 1000);
    std::array<float, 2> sum_max_x, sum_max_y;
    emulated.reduce(a.data(), &sum_max_x[0], &sum_max_x[1]);
    real.reduce(a.data(), &sum_max_y[0], &sum_max_y[1]);
    ExpectSame(sum_max_x, sum_max_y, "reduce");

    std::array<uint32_t, 256> words_x;
    patterns.Fill(words_x);
    std::array<uint32_t, 256> words_y = words_x;
    emulated.transpose(words_x.data());
    real.transpose(words_y.data());
    ExpectSame(words_x, words_y, "transpose");
  }
  for (int first = 0; first < 65536; first += 16) {  // every half
    std::array<uint16_t, 16> halves;
    for (size_t i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(static_cast<size_t>(first) + i);
    std::array<float, 16> x, y;
    emulated.half_to_float(halves.data(), x.data());
    real.half_to_float(halves.data(), y.data());
    ExpectSame(x, y, "vcvtph2ps");
  }
}

TEST(Emulation, HasTheBitsOfTheTileProduct) {
  if (!HasIsa(ThisCpu(), CpuIsa::kAmx)) GTEST_SKIP() << "needs AMX";
  Patterns patterns;
  for (int round = 0; round < kRounds / 20 && !HasFatalFailure(); ++round) {
    std::array<uint32_t, 256> a, b;
    std::array<float, 256> x;
    patterns.Fill(a), patterns.Fill(b), patterns.Fill(x);
    std::array<float, 256> y = x;
    EmulatedTileProduct(a.data(), b.data(), x.data());
    RealTileProduct(a.data(), b.data(), y.data());
    ExpectSame(x, y, "tdpbf16ps");
  }
}

// Tile products by hand: a row of A against a column of B, each value in the place the layout says.
TEST(Emulation, ATileProductSumsEvenAndOddPairsApartAndFlushesSubnormals) {
  const auto pair = [](float even, float odd) {
    return std::bit_cast<uint32_t>(even) >> 16 | (std::bit_cast<uint32_t>(odd) & 0xffff0000u);
  };
  std::array<uint32_t, 256> a{}, b{};
  std::array<float, 256> c{};
  // Row 3, column 5: even pairs sum to 1 + 2^-24 (rounded: 1), odd pairs to -1; in one chain the result would
  // keep 2^-24.
  a[3 * 16 + 0] = pair(1.0f, -1.0f), b[0 * 16 + 5] = pair(1.0f, 1.0f);
  a[3 * 16 + 7] = pair(0x1p-24f, 0.0f), b[7 * 16 + 5] = pair(1.0f, 1.0f);
  c[3 * 16 + 5] = 0.25f;
  // Row 4, column 6: a subnormal product, and a subnormal factor of a large one.
  a[4 * 16 + 1] = pair(0x1p-70f, 0x1p-130f), b[1 * 16 + 6] = pair(0x1p-70f, 0x1p100f);
  c[4 * 16 + 6] = 0x1p-140f;
  c[9 * 16 + 9] = 7.0f;
  EmulatedTileProduct(a.data(), b.data(), c.data());
  EXPECT_EQ(c[3 * 16 + 5], 0.25f);
  EXPECT_EQ(c[4 * 16 + 6], 0.0f);
  EXPECT_EQ(c[9 * 16 + 9], 7.0f);
  EXPECT_EQ(c[5 * 16 + 3], 0.0f);
}

TEST(Emulation, ADotProductAddsTheOddPairFirst) {
  std::array<float, 16> sum{}, out{};
  std::array<uint32_t, 16> a{}, b{};
  // 2^24 + 1 rounds to 2^24, and 1 less is 2^24 - 1; in the other order the result would be 2^24.
  a[2] = 0xbf80u | 0x3f800000u;  // even -1, odd 1
  b[2] = 0x3f80u | 0x3f800000u;
  sum[2] = 0x1p24f;
  kEmulatedProbe.dot_bf16(sum.data(), a.data(), b.data(), out.data());
  EXPECT_EQ(out[2], 0x1p24f - 1.0f);
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return kInfinity;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // infinities too
    const double difference = std::abs(a[i] - b[i]);
    largest = std::isfinite(difference) ? std::max(largest, difference) : static_cast<double>(kInfinity);
  }
  return largest;
}

// A whole kernel, emulated and real: the same bytes on the shared cases.
class EmulatedKernel : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(EmulatedKernel, GivesTheBytesOfTheRealOne) {
  const KernelEntry* emulated = FindKernel(GetParam().first);
  const KernelEntry* real = FindKernel(GetParam().second);
  ASSERT_TRUE(emulated != nullptr && real != nullptr);
  if (!HasIsa(ThisCpu(), real->contract.isa)) GTEST_SKIP() << "needs " << CpuIsaName(real->contract.isa);
  int compared = 0;
  for (const AttentionCase& test_case : AttentionCases()) {
    const std::string forced = ForcedWherePossible(*emulated, test_case.spec);
    if (forced.empty()) continue;
    // The one product outside an intrinsic, slope * distance, which the compiler fuses where it can.
    if (test_case.spec.has_alibi && GetParam().second == std::string("attention_decode_avx512")) continue;
    AttentionBatch batch(test_case.spec, test_case.q_len, test_case.kv_len, {.seed = 7});
    const auto a = RunAttention(batch, forced);
    const auto b = RunAttention(batch, ForcedWherePossible(*real, test_case.spec));
    ASSERT_TRUE(a && b) << test_case.name;
    EXPECT_EQ(LargestDifference(a->out, b->out), 0.0) << test_case.name;
    EXPECT_EQ(LargestDifference(a->lse, b->lse), 0.0) << test_case.name << ", lse";
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

INSTANTIATE_TEST_SUITE_P(
    All, EmulatedKernel,
    ::testing::Values(std::pair{"attention_decode_amx_emulated", "attention_decode_amx"},
                      std::pair{"attention_decode_avx512_emulated", "attention_decode_avx512"},
                      std::pair{"attention_prefill_amx_emulated", "attention_prefill_amx"},
                      std::pair{"attention_prefill_avx512bf16_emulated", "attention_prefill_avx512bf16"},
                      std::pair{"attention_prefill_avx512_emulated", "attention_prefill_avx512"}),
    [](const auto& param) { return std::string(param.param.second); });

}  // namespace
}  // namespace attest::testing
