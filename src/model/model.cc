#include "model/model.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "model/config_gguf.h"
#include "model/config_json.h"
#include "model/decoder.h"

namespace attest {
namespace {

// "folder" of "/models/folder/" or "file" of "/models/file.gguf".
std::string NameFromPath(const Checkpoint& checkpoint) {
  std::filesystem::path path = checkpoint.path();
  if (!path.has_filename()) path = path.parent_path();
  return (checkpoint.format() == CheckpointFormat::kGguf ? path.stem() : path.filename()).string();
}

Expected<ModelConfig> ReadJsonConfig(const Checkpoint& checkpoint) {
  ATTEST_ASSIGN_OR_RETURN(const std::string text, checkpoint.ReadSideFile("config.json"));
  auto generation = checkpoint.ReadSideFile("generation_config.json");
  if (!generation && generation.error().code != ErrorCode::kNotFound) {
    return std::unexpected(std::move(generation).error());
  }
  return ConfigFromJson({.config = text,
                         .generation_config = generation ? *generation : std::string_view(),
                         .has_lm_head = checkpoint.FindTensor("lm_head.weight") != nullptr,
                         .name = NameFromPath(checkpoint)});
}

Expected<ModelConfig> ReadGgufConfig(const Checkpoint& checkpoint) {
  const TensorInfo* embedding = checkpoint.FindTensor("token_embd.weight");
  return ConfigFromGguf(
      *checkpoint.gguf(),
      {.embedding_rows = embedding != nullptr && !embedding->shape.empty() ? embedding->shape.front() : 0,
       .has_output = checkpoint.FindTensor("output.weight") != nullptr,
       .attention_bias = checkpoint.FindTensor("blk.0.attn_q.bias") != nullptr,
       .mlp_bias = checkpoint.FindTensor("blk.0.ffn_gate.bias") != nullptr,
       .name = NameFromPath(checkpoint)});
}

}  // namespace

Expected<ModelConfig> ReadModelConfig(const Checkpoint& checkpoint) {
  return checkpoint.format() == CheckpointFormat::kGguf ? ReadGgufConfig(checkpoint)
                                                        : ReadJsonConfig(checkpoint);
}

std::vector<KvGroup> KvGroupsOf(const ModelConfig& config) {
  if (!config.layer_windows.empty()) return MakeKvGroups(config.layer_windows);
  return MakeKvGroups(std::vector<KvWindow>(static_cast<size_t>(config.num_layers)));
}

AttentionSpec AttentionSpecOf(const ModelConfig& config, const ModelOptions& options,
                              const KvWindow& window) {
  AttentionSpec spec;
  spec.q_heads = config.q_heads;
  spec.kv_heads = config.kv_heads;
  spec.head_dim = config.head_dim;
  spec.v_head_dim = config.head_dim;
  spec.kv_dtype = options.kv_dtype;
  spec.block_size = options.block_size;
  spec.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  spec.precise = options.compute == ComputeMode::kPrecise;
  spec.rowwise = options.deterministic;
  if (window) spec.window_left = *window - 1;  // the window counts the row itself
  spec.has_k_descale = spec.has_v_descale = options.kv_dtype == DType::kI8;
  return spec;
}

Expected<std::unique_ptr<Model>> Model::Load(const Checkpoint& checkpoint, const ModelOptions& options,
                                             ThreadTeam& team) {
  ATTEST_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(checkpoint));
  // Routes before weights: a spec that no kernel takes is known without reading a byte of them.
  ATTEST_ASSIGN_OR_RETURN(AttentionRouter router,
                          AttentionRouter::Create(options.cpu, options.forced_attention));
  std::vector<KvGroup> groups = KvGroupsOf(config);
  std::vector<AttentionSpec> specs;
  for (const KvGroup& group : groups) {
    specs.push_back(AttentionSpecOf(config, options, group.window));
    ATTEST_RETURN_IF_ERROR(router.CheckSpec(specs.back()));
  }
  LoadWeightsOptions load;
  load.pack.cpu = options.cpu;
  load.pack.compute = options.compute;
  load.pack.rowwise = options.deterministic;
  load.plain_dtype = options.weight_dtype;
  load.progress = options.progress;
  ATTEST_ASSIGN_OR_RETURN(DecoderWeights weights, LoadWeights(checkpoint, load, config, team));
  return std::make_unique<Decoder>(std::move(config), std::move(weights), std::move(groups), std::move(specs),
                                   std::move(router));
}

}  // namespace attest
