#include "attention/contracts_cpu.h"

#include "kernels/cpu/attention_general.h"
#include "kernels/reference/attention_reference.h"

namespace attest {
namespace {

// ValidateSpec has refused what makes no sense; the general kernel and the reference take all the rest.
void CheckNothing(const AttentionProblem& /*problem*/, std::vector<Reason>& /*reasons*/) {}

void RunReference(const AttentionParams& params, const AttentionWorkItem& item,
                  const AttentionScratch& /*scratch*/) {
  const int group = params.q_heads / params.kv_heads;
  ReferenceAttentionBlock(params, item.seq, item.row_begin, item.row_end, item.kv_head * group,
                          (item.kv_head + 1) * group, {.begin = item.kv_begin, .end = item.kv_end});
}

// The reference is never split: it states what a row is, and merging is not part of that.
constexpr AttentionKernel kReference{
    .run = RunReference,
    .row_tile = [](const AttentionShape&) -> int32_t { return 16; },
    .thread_scratch_bytes = [](const AttentionShape&) -> int64_t { return 0; },
    .can_split_kv = false,
};

constexpr std::string_view kGeneralWords =
    "Every phase and every feature of the canon in float32: any head size, group, page size and layout; "
    "causal "
    "or not, windows, streaming sinks, chunks, softcap, ALiBi, sink logits, descales, LSE; K and V in f32, "
    "bf16, f16, fp8 (e4m3, e5m2) or int8.";

}  // namespace

#if defined(__x86_64__)
const KernelEntry kAttentionGeneralAvx512Entry{
    .contract = {.name = "attention_general_avx512",
                 .words = kGeneralWords,
                 .isa = CpuIsa::kAvx512,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check = CheckNothing},
    .kernel = &kAttentionGeneralAvx512,
};
const KernelEntry kAttentionGeneralAvx2Entry{
    .contract = {.name = "attention_general_avx2",
                 .words = kGeneralWords,
                 .isa = CpuIsa::kAvx2,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check = CheckNothing},
    .kernel = &kAttentionGeneralAvx2,
};
#elif defined(__aarch64__)
const KernelEntry kAttentionGeneralNeonEntry{
    .contract = {.name = "attention_general_neon",
                 .words = kGeneralWords,
                 .isa = CpuIsa::kNeon,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check = CheckNothing},
    .kernel = &kAttentionGeneralNeon,
};
#endif
const KernelEntry kAttentionGeneralEntry{
    .contract = {.name = "attention_general",
                 .words = kGeneralWords,
                 .isa = CpuIsa::kPortable,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check = CheckNothing},
    .kernel = &kAttentionGeneral,
};
const KernelEntry kAttentionReferenceEntry{
    .contract = {.name = "reference",
                 .words =
                     "The oracle: the canon in double precision, one row at a time, nothing shared with the "
                     "kernels it judges. Supports everything; slow.",
                 .isa = CpuIsa::kPortable,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check = CheckNothing},
    .kernel = &kReference,
};

}  // namespace attest
