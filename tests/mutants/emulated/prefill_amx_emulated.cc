// The mutated kernel over the emulated instructions of tests/emulated, so that its mutants run on every
// x86-64 CPU.
#define kAttentionPrefillAmx kAttentionPrefillAmxEmulated
#include "kernels/cpu/attention_prefill_amx.cc"
