#include "kernels/cpu/attention_decode_f32.h"
#include "kernels/cpu/attention_simd_decode.h"

namespace attest {
namespace {

using Kernel = DecodeKernel<Avx2Vec>;

}  // namespace

const AttentionKernel kAttentionDecodeAvx2 = {
    .run = &Kernel::Run,
    .row_tile = &Kernel::RowTile,
    .thread_scratch_bytes = &Kernel::ThreadScratchBytes,
};

const AttentionKernel kAttentionRowwiseAvx2 = {
    .run = &Kernel::Run,
    .row_tile = &Kernel::LongRowTile,
    .thread_scratch_bytes = &Kernel::ThreadScratchBytes,
    .can_split_kv = false,
};

}  // namespace attest
