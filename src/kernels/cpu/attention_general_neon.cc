#include "kernels/cpu/attention_general.h"

// Two registers: the sums of a row then wait for each other half as often as with one (attention_general.cc).
#define ATTEST_VECTOR_FLOATS 8
#include "kernels/cpu/attention_general_inl.h"

namespace attest {
const AttentionKernel kAttentionGeneralNeon = kKernel;
}  // namespace attest
