// attest kernels and attest explain: the contracts, in words.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/explain.h"
#include "attention/support.h"
#include "cli/commands.h"
#include "cli/model_host.h"
#include "server/http_get.h"

namespace attest {
namespace {

std::string PhasesOf(const PhaseSet& phases) {
  std::string text;
  for (const AttentionPhase phase : kAttentionPhases) {
    if (!phases.Has(phase)) continue;
    if (!text.empty()) text += ", ";
    text += AttentionPhaseName(phase);
  }
  return text;
}

// Wraps at 100 columns under a hanging indent.
std::string Wrapped(std::string_view text, size_t indent) {
  constexpr size_t kWidth = 100;
  std::string out(indent, ' ');
  size_t column = indent;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column + (end - at) > kWidth && column > indent) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
    }
    out += text.substr(at, end - at);
    out += ' ';
    column += end - at + 1;
    at = end + 1;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

Expected<AttentionSpec> SpecOf(const ExplainOptions& options, const CpuFeatures& cpu,
                               const HubEnvironment& environment) {
  if (options.model) {
    ATTEST_ASSIGN_OR_RETURN(const std::filesystem::path path, FindModel(options.model->model, environment));
    ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
    ATTEST_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*checkpoint));
    ModelFlags flags = *options.model;
    flags.block_size = options.block_size;
    flags.kv_cache_dtype = options.kv_dtype;
    flags.compute = options.precise ? "f32" : "auto";
    ATTEST_ASSIGN_OR_RETURN(const ModelOptions model_options, ModelOptionsOf(flags, cpu));
    return AttentionSpecOf(config, model_options);
  }
  static const std::map<std::string, DType> kDTypes = {
      {"f32", DType::kF32},         {"bf16", DType::kBF16},       {"f16", DType::kF16},
      {"fp8_e4m3", DType::kF8E4M3}, {"fp8_e5m2", DType::kF8E5M2}, {"int8", DType::kI8}};
  AttentionSpec spec;
  spec.q_heads = options.q_heads;
  spec.kv_heads = options.kv_heads;
  spec.head_dim = options.head_dim;
  spec.v_head_dim = options.v_head_dim.value_or(options.head_dim);
  spec.q_dtype = spec.out_dtype = kDTypes.at(options.q_dtype);
  spec.kv_dtype = kDTypes.at(options.kv_dtype);
  spec.layout = options.layout == "contiguous"  ? KvLayout::kContiguous
                : options.layout == "paged-nhd" ? KvLayout::kPagedNhd
                                                : KvLayout::kPagedHnd;
  spec.block_size = options.block_size;
  spec.scale =
      static_cast<float>(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(options.head_dim))));
  spec.causal = !options.non_causal;
  spec.window_left = options.window_left;
  spec.window_right = options.window_right;
  spec.chunk = options.chunk;
  spec.sink_tokens = options.sink_tokens;
  spec.softcap = static_cast<float>(options.softcap);
  spec.has_alibi = options.alibi;
  spec.has_sinks = options.sinks;
  spec.has_k_descale = options.k_descale;
  spec.has_v_descale = options.v_descale;
  spec.wants_lse = options.lse;
  spec.precise = options.precise;
  return spec;
}

Expected<AttentionPhase> PhaseOfOptions(const ExplainOptions& options) {
  const bool is_library = options.q_len > options.kv_len;
  if (is_library && options.phase.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--q-len is {}, larger than --kv-len {}: the new tokens count as keys",
                            options.q_len, options.kv_len),
                "q-len");
  }
  const AttentionPhase computed = RoutePhaseOf(options.q_len, options.kv_len);
  if (options.phase.empty()) return computed;
  for (const AttentionPhase phase : kAttentionPhases) {
    std::string name = AttentionPhaseName(phase);
    for (char& c : name) {
      if (c == '_') c = '-';
    }
    if (name == options.phase) return phase;
  }
  return Fail(ErrorCode::kInvalidArgument, fmt::format("--phase: '{}' is unknown", options.phase), "phase");
}

