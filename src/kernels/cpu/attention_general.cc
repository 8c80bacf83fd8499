#include "kernels/cpu/attention_general.h"

#define ATTEST_VECTOR_FLOATS 4
#include "kernels/cpu/attention_general_inl.h"

namespace attest {
const AttentionKernel kAttentionGeneral = kKernel;
}  // namespace attest
