// Matrix products of the decoder shapes of SmolLM2-135M: a whole decode step (every matrix once, more bytes
// than any cache) for 1 to 8 rows, and single products for 16 to 512 rows.
//
//   bench_matmul [--threads N] [--kernel NAME] [--precise] [--type q4_1] [--seconds S] [--no-step]
//   [--cpu-time]
//
// Each case is verified against double products first. The bounds, measured in the same run: reading memory
// (MB/s of W) for up to 8 rows, f32 FMA for more. A kernel with 16-bit activations multiplies twice as much
// per instruction as an FMA, so it may pass 100 percent. Repetitions in which the process was preempted are
// dropped while enough others remain; --cpu-time (with one thread) counts this thread's CPU time only, for a
// machine with other work.
#include <immintrin.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/matmul.h"
#include "tensor/buffer.h"
#include "tests/support/weights.h"

namespace attest {
namespace {

bool use_cpu_time = false;  // --cpu-time

double Now() {
  timespec t{};
  clock_gettime(use_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

long Preemptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

struct Timing {
  double median = 0;
  double best = 0;
};

// Repeats fn for about `seconds`, at least 5 times.
template <class Fn>
Timing Measure(double seconds, Fn fn) {
  std::vector<double> clean, disturbed;
  fn();
  const double start = Now();
  while (clean.size() + disturbed.size() < 5 || Now() - start < seconds) {
    const long before = Preemptions();
    const double t0 = Now();
    fn();
    const double took = Now() - t0;
    (Preemptions() == before ? clean : disturbed).push_back(took);
  }
  if (clean.size() < 5) clean.insert(clean.end(), disturbed.begin(), disturbed.end());
  std::sort(clean.begin(), clean.end());
  return {.median = clean[clean.size() / 2], .best = clean.front()};
}

// Bytes per second of reading `buffer` once with every rank.
double MeasureBandwidth(const Buffer& buffer, ThreadTeam& team, double seconds) {
  // Pieces of 4 MiB per rank, so that a repetition is shorter than a scheduler's slice.
  const int64_t piece = int64_t{4} << 20;
  const int64_t per_rank = buffer.size_bytes() / team.size() / piece * piece;
  int64_t offset = 0;
  const Timing timing = Measure(seconds, [&] {
    team.Run([&](int rank) {
      const auto* p = reinterpret_cast<const uint64_t*>(buffer.data() + rank * per_rank + offset);
      uint64_t sums[16] = {};
      for (int64_t i = 0; i < piece / 8; i += 16) {
        __builtin_prefetch(p + i + 256);
        __builtin_prefetch(p + i + 264);
        for (int lane = 0; lane < 16; ++lane) sums[lane] += p[i + lane];
      }
      uint64_t total = 0;
      for (uint64_t sum : sums) total += sum;
      asm volatile("" ::"r"(total));  // keeps the loop
    });
    offset = (offset + piece) % per_rank;
  });
  return static_cast<double>(piece * team.size()) / timing.median;
}

constexpr int kFmaChains = 12;
constexpr int kFmaSteps = 20000;

__attribute__((target("avx2,fma"))) float FmaAvx2() {
  __m256 sums[kFmaChains];
  for (auto& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.9999f);
  for (int i = 0; i < kFmaSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm256_fmadd_ps(sums[c], a, a);
  }
  float total = 0;
  for (const auto& sum : sums) total += _mm256_cvtss_f32(sum);
  return total;
}
__attribute__((target("avx512f"))) float FmaAvx512() {
  __m512 sums[kFmaChains];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.9999f);
  for (int i = 0; i < kFmaSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm512_fmadd_ps(sums[c], a, a);
  }
  float total = 0;
  for (const auto& sum : sums) total += _mm512_cvtss_f32(sum);
  return total;
}

// Floating-point operations per second of f32 FMA on every rank; 0 without AVX2.
double MeasureFma(const CpuFeatures& cpu, ThreadTeam& team, double seconds) {
  if (!cpu.avx2) return 0;
  const Timing timing = Measure(seconds, [&] {
    team.Run([&](int) {
      const float sum = cpu.avx512 ? FmaAvx512() : FmaAvx2();
      asm volatile("" ::"x"(sum));  // keeps the loop
    });
  });
  return 2.0 * (cpu.avx512 ? 16 : 8) * kFmaChains * kFmaSteps * team.size() / timing.best;
}

struct Options {
  int threads = 2;
  std::string kernel;
  ComputeMode compute = ComputeMode::kFast;
  DType dtype = DType::kQ4_1;
  double seconds = 0.3;
  bool step = true;
};

struct Shape {
  const char* name;
  int64_t n;
  int64_t k;
  DType dtype;
};

std::vector<float> Activations(int64_t count) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(rng);
  return x;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), cpu_(DetectCpu()), team_(options.threads) {
    team_.PinCaller();
  }

