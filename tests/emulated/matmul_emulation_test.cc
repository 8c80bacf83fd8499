// The AVX-512 and AMX products, emulated: against plain sums of the same rounded values on every machine with
// AVX2, and against the real ones, bit for bit, where the machine has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "tests/support/weights.h"

namespace attest::testing {
namespace {

enum class Rounding { kNone, kI16, kBf16 };

struct Path {
  const char* name;
  CpuIsa isa;              // of the real one
  int64_t bf16_from_rows;  // rows from which both sides are rounded to bf16; 0: never
};
constexpr Path kPaths[] = {{"amx", CpuIsa::kAmx, 33},
                           {"avx512_bf16", CpuIsa::kAvx512Bf16, 9},
                           {"avx512_vnni", CpuIsa::kAvx512Vnni, 0},
                           {"avx512", CpuIsa::kAvx512, 0}};

Rounding RoundingOf(const Path& path, DType dtype, int64_t rows, int64_t cols) {
  if (path.bf16_from_rows > 0 && rows >= path.bf16_from_rows && cols % 32 == 0) return Rounding::kBf16;
  return IsQuantised(dtype) && std::string(path.name) != "avx512" ? Rounding::kI16 : Rounding::kNone;
}

// Weights are rounded to bf16 with ties away from zero (matmul_bf16_avx512.h).
double TiesAway(double weight) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(weight)) + 0x8000u;
  return std::bit_cast<float>(bits & 0xffff0000u);
}

class EmulatedMatMul : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!HasIsa(cpu_, CpuIsa::kAvx2)) GTEST_SKIP() << "needs AVX2, which prepares the activations";
  }
  std::vector<float> Multiply(const RandomWeights& w, const std::string& kernel, const std::vector<float>& x,
                              int64_t rows) {
    const StoredMatrix stored{.data = w.stored.data(), .dtype = w.dtype, .rows = w.rows, .cols = w.cols};
    const auto packed = PackedMatrix::Pack({&stored, 1}, {.cpu = cpu_, .forced_kernel = kernel}, team_);
    EXPECT_TRUE(packed) << (packed ? "" : packed.error().message);
    std::vector<float> y(static_cast<size_t>(rows * w.rows), std::numeric_limits<float>::quiet_NaN());
    MatMulScratch scratch;
    if (packed) {
      MatMul(*packed,
             {.x = {.data = x.data(), .shape = {rows, w.cols}, .stride = {w.cols, 1}},
              .y = {.data = y.data(), .shape = {rows, w.rows}, .stride = {w.rows, 1}}},
             scratch, team_);
    }
    return y;
  }
  CpuFeatures cpu_ = DetectCpu();
  ThreadTeam team_{2};
};

TEST_P(EmulatedMatMul, SumsTheRoundedProductsInEveryOutput) {
  const DType dtype = GetParam();
  const int64_t cols = BlockElements(dtype) == 256 ? 512 : 320;  // two runs of chunks for the tiles
  const RandomWeights w = MakeWeights(dtype, 41, cols, 5);       // an odd last tile, partly padding
  for (const int64_t rows : {1, 8, 9, 33, 50}) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(rows * cols));
    for (float& value : x) value = normal(random);
    for (const Path& path : kPaths) {
      const auto y = Multiply(w, path.name + std::string("_emulated"), x, rows);
      const Rounding rounding = RoundingOf(path, dtype, rows, cols);
      const bool to_bf16 = rounding == Rounding::kBf16;
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = x.data() + row * cols;
        const float largest = std::fabs(*std::max_element(
            from, from + cols, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
        for (int64_t n = 0; n < w.rows; ++n) {
          double sum = 0, size = 0, weights = 0;
          for (int64_t k = 0; k < cols; ++k) {
            const double product = (to_bf16 ? ToFloat(ToBf16(from[k])) : from[k]) *
                                   (to_bf16 ? TiesAway(w.row(n)[k]) : w.row(n)[k]);
            sum += product;
            size += std::fabs(product);
            weights += std::fabs(w.row(n)[k]);
          }
          // Sums in float32, and for 16-bit activations half a step of their scale.
          const double bound =
              0x1p-20 * size + (rounding == Rounding::kI16 ? weights * largest / 65000 : 0.0);
          ASSERT_NEAR(y[static_cast<size_t>(row * w.rows + n)], sum, bound)
              << path.name << " rows " << rows << " row " << row << " output " << n;
        }
      }
      if (HasIsa(cpu_, path.isa)) {
        EXPECT_EQ(y, Multiply(w, path.name, x, rows)) << path.name << " rows " << rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EmulatedMatMul, ::testing::ValuesIn(kWeightTypes),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

}  // namespace
}  // namespace attest::testing
