// Every kernel of this CPU, by forced name, against double products of independently dequantised weights.
//
// The error of an output is measured in units of sigma = sqrt(sum (x_k w_k)^2), the size of the product's
// random part. The budget is twice the error of a plain implementation of the same arithmetic (f32; 16-bit
// activations with one scale per 32; bf16), measured on the same data, plus what a row of N outputs may
// stray: rms over the row <= plain rms * (2 + 4 / sqrt(N)). It holds for each row, so one garbage row fails.
#include "kernels/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/dequantize.h"
#include "tests/support/weights.h"

namespace attest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kWeightTypes;
using testing::MakeWeights;
using testing::RandomWeights;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kMaxTokens = 512;

enum class Arithmetic { kF32, kI16, kBf16 };

// The arithmetic that the header states for a kernel.
Arithmetic ArithmeticOf(const std::string& kernel, DType dtype, int64_t rows) {
  if (kernel == "amx" && rows >= 33) return Arithmetic::kBf16;
  if (kernel == "avx512_bf16" && rows >= 9) return Arithmetic::kBf16;
  const bool integer = kernel == "avx2" || kernel == "avx512_vnni" || kernel == "avx512_bf16" ||
                       kernel == "amx" || kernel == "neon_dot" || kernel == "neon_i8mm";
  return integer && IsQuantised(dtype) ? Arithmetic::kI16 : Arithmetic::kF32;
}

// Rows of activations, NaN between them.
struct Activations {
  int64_t rows;
  int64_t cols;
  std::vector<float> storage;
  [[nodiscard]] int64_t stride() const { return cols + 5; }
  [[nodiscard]] const float* row(int64_t r) const { return storage.data() + r * stride(); }
  [[nodiscard]] View<const float, 2> view(int64_t num_rows) const {
    return {.data = storage.data(), .shape = {num_rows, cols}, .stride = {stride(), 1}};
  }
};

Activations MakeActivations(int64_t rows, int64_t cols, uint32_t seed) {
  Activations x{.rows = rows, .cols = cols, .storage = {}};
  x.storage.assign(static_cast<size_t>(rows * x.stride()), kPoison);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      // Outliers as real activations have them: one channel in 100 is ten times larger.
      x.storage[static_cast<size_t>(r * x.stride() + k)] = normal(rng) * (k % 100 == 7 ? 10.0f : 1.0f);
    }
  }
  return x;
}

struct Oracle {
  int64_t outputs = 0;
  std::vector<double> y;      // [rows, outputs]
  std::vector<double> sigma;  // [rows, outputs]
};

Oracle MakeOracle(const RandomWeights& w, const Activations& x) {
  Oracle oracle{.outputs = w.rows, .y = {}, .sigma = {}};
  std::vector<double> row(static_cast<size_t>(x.cols));
  for (int64_t m = 0; m < x.rows; ++m) {
    std::copy_n(x.row(m), x.cols, row.begin());
    for (int64_t n = 0; n < w.rows; ++n) {
      const double* values = w.row(n);
      double sum = 0;
      double squares = 0;
      for (size_t k = 0; k < row.size(); ++k) {
        const double product = row[k] * values[k];
        sum += product;
        squares += product * product;
      }
      oracle.y.push_back(sum);
      oracle.sigma.push_back(std::sqrt(squares) + 1e-30);
    }
  }
  return oracle;
}

// The rms error, in sigmas, of a plain implementation of `arithmetic` over the first rows of the problem.
double PlainError(Arithmetic arithmetic, const RandomWeights& w, const Activations& x, const Oracle& oracle) {
  double squares = 0;
  const int64_t rows = std::min<int64_t>(x.rows, 24);
  std::vector<float> a(static_cast<size_t>(x.cols));
  for (int64_t m = 0; m < rows; ++m) {
    std::copy_n(x.row(m), x.cols, a.begin());
    if (arithmetic == Arithmetic::kBf16) {
      for (float& v : a) v = ToFloat(ToBf16(v));
    } else if (arithmetic == Arithmetic::kI16) {
      for (size_t k = 0; k < a.size(); k += 32) {
        float largest = 0;
        for (size_t i = k; i < k + 32; ++i) largest = std::max(largest, std::fabs(a[i]));
        const float scale = largest / 32767.0f;
        for (size_t i = k; i < k + 32; ++i) a[i] = std::round(a[i] / scale) * scale;
      }
    }
    for (int64_t n = 0; n < w.rows; ++n) {
      float sum = 0;
      for (size_t k = 0; k < a.size(); ++k) {
        const auto value = static_cast<float>(w.row(n)[k]);
        sum += a[k] * (arithmetic == Arithmetic::kBf16 ? ToFloat(ToBf16(value)) : value);
      }
      const auto at = static_cast<size_t>(m * w.rows + n);
      const double error = (sum - oracle.y[at]) / oracle.sigma[at];
      squares += error * error;
    }
  }
  return std::sqrt(squares / static_cast<double>(rows * w.rows));
}

