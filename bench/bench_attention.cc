// Times attention kernels, one layer per call, through the plan the engine uses. Per case: verifies sampled
// rows against the oracle, then alternates the kernel with the bound of the same machine and prints one line
// that ends in percent of that bound. Prefill is bounded by the products (f32 FMA, bf16 dot or tiles,
// whichever the kernel uses), decode by reading K and V once, from a buffer of the same size, with the same
// threads.
//
//   bench_attention [--threads N] [--kernel NAME] [--seconds S]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/plan.h"
#include "base/check.h"
#include "base/thread_team.h"
#include "conform/case_list.h"
#include "device/cpu.h"
#include "device/memory.h"
#include "kernels/reference/attention_reference.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attest {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- bounds -----------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// Twelve independent chains cover 4 cycles of latency at 2 (or 1) instructions per cycle. Returns the FLOP
// done.
#define ATTEST_TWELVE(op, reg)                                                                       \
  asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t" op " %%" reg "14, %%" reg "15, %%" reg         \
               "\\r\n\t.endr" ::                                                                     \
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                     "xmm10", "xmm11")
double SpinFma256(int64_t n) {
  for (int64_t i = 0; i < n; ++i) ATTEST_TWELVE("vfmadd231ps", "ymm");
  return static_cast<double>(n) * 12 * 16;
}
double SpinFma512(int64_t n) {
  for (int64_t i = 0; i < n; ++i) ATTEST_TWELVE("vfmadd231ps", "zmm");
  return static_cast<double>(n) * 12 * 32;
}
double SpinBf16Dot(int64_t n) {
  for (int64_t i = 0; i < n; ++i) ATTEST_TWELVE("vdpbf16ps", "zmm");
  return static_cast<double>(n) * 12 * 64;
}
__attribute__((target("amx-tile,amx-bf16"))) double SpinTiles(int64_t n) {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Config config;
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
  // Ordinary values: all-zero operands run 20 % faster than real ones.
  alignas(64) uint16_t values[512];
  for (int i = 0; i < 512; ++i) values[i] = static_cast<uint16_t>(0x3c00 + i % 251);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, values, 64);
  _tile_loadd(6, values, 64);
  for (int64_t i = 0; i < n; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 6);
  }
  _tile_release();
  return static_cast<double>(n) * 4 * 2 * 16 * 16 * 32;
}
#endif

struct Bound {
  const char* name;
  double (*spin)(int64_t n);
};
Bound ProductBound(const KernelEntry& entry) {
#if defined(__x86_64__)
  const bool bf16_products = entry.contract.arithmetic == AttentionArithmetic::kBf16;
  switch (entry.contract.isa) {
    case CpuIsa::kAmx:
      return {"amx_bf16", &SpinTiles};
    case CpuIsa::kAvx512Bf16:
      return {bf16_products ? "bf16_dot" : "fma512", bf16_products ? &SpinBf16Dot : &SpinFma512};
    case CpuIsa::kAvx512:
    case CpuIsa::kAvx512Vnni:
      return {"fma512", &SpinFma512};
    default:
      return {"fma256", &SpinFma256};
  }
#else
  static_cast<void>(entry);
  return {"none", nullptr};
#endif
}

