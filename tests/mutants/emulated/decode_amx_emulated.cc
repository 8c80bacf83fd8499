// The mutated kernel over the emulated instructions of tests/emulated, so that its mutants run on every
// x86-64 CPU.
#define kAttentionDecodeAmx kAttentionDecodeAmxEmulated
#include "kernels/cpu/attention_decode_amx.cc"
