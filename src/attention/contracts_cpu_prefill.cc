#include "attention/contracts_cpu.h"
#include "kernels/cpu/attention_prefill_bf16.h"
#include "kernels/cpu/attention_prefill_f32.h"

#if defined(__x86_64__) || defined(__aarch64__)

namespace attest {
namespace {

constexpr std::string_view kWords =
    "Prefill and extend of any length over pages or contiguous K and V in f32, bf16, f16, fp8 or int8, in "
    "float32: the GQA group is packed into the rows of a tile, keys are read once per tile. Causal or not, "
    "windows, chunks, softcap, ALiBi, sink logits, descales, LSE, any group and page size. No streaming sink "
    "tokens.";
constexpr PhaseSet kPhases{.prefill = true, .extend = true, .uniform_decode = true};

constexpr std::string_view kBf16Words =
    "Prefill and extend of any length over pages or contiguous K and V in bf16, with bf16 products and "
    "float32 "
    "sums: queries and softmax weights are rounded to bf16. The GQA group is packed into the rows of a tile. "
    "Causal or not, windows, chunks, softcap, ALiBi, sink logits, descales, LSE, any group and page size. No "
    "streaming sink tokens, not in precise mode.";
#if defined(__x86_64__)
constexpr std::string_view kBf16OrByteWords =
    "Prefill and extend of any length over pages or contiguous K and V in bf16, fp8 or int8, with bf16 "
    "products "
    "and float32 sums: queries and softmax weights are rounded to bf16. The GQA group is packed into the "
    "rows of "
    "a tile. Causal or not, windows, chunks, softcap, ALiBi, sink logits, descales, LSE, any group and page "
    "size. No streaming sink tokens, not in precise mode.";
#endif

void CheckTileSpec(const AttentionProblem& problem, std::vector<Reason>& reasons, int lanes,
                   std::string_view dims) {
  const AttentionSpec& spec = problem.spec;
  const auto fits = [&](int dim) { return dim % lanes == 0 && dim >= 16 && dim <= 256; };
  Require(reasons, fits(spec.head_dim), "head_dim", spec.head_dim, dims);
  Require(reasons, fits(spec.v_head_dim), "v_head_dim", spec.v_head_dim, dims);
  Require(reasons, spec.q_dtype == DType::kF32, "q_dtype", DTypeName(spec.q_dtype), "f32");
  Require(reasons, spec.out_dtype == DType::kF32, "out_dtype", DTypeName(spec.out_dtype), "f32");
  RequireWithout(reasons, spec, {.sink_tokens = true});
}

// The tiles are loaded from the pages as they lie, as pairs of bf16.
void CheckBf16TileSpec(const AttentionProblem& problem, std::vector<Reason>& reasons, int lanes,
                       std::string_view dims) {
  CheckTileSpec(problem, reasons, lanes, dims);
  Require(reasons, problem.spec.kv_dtype == DType::kBF16, "kv_dtype", DTypeName(problem.spec.kv_dtype),
          "bf16");
}

#if defined(__x86_64__)
void CheckBf16Spec(const AttentionProblem& problem, std::vector<Reason>& reasons) {
  CheckBf16TileSpec(problem, reasons, 32, "a multiple of 32 from 32 to 256");
}
// Its tiles are widened from the pages, and the values of 8-bit types are bf16 values.
void CheckBf16OrByteSpec(const AttentionProblem& problem, std::vector<Reason>& reasons) {
  CheckTileSpec(problem, reasons, 32, "a multiple of 32 from 32 to 256");
  const DType kv_dtype = problem.spec.kv_dtype;
  Require(reasons, kv_dtype != DType::kF32 && kv_dtype != DType::kF16, "kv_dtype", DTypeName(kv_dtype),
          "bf16, fp8_e4m3, fp8_e5m2 or int8");
}
#endif

}  // namespace

#if defined(__x86_64__)
const KernelEntry kAttentionPrefillAmxEntry{
    .contract = {.name = "attention_prefill_amx",
                 .words = kBf16Words,
                 .isa = CpuIsa::kAmx,
                 .arithmetic = AttentionArithmetic::kBf16,
                 .phases = kPhases,
                 .limits = {},
                 .check = CheckBf16Spec},
    .kernel = &kAttentionPrefillAmx,
};
const KernelEntry kAttentionPrefillAvx512Bf16Entry{
    .contract = {.name = "attention_prefill_avx512bf16",
                 .words = kBf16OrByteWords,
                 .isa = CpuIsa::kAvx512Bf16,
                 .arithmetic = AttentionArithmetic::kBf16,
                 .phases = kPhases,
                 .limits = {},
                 .check = CheckBf16OrByteSpec},
    .kernel = &kAttentionPrefillAvx512Bf16,
};
const KernelEntry kAttentionPrefillAvx512Entry{
    .contract = {.name = "attention_prefill_avx512",
                 .words = kWords,
                 .isa = CpuIsa::kAvx512,
                 .phases = kPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 16, "a multiple of 16 from 16 to 256");
                     }},
    .kernel = &kAttentionPrefillAvx512,
};
const KernelEntry kAttentionPrefillAvx2Entry{
    .contract = {.name = "attention_prefill_avx2",
                 .words = kWords,
                 .isa = CpuIsa::kAvx2,
                 .phases = kPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 8, "a multiple of 8 from 16 to 256");
                     }},
    .kernel = &kAttentionPrefillAvx2,
};
#else
const KernelEntry kAttentionPrefillNeonBf16Entry{
    .contract = {.name = "attention_prefill_neonbf16",
                 .words = kBf16Words,
                 .isa = CpuIsa::kNeonBf16,
                 .arithmetic = AttentionArithmetic::kBf16,
                 .phases = kPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckBf16TileSpec(problem, reasons, 8, "a multiple of 8 from 16 to 256");
                     }},
    .kernel = &kAttentionPrefillNeonBf16,
};
const KernelEntry kAttentionPrefillNeonEntry{
    .contract = {.name = "attention_prefill_neon",
                 .words = kWords,
                 .isa = CpuIsa::kNeon,
                 .phases = kPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 8, "a multiple of 8 from 16 to 256");
                     }},
    .kernel = &kAttentionPrefillNeon,
};
#endif

}  // namespace attest

#endif