// The worst row's rms error in units of its budget: at most 1 is right. Not finite when any output is.
double WorstRow(const std::vector<float>& y, int64_t y_stride, int64_t rows, const Oracle& oracle,
                double plain) {
  double worst = 0;
  const auto outputs = static_cast<double>(oracle.outputs);
  for (int64_t m = 0; m < rows; ++m) {
    double squares = 0;
    for (int64_t n = 0; n < oracle.outputs; ++n) {
      const auto at = static_cast<size_t>(m * oracle.outputs + n);
      const double error = (y[static_cast<size_t>(m * y_stride + n)] - oracle.y[at]) / oracle.sigma[at];
      squares += error * error;
    }
    const double ratio = std::sqrt(squares / outputs) / (plain * (2.0 + 4.0 / std::sqrt(outputs)));
    if (!(ratio <= worst)) worst = ratio;
  }
  return worst;
}

StoredMatrix Stored(const RandomWeights& w) {
  return {.data = w.stored.data(), .dtype = w.dtype, .rows = w.rows, .cols = w.cols};
}

PackedMatrix Pack(const std::vector<StoredMatrix>& parts, const std::string& kernel, ComputeMode compute,
                  ThreadTeam& team) {
  Expected<PackedMatrix> packed =
      PackedMatrix::Pack(parts, {.cpu = DetectCpu(), .compute = compute, .forced_kernel = kernel}, team);
  EXPECT_TRUE(packed.has_value()) << packed.error().message;
  return std::move(*packed);
}

// y for the first `rows` rows, NaN before the call and in the padding of its rows.
struct Product {
  std::vector<float> y;
  int64_t stride = 0;
};
Product Multiply(const PackedMatrix& w, const Activations& x, int64_t rows, ThreadTeam& team) {
  static MatMulScratch scratch;
  Product product{.y = {}, .stride = w.rows() + 3};
  product.y.assign(static_cast<size_t>(rows * product.stride), kPoison);
  MatMul(w,
         {.x = x.view(rows),
          .y = {.data = product.y.data(), .shape = {rows, w.rows()}, .stride = {product.stride, 1}}},
         scratch, team);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = w.rows(); n < product.stride; ++n) {
      EXPECT_TRUE(std::isnan(product.y[static_cast<size_t>(m * product.stride + n)]))
          << "wrote past row " << m;
    }
  }
  return product;
}

struct Team {
  ThreadTeam one{1}, two{2}, three{3};
  ThreadTeam& of(int threads) { return threads == 1 ? one : threads == 2 ? two : three; }
};

std::set<std::pair<std::string, ComputeMode>> Kernels() {
  const CpuFeatures cpu = DetectCpu();
  std::set<std::pair<std::string, ComputeMode>> kernels;
  for (ComputeMode mode : {ComputeMode::kFast, ComputeMode::kPrecise}) {
    for (const std::string& name : MatMulKernels(mode, &cpu)) kernels.insert({name, mode});
  }
  return kernels;
}

std::vector<int64_t> ColsFor(DType dtype) {
  if (BlockElements(dtype) == 256) return {256, 1536, 2048};
  if (IsQuantised(dtype)) return {32, 64, 576, 1536, 2048};
  return {1, 33, 64, 576, 1536};
}

class MatMulOfType : public ::testing::TestWithParam<DType> {};

