#include "kernels/cpu/attention_general.h"

#define ATTEST_VECTOR_FLOATS 16
#include "kernels/cpu/attention_general_inl.h"

namespace attest {
const AttentionKernel kAttentionGeneralAvx512 = kKernel;
}  // namespace attest