// Reads `bytes` with all threads and returns a value that depends on every line.
uint64_t ReadAll(const std::byte* data, int64_t bytes, ThreadTeam& team) {
  std::vector<uint64_t> sums(static_cast<size_t>(team.size()) * 8);
  team.Run([&](int rank) {
    const IndexRange range = PartitionRange(bytes, rank, team.size(), 256);
    uint64_t a = 0, b = 0, c = 0, d = 0;
#if defined(__x86_64__)
    __m128i x = _mm_setzero_si128(), y = x, z = x, w = x;
    for (int64_t i = range.begin; i + 64 <= range.end; i += 64) {
      const auto* p = reinterpret_cast<const __m128i*>(data + i);
      x = _mm_xor_si128(x, _mm_load_si128(p));
      y = _mm_xor_si128(y, _mm_load_si128(p + 1));
      z = _mm_xor_si128(z, _mm_load_si128(p + 2));
      w = _mm_xor_si128(w, _mm_load_si128(p + 3));
    }
    x = _mm_xor_si128(_mm_xor_si128(x, y), _mm_xor_si128(z, w));
    std::memcpy(&a, &x, 8);
#else
    for (int64_t i = range.begin; i + 32 <= range.end; i += 32) {
      const auto* p = reinterpret_cast<const uint64_t*>(data + i);
      a ^= p[0], b ^= p[1], c ^= p[2], d ^= p[3];
    }
#endif
    sums[static_cast<size_t>(rank) * 8] = a ^ b ^ c ^ d;
  });
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

// ---- one case ---------------------------------------------------------------------------------------------

using Case = conform::TimedCase;

class Batch {
 public:
  explicit Batch(const Case& c) : case_(c) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    spec_ = {.q_heads = c.q_heads,
             .kv_heads = c.kv_heads,
             .head_dim = c.head_dim,
             .v_head_dim = c.head_dim,
             .kv_dtype = c.kv_dtype,
             .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))};
    const int64_t blocks_per_seq = (c.kv_len + spec_.block_size - 1) / spec_.block_size;
    const int64_t blocks = blocks_per_seq * c.seqs;
    const int64_t page = int64_t{spec_.block_size} * c.kv_heads * c.head_dim;
    element_bytes_ = RowBytes(c.kv_dtype, 1);
    half_bytes_ = blocks * page * element_bytes_;
    // 2 MiB pages: with 4 KiB ones, scattered reads measure the page walker.
    pages_ = static_cast<std::byte*>(AllocatePages(static_cast<size_t>(2 * half_bytes_)));
    ATTEST_CHECK(pages_ != nullptr);
    std::vector<float> values(1 << 16);
    for (float& value : values) value = normal(random);
    for (int64_t i = 0; i < 2 * half_bytes_ / element_bytes_; ++i) {
      const float value = values[static_cast<size_t>(i * 40503 % 65521)];
      if (c.kv_dtype == DType::kBF16) {
        reinterpret_cast<bf16*>(pages_)[i] = ToBf16(value);
      } else {
        reinterpret_cast<float*>(pages_)[i] = value;
      }
    }
    table_.resize(static_cast<size_t>(blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::ranges::shuffle(table_, random);
    const KvPages strides{.data = pages_,
                          .block_stride = page,
                          .head_stride = int64_t{spec_.block_size} * c.head_dim,
                          .slot_stride = c.head_dim};
    kv_ = {.k = strides,
           .v = strides,
           .dtype = c.kv_dtype,
           .num_blocks = blocks,
           .block_size = spec_.block_size,
           .kv_heads = c.kv_heads,
           .head_dim = c.head_dim,
           .v_head_dim = c.head_dim};
    kv_.v.data = pages_ + half_bytes_;
    kv_len_.assign(static_cast<size_t>(c.seqs), c.kv_len);
    q_begin_ = CuSeqlens::FromLengths(std::vector<int32_t>(static_cast<size_t>(c.seqs), c.q_len)).value();
    q_.resize(static_cast<size_t>(c.seqs) * static_cast<size_t>(c.q_len * c.q_heads * c.head_dim));
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = values[i * 31 % values.size()];
    out_.resize(q_.size());
  }

  ~Batch() { FreePages(pages_, static_cast<size_t>(2 * half_bytes_)); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  [[nodiscard]] const AttentionSpec& spec() const { return spec_; }
  [[nodiscard]] const std::byte* pages() const { return pages_; }
  [[nodiscard]] int64_t kv_bytes() const { return 2 * half_bytes_; }
  [[nodiscard]] double flop() const {  // of the visible pairs
    double pairs = 0;
    for (int i = 0; i < case_.q_len; ++i) pairs += case_.kv_len - case_.q_len + i + 1;
    return 4.0 * case_.head_dim * case_.q_heads * pairs * case_.seqs;
  }
  [[nodiscard]] AttentionLengths lengths() {
    return {.q_begin = &q_begin_,
            .kv_len = kv_len_,
            .block_tables = {.ids = table_.data(),
                             .row_stride = static_cast<int64_t>(table_.size()) / case_.seqs,
                             .num_seqs = case_.seqs},
            .owned = {}};
  }
  void Run(const AttentionPlan& plan, ThreadTeam& team) {
    const std::array<int64_t, 3> shape{int64_t{case_.seqs} * case_.q_len, case_.q_heads, case_.head_dim};
    Attend(plan,
           {.q = View<const float, 3>::Dense(q_.data(), shape),
            .out = View<float, 3>::Dense(out_.data(), shape),
            .kv = &kv_,
            .poison_outputs = false},
           team);
  }
  // The largest relative error (norms) of some rows of every sequence.
  double WorstRow() {
    AttentionParams params;
    const std::array<int64_t, 3> shape{int64_t{case_.seqs} * case_.q_len, case_.q_heads, case_.head_dim};
    params.q = {.data = reinterpret_cast<const std::byte*>(q_.data()),
                .shape = shape,
                .stride = View<const float, 3>::Dense(q_.data(), shape).stride};
    params.paged = &kv_;
    params.block_tables = lengths().block_tables;
    params.q_begin = &q_begin_;
    params.kv_len = kv_len_;
    params.q_heads = case_.q_heads;
    params.kv_heads = case_.kv_heads;
    params.head_dim = params.v_head_dim = case_.head_dim;
    params.scale = spec_.scale;
    std::vector<double> expected(static_cast<size_t>(case_.head_dim));
    double worst = 0;
    const int step = std::max(1, case_.seqs * case_.q_len / 24);
    for (int token = 0; token < case_.seqs * case_.q_len; token += step) {
      for (int head = 0; head < case_.q_heads; ++head) {
        ReferenceAttentionRow(params, token / case_.q_len, token % case_.q_len, head, expected);
        const float* got =
            out_.data() + (int64_t{token} * case_.q_heads + head) * static_cast<int64_t>(case_.head_dim);
        double error = 0, norm = 0;
        for (int d = 0; d < case_.head_dim; ++d) {
          error += std::pow(got[d] - expected[static_cast<size_t>(d)], 2);
          norm += std::pow(expected[static_cast<size_t>(d)], 2);
        }
        const double relative = std::sqrt(error / norm);
        worst = std::isfinite(relative) ? std::max(worst, relative) : HUGE_VAL;
      }
    }
    return worst;
  }

 private:
  Case case_;
  AttentionSpec spec_;
  int64_t element_bytes_ = 0, half_bytes_ = 0;
  std::byte* pages_ = nullptr;
  std::vector<int32_t> table_, kv_len_;
  CuSeqlens q_begin_;
  PagedKv kv_;
  std::vector<float> q_, out_;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

bool BenchCase(const Case& c, const KernelEntry& entry, const CpuFeatures& cpu, ThreadTeam& team,
               double seconds) {
  Batch batch(c);
  const AttentionPhase phase = RoutePhaseOf(c.q_len, c.kv_len);
  if (!Check(entry.contract, {.spec = batch.spec(), .phase = phase}, cpu).empty()) return true;
  const auto router = AttentionRouter::Create(cpu, entry.contract.name);
  if (!router) {
    fmt::print(stderr, "bench_attention: {}\n", router.error().message);
    return false;
  }
  auto plan = PlanAttention(*router, batch.spec(), batch.lengths(), team.size());
  if (!plan) {
    fmt::print(stderr, "bench_attention: {}\n", plan.error().message);
    return false;
  }
  batch.Run(**plan, team);
  const double error = batch.WorstRow();
  const double allowed = entry.contract.arithmetic == AttentionArithmetic::kF32 ? 1e-5 : 2e-2;
  if (!(error <= allowed)) {
    fmt::print("attention kernel={} WRONG: a row differs from the oracle by {:.2e}, allowed {:.0e}\n",
               entry.contract.name, error, allowed);
    return false;
  }

  // A decode with one row per KV head reads; everything else multiplies.
  const bool reads = phase == AttentionPhase::kDecode || phase == AttentionPhase::kUniformDecode;
  const Bound bound = reads ? Bound{"read", nullptr} : ProductBound(entry);
  std::vector<double> times, bounds;
  uint64_t sink = 0;
  const double until = Now() + seconds;
  while (times.size() < 5 || (Now() < until && times.size() < 2000)) {
    double start = Now();
    batch.Run(**plan, team);
    times.push_back(Now() - start);
    start = Now();
    if (reads) {
      sink ^= ReadAll(batch.pages(), batch.kv_bytes(), team);
      bounds.push_back(static_cast<double>(batch.kv_bytes()) / (Now() - start));
    } else if (bound.spin != nullptr) {
      std::vector<double> done(static_cast<size_t>(team.size()) * 8);
      team.Run([&](int rank) { done[static_cast<size_t>(rank) * 8] = bound.spin(100000); });
      bounds.push_back(std::accumulate(done.begin(), done.end(), 0.0) / (Now() - start));
    } else {
      bounds.push_back(0);
    }
  }
  const double time = Median(times), best = *std::ranges::min_element(times);
  const double limit = Median(bounds);
  const double rate = reads ? static_cast<double>(batch.kv_bytes()) / time : batch.flop() / time;
  fmt::print(
      "attention kernel={} phase={} heads={}/{} head_dim={} q_len={} kv_len={} seqs={} kv={} threads={} "
      "row_error={:.1e} "
      "median_us={:.1f} best_us={:.1f} gflops={:.1f} gb_per_s={:.2f} bound={} bound_value={:.1f}{} "
      "percent_of_bound={:.1f}\n",
      entry.contract.name, AttentionPhaseName(phase), c.q_heads, c.kv_heads, c.head_dim, c.q_len, c.kv_len,
      c.seqs, DTypeName(c.kv_dtype), team.size(), error, time * 1e6, best * 1e6, batch.flop() / time / 1e9,
      static_cast<double>(batch.kv_bytes()) / time / 1e9, bound.name, limit / 1e9, reads ? "GB/s" : "GFLOP/s",
      limit > 0 ? 100 * rate / limit : 0.0);
  std::fflush(stdout);
  return sink != 1;  // keeps the reads
}

int Main(int argc, char** argv) {
  int threads = 1;
  double seconds = 1.0;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads") {
      threads = std::max(1, std::atoi(argv[i + 1]));
    } else if (flag == "--kernel") {
      only = argv[i + 1];
    } else if (flag == "--seconds") {
      seconds = std::atof(argv[i + 1]);
    } else {
      fmt::print(stderr, "usage: bench_attention [--threads N] [--kernel NAME] [--seconds S]\n");
      return 2;
    }
  }
  const CpuFeatures cpu = DetectCpu();
  ThreadTeam team(threads);
  team.PinCaller();
  const std::vector<Case> cases = conform::TimedCases();
  bool right = true;
  for (const Case& c : cases) {
    for (const KernelEntry* entry : KernelList()) {
      const bool wanted = only.empty() ? entry->contract.name.starts_with("attention_prefill_") ||
                                             entry->contract.name.starts_with("attention_decode_")
                                       : entry->contract.name == only;
      if (wanted && HasIsa(cpu, entry->contract.isa))
        right = BenchCase(c, *entry, cpu, team, seconds) && right;
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace attest

int main(int argc, char** argv) { return attest::Main(argc, argv); }