Status PrintExplanation(const ExplainOptions& options, const HubEnvironment& environment) {
  const CpuFeatures cpu = DetectCpu();
  ATTEST_ASSIGN_OR_RETURN(const AttentionSpec spec, SpecOf(options, cpu, environment));
  ATTEST_ASSIGN_OR_RETURN(const AttentionPhase phase, PhaseOfOptions(options));
  const AttentionProblem problem{.spec = spec,
                                 .phase = phase,
                                 .num_seqs = options.num_seqs,
                                 .min_q_len = options.q_len,
                                 .max_q_len = options.q_len,
                                 .min_kv_len = options.kv_len,
                                 .max_kv_len = options.kv_len};
  PrintLine(fmt::format("{}: {} sequence(s) of {} query rows and {} keys, {}/{} heads of {}, q {}, KV {} {}",
                        AttentionPhaseName(phase), options.num_seqs, options.q_len, options.kv_len,
                        spec.q_heads, spec.kv_heads, spec.head_dim, DTypeName(spec.q_dtype),
                        DTypeName(spec.kv_dtype), KvLayoutName(spec.layout)));
  PrintLine(fmt::format("on {}\n", DescribeCpu(cpu)));
  ATTEST_ASSIGN_OR_RETURN(const Explanation explanation, Explain(problem, cpu, options.attention_backend));
  for (const Verdict& verdict : explanation.verdicts) {
    if (verdict.runs)
      PrintLine(
          fmt::format("  {:<30} runs{}", verdict.kernel, explanation.forced.empty() ? "" : " (forced)"));
    for (size_t i = 0; i < verdict.reasons.size(); ++i) {
      const Reason& reason = verdict.reasons[i];
      const bool accepts = reason.field == "order" || reason.field == "forced";
      PrintLine(fmt::format("  {:<30} {}", i == 0 ? verdict.kernel : "",
                            accepts
                                ? fmt::format("accepts, but {} {}", explanation.kernel.value_or("another"),
                                              reason.field == "order" ? "comes first" : "is forced")
                                : ToString(reason)));
    }
  }
  if (!explanation.kernel) return Fail(ErrorCode::kUnsupported, "no kernel runs this call", "attention");
  return {};
}

// The kernels that a running server has taken out of its list.
Expected<std::vector<std::string>> AskQuarantined(std::string server) {
  while (server.ends_with('/')) server.pop_back();
  ATTEST_ASSIGN_OR_RETURN(const HttpReplyText reply, HttpGet(server + "/health"));
  const auto health = nlohmann::json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  if (!health.is_object() || !health.contains("attention") || !health["attention"].is_object()) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{}/health (status {}) tells nothing about attention: an attest server with "
                            "--verify-attention above 0 does",
                            server, reply.status),
                "server");
  }
  for (const auto& name : health["attention"].value("quarantined", nlohmann::json::array())) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

}  // namespace

int RunKernels(const KernelsOptions& options, const HubEnvironment&) {
  if (options.markdown) {
    std::fputs(SupportMarkdown().c_str(), stdout);
    return 0;
  }
  const CpuFeatures cpu = DetectCpu();
  std::vector<std::string> quarantined;
  if (!options.server.empty()) {
    auto asked = AskQuarantined(options.server);
    if (!asked) {
      std::fprintf(stderr, "attest kernels: %s\n", asked.error().message.c_str());
      return 1;
    }
    quarantined = *std::move(asked);
    PrintLine(fmt::format("{} has quarantined {} kernel(s)\n", options.server, quarantined.size()));
  }
  PrintLine(
      fmt::format("{}\n{}\n\nAttention kernels in the order they are tried; the first whose contract accepts "
                  "a call runs it.\n",
                  cpu.brand, DescribeCpu(cpu)));
  for (const KernelInfo& kernel : DescribeKernels(cpu)) {
    PrintLine(fmt::format("{}  [{}] {}", kernel.name, CpuIsaName(kernel.isa),
                          kernel.cpu_has_isa ? "available" : "not on this CPU"));
    if (std::ranges::count(quarantined, kernel.name) != 0) {
      PrintLine(fmt::format("    QUARANTINED by {}: its rows were wrong", options.server));
    }
    PrintLine(fmt::format("    phases: {}", PhasesOf(kernel.phases)));
    PrintLine(Wrapped(kernel.words, 4));
    PrintLine("");
  }
  return 0;
}

int RunExplain(const ExplainOptions& options, const HubEnvironment& environment) {
  if (const Status status = PrintExplanation(options, environment); !status) {
    std::fflush(stdout);
    std::fprintf(stderr, "attest explain: %s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace attest
