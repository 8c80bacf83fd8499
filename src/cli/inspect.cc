// attest inspect: what is in a model's files, and whether it fits in memory.
#include "io/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/model_host.h"
#include "device/memory.h"
#include "engine/runner.h"
#include "io/gguf.h"

namespace attest {
namespace {

constexpr double kBytesPerMib = 1 << 20;

void Line(const char* name, const std::string& value) {
  std::puts(fmt::format("  {:<22}{}", name, value).c_str());
}

const char* RopeName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
  }
  return "unknown";
}

void PrintConfig(const ModelConfig& config) {
  std::puts("model");
  Line("architecture", config.architecture);
  if (!config.name.empty()) Line("name", config.name);
  Line("layers", fmt::format("{}", config.num_layers));
  Line("hidden size", fmt::format("{}, feed-forward {}", config.hidden_size, config.intermediate_size));
  Line("heads",
       fmt::format("{} query, {} KV, head_dim {}", config.q_heads, config.kv_heads, config.head_dim));
  Line("vocabulary",
       fmt::format("{}{}", config.vocab_size, config.tied_head ? ", output head tied to the embedding" : ""));
  Line("context", fmt::format("{} tokens", config.max_positions));
  if (const auto window =
          std::ranges::find_if(config.layer_windows, [](const auto& w) { return w.has_value(); });
      window != config.layer_windows.end()) {
    const auto count =
        std::ranges::count_if(config.layer_windows, [](const auto& w) { return w.has_value(); });
    Line("window", fmt::format("{} tokens in {} of {} layers", **window, count, config.num_layers));
  }
  Line("rope", fmt::format("theta {}, scaling {}{}", config.rope.theta, RopeName(config.rope.scaling),
                           config.rope.freq_divisors.empty() ? "" : " (frequency divisors in the file)"));
}

void PrintTensors(const Checkpoint& checkpoint, bool each) {
  const CheckpointSummary summary = Summarize(checkpoint);
  std::puts(fmt::format("\ntensors: {} in {:.1f} MiB, {:.1f} M parameters", summary.tensors,
                        static_cast<double>(summary.tensor_bytes) / kBytesPerMib,
                        static_cast<double>(summary.elements) / 1e6)
                .c_str());
  for (const DTypeSummary& dtype : summary.dtypes) {
    Line(std::string(DTypeName(dtype.dtype)).c_str(),
         fmt::format("{:>5} tensors {:>10.1f} MiB  {:.2f} bits per weight", dtype.tensors,
                     static_cast<double>(dtype.bytes) / kBytesPerMib,
                     dtype.elements > 0
                         ? 8.0 * static_cast<double>(dtype.bytes) / static_cast<double>(dtype.elements)
                         : 0.0));
  }
  if (!each) return;
  std::puts("");
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    std::puts(fmt::format("  {:<48} {:<6} [{}] at {}", tensor.name, DTypeName(tensor.dtype),
                          fmt::join(tensor.shape, ", "), tensor.file_offset)
                  .c_str());
  }
}

Status PrintMemory(const Checkpoint& checkpoint, const ModelConfig& config, const ModelOptions& options) {
  const std::vector<KvGroup> groups = KvGroupsOf(config);
  const KvShape shape{.num_layers = config.num_layers,
                      .kv_heads = config.kv_heads,
                      .head_dim = config.head_dim,
                      .v_head_dim = config.head_dim,
                      .dtype = options.kv_dtype,
                      .block_size = options.block_size,
                      .buffers = BuffersOf(groups, static_cast<size_t>(config.num_layers))};
  ATTEST_RETURN_IF_ERROR(CheckKvShape(shape));
  ATTEST_ASSIGN_OR_RETURN(const MemoryStatus memory, ReadMemoryStatus());
  const std::vector<KvWindow> windows = WindowsOf(groups);
  const KvNeed need{.windows = windows,
                    .block_size = shape.block_size,
                    .max_step_tokens = ModelFlags().max_num_batched_tokens};
  const int64_t block_bytes = KvBytesPerBlock(shape);
  // Within the windows; a longer sequence pays for its full layers only.
  const int64_t per_token = std::ssize(groups) * block_bytes / shape.block_size;
  const int64_t weights = checkpoint.file_bytes();
  std::puts("\nmemory");
  Line("weights", fmt::format("{:.1f} MiB", static_cast<double>(weights) / kBytesPerMib));
  Line("KV cache",
       fmt::format("{} bytes per token ({}), {:.1f} MiB for {} tokens", per_token, DTypeName(shape.dtype),
                   static_cast<double>(PeakBlocks(need, config.max_positions) * block_bytes) / kBytesPerMib,
                   config.max_positions));
  Line("free",
       fmt::format("{:.1f} MiB of {:.1f} MiB", static_cast<double>(memory.available_bytes) / kBytesPerMib,
                   static_cast<double>(memory.total_bytes) / kBytesPerMib));
  const int64_t left = memory.available_bytes - weights;
  const bool has_full = std::ranges::find(windows, KvWindow()) != windows.end();
  const int64_t most = has_full ? std::max<int64_t>(left, 0) : config.max_positions;
  const int64_t tokens = left > 0 ? MostTokens(need, left / block_bytes, most) : 0;
  Line("verdict", left <= 0 ? "does not fit: the weights alone are larger than the free memory"
                  : tokens >= config.max_positions
                      ? fmt::format("fits, with room for {} tokens of KV cache", tokens)
                      : fmt::format("fits with a shorter context: room for {} of {} tokens", tokens,
                                    config.max_positions));
  return {};
}

Status Inspect(const InspectOptions& options, const HubEnvironment& environment) {
  ATTEST_ASSIGN_OR_RETURN(const std::filesystem::path path, FindModel(options.model.model, environment));
  ATTEST_ASSIGN_OR_RETURN(const ModelOptions model_options, ModelOptionsOf(options.model, DetectCpu()));
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  std::puts(fmt::format("{}\n{}, {:.1f} MiB\n", path.string(),
                        checkpoint->gguf() != nullptr
                            ? fmt::format("GGUF version {}", checkpoint->gguf()->version())
                            : "safetensors",
                        static_cast<double>(checkpoint->file_bytes()) / kBytesPerMib)
                .c_str());
  // A family this build cannot run still has tensors worth seeing.
  const Expected<ModelConfig> config = ReadModelConfig(*checkpoint);
  if (config) PrintConfig(*config);
  PrintTensors(*checkpoint, options.tensors);
  if (!config) return std::unexpected(config.error());
  return PrintMemory(*checkpoint, *config, model_options);
}

}  // namespace

int RunInspect(const InspectOptions& options, const HubEnvironment& environment) {
  if (const Status status = Inspect(options, environment); !status) {
    std::fflush(stdout);
    std::fprintf(stderr, "attest inspect: %s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace attest