TEST_P(MatMulOfType, EveryKernelIsRightForEveryRowCountOnAnyTeam) {
  const DType dtype = GetParam();
  Team teams;
  for (int64_t cols : ColsFor(dtype)) {
    const int64_t outputs = cols == 576 ? 100 : 41;
    const RandomWeights w = MakeWeights(dtype, outputs, cols, 1 + static_cast<uint32_t>(cols));
    const Activations x = MakeActivations(cols == 576 || cols == 1536 ? kMaxTokens : 33, cols, 2);
    const Oracle oracle = MakeOracle(w, x);
    std::map<Arithmetic, double> plain;
    for (const auto& [kernel, mode] : Kernels()) {
      const PackedMatrix packed = Pack({Stored(w)}, kernel, mode, teams.two);
      ASSERT_EQ(packed.kernel_name(), "matmul_" + std::string(DTypeName(dtype)) + "_" + kernel);
      int threads = 0;
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 512}) {
        if (rows > x.rows) continue;
        const Arithmetic arithmetic = ArithmeticOf(kernel, dtype, rows);
        if (!plain.contains(arithmetic)) plain[arithmetic] = PlainError(arithmetic, w, x, oracle);
        threads = threads % 3 + 1;
        const Product product = Multiply(packed, x, rows, teams.of(threads));
        EXPECT_LE(WorstRow(product.y, product.stride, rows, oracle, plain[arithmetic]), 1.0)
            << packed.kernel_name() << " cols " << cols << " rows " << rows << " threads " << threads;
      }
    }
  }
}

#if defined(__aarch64__)
// Both ways of multiplying bytes are exact inside a block and add blocks in the same order.
TEST_P(MatMulOfType, BytesGiveTheSameBitsFourOrEightAtATime) {
  const std::vector<std::string> kernels = [] {
    const CpuFeatures cpu = DetectCpu();
    return MatMulKernels(ComputeMode::kFast, &cpu);
  }();
  if (std::ranges::find(kernels, "neon_i8mm") == kernels.end()) GTEST_SKIP() << "needs i8mm";
  ThreadTeam team(2);
  const RandomWeights w = MakeWeights(GetParam(), 41, 512, 7);
  const Activations x = MakeActivations(9, 512, 8);
  for (int64_t rows : {1, 2, 3, 9}) {
    const Product dot = Multiply(Pack({Stored(w)}, "neon_dot", ComputeMode::kFast, team), x, rows, team);
    const Product matrix = Multiply(Pack({Stored(w)}, "neon_i8mm", ComputeMode::kFast, team), x, rows, team);
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < w.rows; ++n) {
        const auto at = static_cast<size_t>(m * dot.stride + n);
        ASSERT_EQ(dot.y[at], matrix.y[at]) << "row " << m << " output " << n;
      }
    }
  }
}
#endif

// The tolerance must be able to fail: one block whose scale is zero, two swapped rows of W.
TEST_P(MatMulOfType, ToleranceRejectsAZeroedBlockAndSwappedRows) {
  const DType dtype = GetParam();
  Team teams;
  const int64_t cols = IsQuantised(dtype) ? 1536 : 64;
  const RandomWeights w = MakeWeights(dtype, 41, cols, 3);
  const Activations x = MakeActivations(17, cols, 4);
  const Oracle oracle = MakeOracle(w, x);
  RandomWeights zeroed = w;
  const int64_t at = 11 * w.row_bytes() + 2 * BlockBytes(dtype) + testing::ScaleOffset(dtype);
  std::fill_n(zeroed.stored.begin() + at, IsQuantised(dtype) ? 2 : BlockBytes(dtype), std::byte{0});
  RandomWeights swapped = w;
  std::swap_ranges(swapped.stored.begin(), swapped.stored.begin() + w.row_bytes(),
                   swapped.stored.begin() + 20 * w.row_bytes());
  for (const auto& [kernel, mode] : Kernels()) {
    for (int64_t rows : {1, 17}) {
      const double plain = PlainError(ArithmeticOf(kernel, dtype, rows), w, x, oracle);
      const auto ratio = [&](const RandomWeights& weights) {
        const PackedMatrix packed = Pack({Stored(weights)}, kernel, mode, teams.two);
        const Product product = Multiply(packed, x, rows, teams.two);
        return WorstRow(product.y, product.stride, rows, oracle, plain);
      };
      EXPECT_LE(ratio(w), 1.0) << kernel;
      EXPECT_GT(ratio(zeroed), 1.0) << kernel << " rows " << rows;
      EXPECT_GT(ratio(swapped), 1.0) << kernel << " rows " << rows;
    }
  }
}