  int Run() {
    Expected<Buffer> memory = Buffer::Allocate(int64_t{256} << 20, "bandwidth");
    if (!memory) return Complain(memory.error().message);
    std::memset(memory->data(), 1, static_cast<size_t>(memory->size_bytes()));
    bandwidth_ = MeasureBandwidth(*memory, team_, 2 * options_.seconds);
    fma_ = MeasureFma(cpu_, team_, options_.seconds);
    std::printf("bench=bounds threads=%d bandwidth_gbps=%.1f fma_gflops=%.1f\n", options_.threads,
                bandwidth_ / 1e9, fma_ / 1e9);
    const DType type = options_.dtype;
    const std::vector<Shape> layer = {{"qkv", 960, 576, type},
                                      {"o", 576, 576, type},
                                      {"gate_up", 3072, 576, type},
                                      {"down", 576, 1536, type}};
    const DType head = type == DType::kQ4_1 ? DType::kQ8_0 : type;
    if (BlockElements(type) == 256) {  // the nearest shapes with rows of 256
      return Gemm({{"qkv", 960, 512, type}, {"gate_up", 3072, 512, type}, {"down", 576, 1536, type}}) ||
             Decode({{"down", 576, 1536, type}, {"gate_up", 3072, 512, type}}, {"head", 49152, 512, type});
    }
    if (!options_.step) return Gemm(layer);
    return Decode(layer, {"head", 49152, 576, head}) || Gemm(layer);
  }

 private:
  static int Complain(const std::string& message) {
    std::fprintf(stderr, "bench_matmul: %s\n", message.c_str());
    return 1;
  }

  // Packs random weights of a shape and checks a few outputs of 1 and 17 rows against double products.
  Expected<PackedMatrix> Pack(const Shape& shape, uint32_t seed) {
    const testing::RandomWeights w = testing::MakeWeights(shape.dtype, shape.n, shape.k, seed);
    const StoredMatrix stored{.data = w.stored.data(), .dtype = w.dtype, .rows = w.rows, .cols = w.cols};
    ATTEST_ASSIGN_OR_RETURN(
        PackedMatrix packed,
        PackedMatrix::Pack({&stored, 1},
                           {.cpu = cpu_, .compute = options_.compute, .forced_kernel = options_.kernel},
                           team_));
    for (int64_t rows : {1, 17, 40}) {
      const std::vector<float> x = Activations(rows * shape.k);
      std::vector<float> y(static_cast<size_t>(rows * shape.n));
      MatMul(packed,
             {.x = View<const float, 2>::Dense(x.data(), {rows, shape.k}),
              .y = View<float, 2>::Dense(y.data(), {rows, shape.n})},
             scratch_, team_);
      for (int64_t at = 0; at < rows * shape.n; at += 97) {
        double sum = 0, squares = 0;
        for (int64_t k = 0; k < shape.k; ++k) {
          const double product =
              double{x[static_cast<size_t>(at / shape.n * shape.k + k)]} * w.row(at % shape.n)[k];
          sum += product;
          squares += product * product;
        }
        // bf16 is the coarsest arithmetic: 2^-9 per factor.
        if (!(std::fabs(y[static_cast<size_t>(at)] - sum) <= 0.02 * std::sqrt(squares))) {
          return Fail(ErrorCode::kInternal, packed.kernel_name() + ": wrong result at " + std::to_string(at));
        }
      }
    }
    return packed;
  }

