// Dot products of four bytes (FEAT_DotProd, Armv8.2): four rows of W in a register's lanes, the activation's
// four bytes taken from one lane of its run.
#include "kernels/cpu/matmul_int8_neon.h"

namespace attest {
namespace {

struct DotBytes {
  using Weights = RunBytes;
  struct Sums {
    int32x4_t high, low;
  };
  static ATTEST_INLINE Weights Make(RunBytes run) { return run; }
  static ATTEST_INLINE Sums Zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static ATTEST_INLINE void Add(Sums& sums, const Weights& w, int8x16_t a) {
    sums.high = vdotq_laneq_s32(sums.high, w.first, a, 0);
    sums.high = vdotq_laneq_s32(sums.high, w.second, a, 1);
    sums.low = vdotq_laneq_s32(sums.low, w.first, a, 2);
    sums.low = vdotq_laneq_s32(sums.low, w.second, a, 3);
  }
  static ATTEST_INLINE int32x4_t Total(const Sums& sums) {
    return vaddq_s32(vshlq_n_s32(sums.high, 8), sums.low);
  }
};

}  // namespace

const MatMulPath kMatMulNeonDot = {
    .name = "neon_dot",
    .needs_prepare = NeedsPrepare,
    .prepared_bytes = PreparedBytes,
    .prepare = Prepare,
    .scratch_bytes = ScratchBytes,
    .run = Run<DotBytes>,
};

}  // namespace attest
