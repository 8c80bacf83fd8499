// AVX-512 BF16: from 9 rows on, pairs of tiles are expanded to bf16 panels [pair][2 tiles][16][2] in L1 and
// vpdpbf16ps multiplies them with bf16 activations in 12 x 32 register blocks. Below, as avx512_vnni.
//
// Twice the rate of f32 FMA on Zen 4, half of it on Sapphire Rapids and later (matmul.cc chooses).
#include "kernels/cpu/matmul_bf16_avx512.h"

namespace attest {
namespace {

constexpr int64_t kMinRows = 9;
constexpr int64_t kPanelCols = 384;  // 24 KiB

ATTEST_INLINE bool UsesBf16(int64_t num_rows, int64_t cols) { return num_rows >= kMinRows && cols % 32 == 0; }
ATTEST_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Four rows of sixteen pairs, [row][pair] to [pair][row].
ATTEST_INLINE void StoreTransposed(const __m512i* rows, std::byte* out) {
  const __m512i ab_low = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i ab_high = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i cd_low = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i cd_high = _mm512_unpackhi_epi32(rows[2], rows[3]);
  // Lane l of t[j] is pair 4 l + j.
  const __m512i t[4] = {_mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
                        _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)};
  const __m512i a = _mm512_shuffle_i32x4(t[0], t[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4(t[2], t[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(t[0], t[1], 0xee);
  const __m512i d = _mm512_shuffle_i32x4(t[2], t[3], 0xee);
  _mm512_storeu_si512(out, _mm512_shuffle_i32x4(a, b, 0x88));
  _mm512_storeu_si512(out + 64, _mm512_shuffle_i32x4(a, b, 0xdd));
  _mm512_storeu_si512(out + 128, _mm512_shuffle_i32x4(c, d, 0x88));
  _mm512_storeu_si512(out + 192, _mm512_shuffle_i32x4(c, d, 0xdd));
}

int64_t PreparedBytes(int64_t num_rows, int64_t cols) {
  if (!UsesBf16(num_rows, cols)) return kMatMulAvx512Vnni.prepared_bytes(num_rows, cols);
  return RoundUp(num_rows, kStripRows) * cols * 2;
}

// [strip][pair][4 rows] pairs of bf16; rows past the last are zero.
void Prepare(const PrepareJob& job) {
  if (!UsesBf16(job.num_rows, job.cols)) {
    kMatMulAvx512Vnni.prepare(job);
    return;
  }
  const int64_t chunks = job.cols / 32;
  for (int64_t unit = job.unit_begin; unit < job.unit_end; ++unit) {
    const int64_t row = unit / chunks * kStripRows;
    const int64_t k = unit % chunks * 32;
    __m512i rows[kStripRows];
    for (int r = 0; r < kStripRows; ++r) {
      rows[r] =
          row + r < job.num_rows ? LoadBf16(job.x + (row + r) * job.x_stride + k) : _mm512_setzero_si512();
    }
    StoreTransposed(rows, job.out + unit * kStripRows * 64);
  }
}

// kStrips x 4 rows times two tiles over columns [k_begin, k_end).
template <int kStrips>
void Block(const TileJob& job, const std::byte* panel, int64_t k_begin, int64_t k_end, int64_t row,
           int64_t row_end, int64_t column) {
  constexpr int kRows = kStrips * kStripRows;
  const std::byte* a = job.prepared + (row * job.cols + k_begin * kStripRows) * 2;
  const int64_t strip_bytes = kStripRows * job.cols * 2;
  __m512 sums[kRows][2];
  for (auto& sum : sums) sum[0] = sum[1] = _mm512_setzero_ps();
  const int64_t pairs = (k_end - k_begin) / 2;
  for (int64_t p = 0; p < pairs; ++p) {
    const auto low = (__m512bh)_mm512_loadu_si512(panel + p * 128);
    const auto high = (__m512bh)_mm512_loadu_si512(panel + p * 128 + 64);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r / kStripRows * strip_bytes + (p * kStripRows + r % kStripRows) * 4,
                       sizeof(pair));
      const auto broadcast = (__m512bh)_mm512_set1_epi32(pair);
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], broadcast, low);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], broadcast, high);
    }
  }
  // Sums of a product cut along k wait in y: the first part stores, the others add.
  TileJob store = job;
  if (k_begin > 0) {
    store.add = true;
    store.bias = nullptr;
  }
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= row_end) break;
    StoreSums(store, row + r, column, sums[r][0]);
    StoreSums(store, row + r, column + kTileRows, sums[r][1]);
  }
}

void Run(const TileJob& job) {
  if (!UsesBf16(job.num_rows, job.cols)) {
    kMatMulAvx512Vnni.run(job);
    return;
  }
  std::byte* panel = job.scratch;
  for (int64_t tile = 0; tile < job.num_tiles; tile += 2) {
    for (int64_t k = 0; k < job.cols;) {
      // Panels end at multiples of 256 where more than one is needed: whole blocks of every type.
      const int64_t k_end = job.cols - k <= kPanelCols ? job.cols : k + 256;
      for (int64_t t = 0; t < 2; ++t) {
        // The partner of a last, odd tile repeats it; its sums are past num_outputs and not stored.
        const int64_t source = tile + t < job.num_tiles ? tile + t : tile;
        ExpandBf16(job.dtype, job.tiles + source * job.tile_bytes, k, k_end, panel + 64 * t, 128, 2048);
      }
      for (int64_t row = job.row_begin; row < job.row_end;) {
        const int64_t left = job.row_end - row;
        if (left > 2 * kStripRows) {
          Block<3>(job, panel, k, k_end, row, job.row_end, tile * kTileRows);
          row += 3 * kStripRows;
        } else if (left > kStripRows) {
          Block<2>(job, panel, k, k_end, row, job.row_end, tile * kTileRows);
          row += 2 * kStripRows;
        } else {
          Block<1>(job, panel, k, k_end, row, job.row_end, tile * kTileRows);
          row += kStripRows;
        }
      }
      k = k_end;
    }
  }
}

bool NeedsPrepare(DType dtype, int64_t num_rows, int64_t cols) {
  return UsesBf16(num_rows, cols) || kMatMulAvx512Vnni.needs_prepare(dtype, num_rows, cols);
}
int64_t ScratchBytes(int64_t num_rows, int64_t cols) {
  const int64_t own = kPanelCols * 64;
  const int64_t other = kMatMulAvx512Vnni.scratch_bytes(num_rows, cols);
  return own > other ? own : other;
}

}  // namespace

const MatMulPath kMatMulAvx512Bf16 = {
    .name = "avx512_bf16",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run,
};

}  // namespace attest
