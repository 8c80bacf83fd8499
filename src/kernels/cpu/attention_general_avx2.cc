#include "kernels/cpu/attention_general.h"

#define ATTEST_VECTOR_FLOATS 8
#include "kernels/cpu/attention_general_inl.h"

namespace attest {
const AttentionKernel kAttentionGeneralAvx2 = kKernel;
}  // namespace attest