TEST_P(MatMulOfType, DequantizeRowIsExact) {
  const DType dtype = GetParam();
  ThreadTeam team(2);
  const RandomWeights w = MakeWeights(dtype, 37, 512, 6);
  for (const auto& [kernel, mode] : Kernels()) {
    const PackedMatrix packed = Pack({Stored(w)}, kernel, mode, team);
    std::vector<float> want(512);
    std::vector<float> got(513, kPoison);
    for (int64_t r = 0; r < w.rows; ++r) {
      DequantizeBlocks(dtype, w.stored.data() + r * w.row_bytes(), 512, want.data());
      packed.DequantizeRow(r, got.data());
      for (size_t k = 0; k < want.size(); ++k) ASSERT_EQ(got[k], want[k]) << "row " << r << " column " << k;
      ASSERT_TRUE(std::isnan(got[512]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MatMulOfType, ::testing::ValuesIn(kWeightTypes),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

TEST(MatMul, StackedPartsOfDifferentTypesAndOddRowsEqualTheirOwnProducts) {
  Team teams;
  const Activations x = MakeActivations(20, 256, 8);
  std::vector<RandomWeights> parts;
  std::vector<StoredMatrix> stored;
  const DType types[] = {DType::kQ4_1, DType::kQ4_1, DType::kQ6_K, DType::kBF16, DType::kQ8_0, DType::kQ8_0};
  const int64_t rows_of[] = {7, 30, 17, 5, 3, 1};
  for (size_t i = 0; i < 6; ++i)
    parts.push_back(MakeWeights(types[i], rows_of[i], 256, 20 + static_cast<uint32_t>(i)));
  for (const RandomWeights& part : parts) stored.push_back(Stored(part));
  for (const auto& [kernel, mode] : Kernels()) {
    const PackedMatrix packed = Pack(stored, kernel, mode, teams.three);
    EXPECT_EQ(packed.rows(), 63);
    EXPECT_EQ(packed.kernel_name(), "matmul_q4_1_" + kernel + "+matmul_q6_k_" + kernel + "+matmul_bf16_" +
                                        kernel + "+matmul_q8_0_" + kernel);
    for (int64_t rows : {1, 2, 9, 20}) {
      for (int threads : {1, 2, 3}) {
        const Product all = Multiply(packed, x, rows, teams.of(threads));
        int64_t column = 0;
        for (const RandomWeights& part : parts) {
          const Oracle oracle = MakeOracle(part, x);
          const double plain = PlainError(ArithmeticOf(kernel, part.dtype, rows), part, x, oracle);
          const std::vector<float> own(all.y.begin() + column, all.y.end());
          EXPECT_LE(WorstRow(own, all.stride, rows, oracle, plain), 1.0)
              << kernel << " part at row " << column << " rows " << rows << " threads " << threads;
          column += part.rows;
        }
      }
    }
    std::vector<float> row(256), want(256);
    packed.DequantizeRow(37 + 16, row.data());
    DequantizeBlocks(DType::kQ6_K, parts[2].stored.data() + 16 * parts[2].row_bytes(), 256, want.data());
    EXPECT_EQ(row, want);
  }
}

TEST(MatMul, AddsBiasThenTheEpilogue) {
  Team teams;
  const Activations x = MakeActivations(33, 64, 9);
  const RandomWeights w = MakeWeights(DType::kQ4_1, 21, 64, 10);
  std::vector<float> bias(21);
  for (size_t n = 0; n < bias.size(); ++n) bias[n] = static_cast<float>(n) - 10.0f;
  MatMulScratch scratch;
  for (const auto& [kernel, mode] : Kernels()) {
    const PackedMatrix packed = Pack({Stored(w)}, kernel, mode, teams.one);
    for (int64_t rows : {1, 4, 33}) {
      const Product plain = Multiply(packed, x, rows, teams.two);
      for (const bool with_bias : {false, true}) {
        std::vector<float> y(static_cast<size_t>(rows) * 21, 1000.0f);
        MatMul(packed,
               {.x = x.view(rows),
                .y = View<float, 2>::Dense(y.data(), {rows, 21}),
                .bias = with_bias ? bias.data() : nullptr,
                .epilogue = MatMulEpilogue::kAdd},
               scratch, teams.two);
        for (int64_t m = 0; m < rows; ++m) {
          for (int64_t n = 0; n < 21; ++n) {
            const float want = plain.y[static_cast<size_t>(m * plain.stride + n)] +
                               (with_bias ? bias[static_cast<size_t>(n)] : 0.0f) + 1000.0f;
            EXPECT_NEAR(y[static_cast<size_t>(m * 21 + n)], want, 2e-4) << kernel << " row " << m;
          }
        }
      }
    }
  }
}

TEST(MatMul, ARowDoesNotDependOnTheValuesOfOtherRows) {
  Team teams;
  for (DType dtype : {DType::kQ4_1, DType::kQ8_0, DType::kQ6_K, DType::kF16}) {
    const RandomWeights w = MakeWeights(dtype, 40, 512, 12);
    const Activations x = MakeActivations(64, 512, 13);
    Activations other = x;
    for (int64_t m = 0; m < 64; ++m) {
      for (int64_t k = 0; m != 5 && k < 512; ++k)
        other.storage[static_cast<size_t>(m * x.stride() + k)] = kPoison;
    }
    for (const auto& [kernel, mode] : Kernels()) {
      const PackedMatrix packed = Pack({Stored(w)}, kernel, mode, teams.two);
      for (int64_t rows : {6, 17, 64}) {
        const Product with = Multiply(packed, x, rows, teams.two);
        const Product without = Multiply(packed, other, rows, teams.three);
        for (int64_t n = 0; n < 40; ++n) {
          const auto at = static_cast<size_t>(5 * with.stride + n);
          EXPECT_EQ(with.y[at], without.y[at]) << packed.kernel_name() << " output " << n;
        }
        // NaN in, NaN out: rounding to integers hides nothing.
        EXPECT_TRUE(std::isnan(without.y[0])) << packed.kernel_name();
        EXPECT_TRUE(std::isnan(without.y[static_cast<size_t>(4 * without.stride + 39)]));
      }
    }
  }
}

// Packed rowwise, a row has the same bits whatever its number of companions, its place among them and the
// team.
TEST(MatMul, RowwiseARowHasTheSameBitsAmongAnyNumberOfRows) {
  Team teams;
  constexpr int64_t kRows = 70, kOutputs = 40;
  int ran = 0;
  for (const DType dtype :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ6_K, DType::kF32, DType::kBF16}) {
    const int64_t cols = IsQuantised(dtype) ? 1536 : 1100;  // several panels of every path
    const RandomWeights w = MakeWeights(dtype, kOutputs, cols, 12);
    const Activations x = MakeActivations(kRows, cols, 13);
    for (const auto& [kernel, mode] : Kernels()) {
      const StoredMatrix parts[] = {Stored(w)};
      const auto packed = PackedMatrix::Pack(
          parts, {.cpu = DetectCpu(), .compute = mode, .forced_kernel = kernel, .rowwise = true}, teams.two);
      if (!packed) {
        EXPECT_TRUE(kernel == "amx" || kernel == "avx512_bf16") << packed.error().message;
        EXPECT_THAT(packed.error().message, HasSubstr("rowwise"));
        continue;
      }
      ++ran;
      const Product all = Multiply(*packed, x, kRows, teams.three);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 25, 64}) {
        for (const int64_t first : {int64_t{0}, int64_t{5}}) {
          Activations part{.rows = rows, .cols = cols, .storage = {}};
          part.storage.assign(x.row(first), x.row(first) + rows * x.stride());
          const Product some = Multiply(*packed, part, rows, rows % 2 == 0 ? teams.one : teams.two);
          for (int64_t m = 0; m < rows; ++m) {
            ASSERT_EQ(std::memcmp(&all.y[static_cast<size_t>((first + m) * all.stride)],
                                  &some.y[static_cast<size_t>(m * some.stride)], kOutputs * sizeof(float)),
                      0)
                << packed->kernel_name() << ", row " << m << " of " << rows;
          }
        }
      }
    }
  }
  EXPECT_GE(ran, 6);
  // Without a name the choice leaves out what is not rowwise.
  const RandomWeights w = MakeWeights(DType::kQ4_1, 16, 64, 12);
  const StoredMatrix parts[] = {Stored(w)};
  const auto chosen =
      PackedMatrix::Pack(parts, {.cpu = DetectCpu(), .forced_kernel = "", .rowwise = true}, teams.two);
  ASSERT_TRUE(chosen.has_value()) << chosen.error().message;
  EXPECT_EQ(chosen->kernel_name().find("bf16"), std::string::npos);
}

TEST(MatMul, InfinityInARowIsNotHidden) {
  ThreadTeam team(1);
  const RandomWeights w = MakeWeights(DType::kQ4_1, 16, 64, 14);
  Activations x = MakeActivations(40, 64, 15);
  x.storage[static_cast<size_t>(2 * x.stride() + 40)] = std::numeric_limits<float>::infinity();
  for (const auto& [kernel, mode] : Kernels()) {
    const PackedMatrix packed = Pack({Stored(w)}, kernel, mode, team);
    for (int64_t rows : {3, 40}) {
      const Product product = Multiply(packed, x, rows, team);
      EXPECT_FALSE(std::isfinite(product.y[static_cast<size_t>(2 * product.stride)])) << kernel;
      EXPECT_TRUE(std::isfinite(product.y[0])) << kernel;
    }
  }
}

TEST(MatMul, RowsOfZerosGiveZeros) {
  ThreadTeam team(2);
  const RandomWeights w = MakeWeights(DType::kQ4_1, 16, 64, 16);
  Activations x = MakeActivations(40, 64, 17);
  for (int64_t r = 0; r < 40; ++r)
    std::fill_n(x.storage.begin() + r * x.stride(), 64, r % 2 == 0 ? 0.0f : 1e-38f);
  for (const auto& [kernel, mode] : Kernels()) {
    const PackedMatrix packed = Pack({Stored(w)}, kernel, mode, team);
    for (int64_t rows : {2, 40}) {
      const Product product = Multiply(packed, x, rows, team);
      for (int64_t n = 0; n < 16; ++n) {
        EXPECT_EQ(product.y[static_cast<size_t>(n)], 0.0f) << kernel;
        EXPECT_NEAR(product.y[static_cast<size_t>(product.stride + n)], 0.0f, 1e-35f) << kernel;
      }
    }
  }
}

TEST(MatMul, ReservedScratchIsLargeEnoughAndZeroRowsAreNothing) {
  ThreadTeam team(2);
  const RandomWeights w = MakeWeights(DType::kQ4_1, 48, 576, 18);
  const Activations x = MakeActivations(64, 576, 19);
  const PackedMatrix packed = Pack({Stored(w)}, "", ComputeMode::kFast, team);
  MatMulScratch scratch;
  ASSERT_TRUE(scratch.Reserve(packed, 64, team).has_value());
  std::vector<float> y(64 * 48, kPoison);
  MatMul(packed, {.x = x.view(0), .y = View<float, 2>::Dense(y.data(), {0, 48})}, scratch, team);
  EXPECT_TRUE(std::isnan(y[0]));
  for (int64_t rows : {1, 7, 8, 64}) {
    MatMul(packed, {.x = x.view(rows), .y = View<float, 2>::Dense(y.data(), {rows, 48})}, scratch, team);
    EXPECT_FALSE(std::isnan(y[static_cast<size_t>(rows * 48 - 1)]));
  }
}

TEST(MatMul, KeepsTheStoredSizeUpToPaddingOfRows) {
  ThreadTeam team(1);
  for (DType dtype : kWeightTypes) {
    const RandomWeights w = MakeWeights(dtype, 32, 512, 20);
    const PackedMatrix packed = Pack({Stored(w)}, "", ComputeMode::kFast, team);
    EXPECT_EQ(packed.size_bytes(), 32 * w.row_bytes()) << DTypeName(dtype);
    EXPECT_EQ(packed.cols(), 512);
  }
}

TEST(MatMulPack, ForcedKernelThatIsUnknownListsTheKnown) {
  ThreadTeam team(1);
  const RandomWeights w = MakeWeights(DType::kQ4_1, 4, 64, 21);
  const StoredMatrix stored = Stored(w);
  const auto fail = [&](const std::string& name, ComputeMode mode, CpuFeatures cpu) {
    const auto packed =
        PackedMatrix::Pack({&stored, 1}, {.cpu = cpu, .compute = mode, .forced_kernel = name}, team);
    EXPECT_FALSE(packed.has_value());
    return packed.has_value() ? Error{} : packed.error();
  };
  const Error unknown = fail("avx3", ComputeMode::kFast, DetectCpu());
  EXPECT_EQ(unknown.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(unknown.message, HasSubstr("\"avx3\""));
  EXPECT_THAT(unknown.message, HasSubstr("portable"));
#if defined(__x86_64__)
  EXPECT_THAT(unknown.message, HasSubstr("avx2_f32"));
  const Error lacking = fail("avx2", ComputeMode::kFast, CpuFeatures{});
  EXPECT_EQ(lacking.code, ErrorCode::kUnsupported);
  EXPECT_THAT(lacking.message, HasSubstr("needs avx2"));
  const Error not_precise = fail("avx2", ComputeMode::kPrecise, DetectCpu());
  EXPECT_EQ(not_precise.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(not_precise.message, HasSubstr("precise"));
#endif
}

TEST(MatMulPack, RefusesPartsItCannotStackAndNamesTheValue) {
  ThreadTeam team(1);
  std::vector<std::byte> data(100000);
  const auto message = [&](const std::vector<StoredMatrix>& parts) {
    const auto packed = PackedMatrix::Pack(parts, {.cpu = DetectCpu(), .forced_kernel = ""}, team);
    EXPECT_FALSE(packed.has_value());
    return packed.has_value() ? std::string() : packed.error().message;
  };
  const auto part = [&](DType dtype, int64_t rows, int64_t cols) {
    return StoredMatrix{.data = data.data(), .dtype = dtype, .rows = rows, .cols = cols};
  };
  EXPECT_THAT(message({}), HasSubstr("at least one part"));
  EXPECT_THAT(message({part(DType::kQ4_1, 4, 64), part(DType::kQ4_1, 4, 96)}), HasSubstr("cols 96 differ"));
  EXPECT_THAT(message({part(DType::kQ4_K, 4, 64)}),
              HasSubstr("cols 64 is not a multiple of q4_k's block of 256"));
  EXPECT_THAT(message({part(DType::kI8, 4, 64)}), HasSubstr("int8"));
  EXPECT_THAT(message({part(DType::kF32, 0, 64)}), HasSubstr("rows 0"));
  EXPECT_THAT(message({part(DType::kF32, 4, -1)}), HasSubstr("cols -1"));
}

TEST(MatMulPack, EveryLevelFallsBackToWhatTheCpuHas) {
  CpuFeatures none;
  EXPECT_THAT(MatMulKernels(ComputeMode::kFast, &none), ElementsAre("portable"));
  EXPECT_THAT(MatMulKernels(ComputeMode::kPrecise, &none), ElementsAre("portable"));
#if defined(__x86_64__)
  CpuFeatures avx2;
  avx2.avx2 = true;
  EXPECT_THAT(MatMulKernels(ComputeMode::kFast, &avx2), ElementsAre("avx2", "avx2_f32", "portable"));
  EXPECT_THAT(MatMulKernels(ComputeMode::kPrecise, &avx2), ElementsAre("avx2_f32", "portable"));
#elif defined(__aarch64__)
  CpuFeatures arm;
  arm.neon = true;
  EXPECT_THAT(MatMulKernels(ComputeMode::kFast, &arm), ElementsAre("neon", "portable"));
  arm.arm_dotprod = true;
  EXPECT_THAT(MatMulKernels(ComputeMode::kFast, &arm), ElementsAre("neon_dot", "neon", "portable"));
  arm.arm_i8mm = true;
  EXPECT_THAT(MatMulKernels(ComputeMode::kFast, &arm),
              ElementsAre("neon_i8mm", "neon_dot", "neon", "portable"));
  EXPECT_THAT(MatMulKernels(ComputeMode::kPrecise, &arm), ElementsAre("neon", "portable"));
#endif
}

}  // namespace
}  // namespace attest