  // One decode step: 30 layers and the head, all different bytes.
  int Decode(const std::vector<Shape>& layer, const Shape& head) {
    std::vector<PackedMatrix> matrices;
    uint32_t seed = 1;
    for (int l = 0; l < 30; ++l) {
      for (const Shape& shape : layer) {
        if (l > 0) {  // verified once per shape; the copies differ in place, not in values
          auto packed = PackAgain(shape);
          if (!packed) return Complain(packed.error().message);
          matrices.push_back(std::move(*packed));
          continue;
        }
        auto packed = Pack(shape, seed++);
        if (!packed) return Complain(packed.error().message);
        matrices.push_back(std::move(*packed));
      }
    }
    auto packed = Pack(head, seed);
    if (!packed) return Complain(packed.error().message);
    matrices.push_back(std::move(*packed));
    double bytes = 0;
    for (const PackedMatrix& w : matrices) bytes += static_cast<double>(w.size_bytes());
    const std::vector<float> x = Activations(8 * 1536);
    std::vector<float> y(8 * 49152);
    for (int64_t rows : {1, 2, 3, 4, 6, 8}) {
      std::vector<double> fastest(matrices.size(), 1e9);
      const Timing timing = Measure(2 * options_.seconds, [&] {
        for (size_t i = 0; i < matrices.size(); ++i) {
          const PackedMatrix& w = matrices[i];
          const double start = Now();
          MatMul(w,
                 {.x = View<const float, 2>::Dense(x.data(), {rows, w.cols()}),
                  .y = View<float, 2>::Dense(y.data(), {rows, w.rows()})},
                 scratch_, team_);
          fastest[i] = std::min(fastest[i], Now() - start);
        }
      });
      double quiet = 0;  // what an undisturbed step takes: each matrix at its fastest
      for (double t : fastest) quiet += t;
      std::printf(
          "bench=matmul_step kernel=%s matrices=%zu mb=%.1f rows=%ld threads=%d ms_median=%.3f "
          "ms_best=%.3f ms_quiet=%.3f tokens_per_s=%.0f gbps=%.1f bound=bandwidth bound_gbps=%.1f "
          "percent=%.1f\n",
          matrices[0].kernel_name().c_str(), matrices.size(), bytes / 1e6, static_cast<long>(rows),
          options_.threads, timing.median * 1e3, timing.best * 1e3, quiet * 1e3,
          static_cast<double>(rows) / timing.median, bytes / timing.median / 1e9, bandwidth_ / 1e9,
          100 * bytes / timing.median / bandwidth_);
      std::fflush(stdout);
    }
    return 0;
  }

  Expected<PackedMatrix> PackAgain(const Shape& shape) {
    const std::vector<std::byte> stored(static_cast<size_t>(RowBytes(shape.dtype, shape.k) * shape.n),
                                        std::byte{0x21});
    const StoredMatrix part{.data = stored.data(), .dtype = shape.dtype, .rows = shape.n, .cols = shape.k};
    return PackedMatrix::Pack(
        {&part, 1}, {.cpu = cpu_, .compute = options_.compute, .forced_kernel = options_.kernel}, team_);
  }

  int Gemm(const std::vector<Shape>& shapes) {
    for (const Shape& shape : shapes) {
      auto packed = Pack(shape, 3);
      if (!packed) return Complain(packed.error().message);
      const std::vector<float> x = Activations(512 * shape.k);
      std::vector<float> y(static_cast<size_t>(512 * shape.n));
      for (int64_t rows : {8, 16, 32, 64, 128, 512}) {
        const Timing timing = Measure(options_.seconds, [&] {
          MatMul(*packed,
                 {.x = View<const float, 2>::Dense(x.data(), {rows, shape.k}),
                  .y = View<float, 2>::Dense(y.data(), {rows, shape.n})},
                 scratch_, team_);
        });
        const double operations = 2.0 * static_cast<double>(rows * shape.n * shape.k);
        std::printf(
            "bench=matmul kernel=%s shape=%s n=%ld k=%ld rows=%ld threads=%d us_median=%.1f us_best=%.1f "
            "gflops=%.1f gflops_best=%.1f bound=f32_fma bound_gflops=%.1f percent=%.1f\n",
            packed->kernel_name().c_str(), shape.name, static_cast<long>(shape.n), static_cast<long>(shape.k),
            static_cast<long>(rows), options_.threads, timing.median * 1e6, timing.best * 1e6,
            operations / timing.median / 1e9, operations / timing.best / 1e9, fma_ / 1e9,
            fma_ > 0 ? 100 * operations / timing.median / fma_ : 0.0);
        std::fflush(stdout);
      }
    }
    return 0;
  }

  Options options_;
  CpuFeatures cpu_;
  ThreadTeam team_;
  MatMulScratch scratch_;
  double bandwidth_ = 0;
  double fma_ = 0;
};

}  // namespace
}  // namespace attest

int main(int argc, char** argv) {
  attest::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (flag == "--threads") {
      options.threads = std::atoi(value().c_str());
    } else if (flag == "--kernel") {
      options.kernel = value();
    } else if (flag == "--precise") {
      options.compute = attest::ComputeMode::kPrecise;
    } else if (flag == "--no-step") {
      options.step = false;
    } else if (flag == "--cpu-time") {
      attest::use_cpu_time = true;
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value().c_str());
    } else if (flag == "--type") {
      const std::string name = value();
      bool known = false;
      for (attest::DType dtype : attest::testing::kWeightTypes) {
        if (attest::DTypeName(dtype) != name) continue;
        options.dtype = dtype;
        known = true;
      }
      if (!known) {
        std::fprintf(stderr, "bench_matmul: unknown --type %s\n", name.c_str());
        return 2;
      }
    } else {
      std::fprintf(stderr, "bench_matmul: unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  if (options.threads < 1) {
    std::fprintf(stderr, "bench_matmul: --threads must be at least 1\n");
    return 2;
  }
  return attest::Bench(options).Run();
}
