#include "tests/emulated/entries.h"

#include "attention/contracts_cpu.h"

namespace attest {
namespace {

// The contract of the real kernel, word for word, but for the name and the CPU it needs.
KernelContract Emulated(std::string_view name, const KernelEntry& real) {
  KernelContract contract = real.contract;
  contract.name = name;
  contract.isa = CpuIsa::kPortable;
  return contract;
}

}  // namespace

const KernelEntry kEmulatedDecodeAmx{
    .contract = Emulated("attention_decode_amx_emulated", kAttentionDecodeAmxEntry),
    .kernel = &kAttentionDecodeAmxEmulated};
const KernelEntry kEmulatedPrefillAmx{
    .contract = Emulated("attention_prefill_amx_emulated", kAttentionPrefillAmxEntry),
    .kernel = &kAttentionPrefillAmxEmulated};
const KernelEntry kEmulatedPrefillAvx512Bf16{
    .contract = Emulated("attention_prefill_avx512bf16_emulated", kAttentionPrefillAvx512Bf16Entry),
    .kernel = &kAttentionPrefillAvx512Bf16Emulated};

#ifndef ATTEST_EMULATED_BF16_ALONE
const KernelEntry kEmulatedDecodeAvx512{
    .contract = Emulated("attention_decode_avx512_emulated", kAttentionDecodeAvx512Entry),
    .kernel = &kAttentionDecodeAvx512Emulated};
const KernelEntry kEmulatedPrefillAvx512{
    .contract = Emulated("attention_prefill_avx512_emulated", kAttentionPrefillAvx512Entry),
    .kernel = &kAttentionPrefillAvx512Emulated};
#endif

}  // namespace attest
