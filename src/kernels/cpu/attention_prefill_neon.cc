#include "kernels/cpu/attention_prefill_f32.h"
#include "kernels/cpu/attention_simd_prefill.h"

namespace attest {
namespace {

using Kernel = PrefillKernel<NeonVec>;

}  // namespace

const AttentionKernel kAttentionPrefillNeon = {
    .run = &Kernel::Run,
    .row_tile = &Kernel::RowTile,
    .thread_scratch_bytes = &Kernel::ThreadScratchBytes,
};

}  // namespace attest
