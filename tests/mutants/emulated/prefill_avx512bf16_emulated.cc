// The mutated kernel over the emulated instructions of tests/emulated, so that its mutants run on every
// x86-64 CPU.
#define kAttentionPrefillAvx512Bf16 kAttentionPrefillAvx512Bf16Emulated
#include "kernels/cpu/attention_prefill_avx512bf16.cc"
