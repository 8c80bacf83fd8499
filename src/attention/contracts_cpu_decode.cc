#include "attention/contracts_cpu.h"
#include "kernels/cpu/attention_decode_bf16.h"
#include "kernels/cpu/attention_decode_f32.h"

#if defined(__x86_64__) || defined(__aarch64__)

namespace attest {
namespace {

static_assert(kDecodeMaxTokens >= kMaxUniformDecodeTokens, "every uniform decode fits a decode kernel");

constexpr std::string_view kWords =
    "Split-KV decode of one to eight new tokens over pages or contiguous K and V in f32, bf16, f16, fp8 or "
    "int8, in float32: keys are read once per GQA group, whatever its size. Causal or not, windows, chunks, "
    "softcap, ALiBi, sink logits, descales, LSE, any page size. No streaming sink tokens.";
constexpr PhaseSet kPhases{.decode = true, .uniform_decode = true};
constexpr LengthLimits kLimits{.max_q_len = kDecodeMaxTokens, .max_kv_len = std::nullopt};

void CheckTileSpec(const AttentionProblem& problem, std::vector<Reason>& reasons, int pair,
                   std::string_view dims) {
  const AttentionSpec& spec = problem.spec;
  const auto fits = [&](int dim) { return dim % pair == 0 && dim >= 32 && dim <= 256; };
  Require(reasons, fits(spec.head_dim), "head_dim", spec.head_dim, dims);
  Require(reasons, fits(spec.v_head_dim), "v_head_dim", spec.v_head_dim, dims);
  Require(reasons, spec.q_dtype == DType::kF32, "q_dtype", DTypeName(spec.q_dtype), "f32");
  Require(reasons, spec.out_dtype == DType::kF32, "out_dtype", DTypeName(spec.out_dtype), "f32");
  RequireWithout(reasons, spec, {.sink_tokens = true});
}

constexpr std::string_view kRowwiseWords =
    "Every phase and any length over pages or contiguous K and V in f32, bf16, f16, fp8 or int8, in "
    "float32, each row as if it were alone: its bits depend on its query, its position and the keys it "
    "sees. Key ranges are not split. Causal or not, windows, chunks, softcap, ALiBi, sink logits, descales, "
    "LSE, any page size. No streaming sink tokens.";

constexpr std::string_view kBf16Words =
    "Split-KV decode of one to eight new tokens over pages or contiguous K and V in bf16, with bf16 "
    "products and float32 sums: queries and softmax weights are rounded to bf16. Keys are read once per GQA "
    "group. Causal or not, windows, chunks, softcap, ALiBi, sink logits, descales, LSE, any page size. No "
    "streaming sink tokens, not in precise mode.";

void CheckBf16TileSpec(const AttentionProblem& problem, std::vector<Reason>& reasons, int pair,
                       std::string_view dims) {
  CheckTileSpec(problem, reasons, pair, dims);
  Require(reasons, problem.spec.kv_dtype == DType::kBF16, "kv_dtype", DTypeName(problem.spec.kv_dtype),
          "bf16");
}

}  // namespace

#if defined(__x86_64__)
const KernelEntry kAttentionDecodeAmxEntry{
    .contract = {.name = "attention_decode_amx",
                 .words = kBf16Words,
                 .isa = CpuIsa::kAmx,
                 .arithmetic = AttentionArithmetic::kBf16,
                 .phases = kPhases,
                 .limits = kLimits,
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckBf16TileSpec(problem, reasons, 32, "a multiple of 32 from 32 to 256");
                     }},
    .kernel = &kAttentionDecodeAmx,
};
const KernelEntry kAttentionDecodeAvx512Entry{
    .contract = {.name = "attention_decode_avx512",
                 .words = kWords,
                 .isa = CpuIsa::kAvx512,
                 .phases = kPhases,
                 .limits = kLimits,
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 32, "a multiple of 32 from 32 to 256");
                     }},
    .kernel = &kAttentionDecodeAvx512,
};
const KernelEntry kAttentionDecodeAvx2Entry{
    .contract = {.name = "attention_decode_avx2",
                 .words = kWords,
                 .isa = CpuIsa::kAvx2,
                 .phases = kPhases,
                 .limits = kLimits,
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 16, "a multiple of 16 from 32 to 256");
                     }},
    .kernel = &kAttentionDecodeAvx2,
};
const KernelEntry kAttentionRowwiseAvx512Entry{
    .contract = {.name = "attention_rowwise_avx512",
                 .words = kRowwiseWords,
                 .isa = CpuIsa::kAvx512,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 32, "a multiple of 32 from 32 to 256");
                     }},
    .kernel = &kAttentionRowwiseAvx512,
};
const KernelEntry kAttentionRowwiseAvx2Entry{
    .contract = {.name = "attention_rowwise_avx2",
                 .words = kRowwiseWords,
                 .isa = CpuIsa::kAvx2,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 16, "a multiple of 16 from 32 to 256");
                     }},
    .kernel = &kAttentionRowwiseAvx2,
};
#else
const KernelEntry kAttentionDecodeNeonBf16Entry{
    .contract = {.name = "attention_decode_neonbf16",
                 .words = kBf16Words,
                 .isa = CpuIsa::kNeonBf16,
                 .arithmetic = AttentionArithmetic::kBf16,
                 .phases = kPhases,
                 .limits = kLimits,
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckBf16TileSpec(problem, reasons, 8, "a multiple of 8 from 32 to 256");
                     }},
    .kernel = &kAttentionDecodeNeonBf16,
};
const KernelEntry kAttentionDecodeNeonEntry{
    .contract = {.name = "attention_decode_neon",
                 .words = kWords,
                 .isa = CpuIsa::kNeon,
                 .phases = kPhases,
                 .limits = kLimits,
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 8, "a multiple of 8 from 32 to 256");
                     }},
    .kernel = &kAttentionDecodeNeon,
};
const KernelEntry kAttentionRowwiseNeonEntry{
    .contract = {.name = "attention_rowwise_neon",
                 .words = kRowwiseWords,
                 .isa = CpuIsa::kNeon,
                 .rowwise = true,
                 .phases = kAllPhases,
                 .limits = {},
                 .check =
                     [](const AttentionProblem& problem, std::vector<Reason>& reasons) {
                       CheckTileSpec(problem, reasons, 8, "a multiple of 8 from 32 to 256");
                     }},
    .kernel = &kAttentionRowwiseNeon,
};
#endif

}  // namespace attest

#endif
