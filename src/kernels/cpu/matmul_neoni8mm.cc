// Matrix products of bytes (FEAT_I8MM, Armv8.6): 2 x 8 by 8 x 2. Two rows of W meet the high and the low
// bytes of one row of activations, so that the instruction is full already for a single row.
#include "kernels/cpu/matmul_int8_neon.h"

namespace attest {
namespace {

struct MatrixBytes {
  struct Weights {
    int8x16_t rows01, rows23;
  };
  // High and low of two rows of W, in turn.
  struct Sums {
    int32x4_t rows01, rows23;
  };
  static ATTEST_INLINE Weights Make(RunBytes run) {
    const int32x4_t first = vreinterpretq_s32_s8(run.first);
    const int32x4_t second = vreinterpretq_s32_s8(run.second);
    return {vreinterpretq_s8_s32(vzip1q_s32(first, second)), vreinterpretq_s8_s32(vzip2q_s32(first, second))};
  }
  static ATTEST_INLINE Sums Zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static ATTEST_INLINE void Add(Sums& sums, const Weights& w, int8x16_t a) {
    sums.rows01 = vmmlaq_s32(sums.rows01, w.rows01, a);
    sums.rows23 = vmmlaq_s32(sums.rows23, w.rows23, a);
  }
  static ATTEST_INLINE int32x4_t Total(const Sums& sums) {
    const int32x4_t high = vuzp1q_s32(sums.rows01, sums.rows23);
    const int32x4_t low = vuzp2q_s32(sums.rows01, sums.rows23);
    return vaddq_s32(vshlq_n_s32(high, 8), low);
  }
};

}  // namespace

const MatMulPath kMatMulNeonI8mm = {
    .name = "neon_i8mm",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run<MatrixBytes>,
};

}  // namespace attest
