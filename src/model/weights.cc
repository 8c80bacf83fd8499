#include "model/weights.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "model/rope.h"
#include "model/tensor_source.h"

namespace attest {
namespace {

// What the two formats call one tensor; "{}" is the layer. ".weight" or ".bias" is appended.
struct TensorNames {
  const char* embedding;
  const char* final_norm;
  const char* head;
  const char* attention_norm;
  const char* q;
  const char* k;
  const char* v;
  const char* output;
  const char* mlp_norm;
  const char* gate;
  const char* up;
  const char* down;
};

constexpr TensorNames kSafetensorsNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .attention_norm = "model.layers.{}.input_layernorm",
    .q = "model.layers.{}.self_attn.q_proj",
    .k = "model.layers.{}.self_attn.k_proj",
    .v = "model.layers.{}.self_attn.v_proj",
    .output = "model.layers.{}.self_attn.o_proj",
    .mlp_norm = "model.layers.{}.post_attention_layernorm",
    .gate = "model.layers.{}.mlp.gate_proj",
    .up = "model.layers.{}.mlp.up_proj",
    .down = "model.layers.{}.mlp.down_proj",
};

constexpr TensorNames kGgufNames = {
    .embedding = "token_embd",
    .final_norm = "output_norm",
    .head = "output",
    .attention_norm = "blk.{}.attn_norm",
    .q = "blk.{}.attn_q",
    .k = "blk.{}.attn_k",
    .v = "blk.{}.attn_v",
    .output = "blk.{}.attn_output",
    .mlp_norm = "blk.{}.ffn_norm",
    .gate = "blk.{}.ffn_gate",
    .up = "blk.{}.ffn_up",
    .down = "blk.{}.ffn_down",
};

constexpr const char* kGgufRopeDivisors = "rope_freqs.weight";

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const PackedMatrix::PackOptions& pack, TensorSource& source,
         const ModelConfig& config, ThreadTeam& team)
      : source_(source), pack_(pack), config_(config), team_(team) {
    const bool gguf = checkpoint.format() == CheckpointFormat::kGguf;
    names_ = gguf ? &kGgufNames : &kSafetensorsNames;
    head_rows_ = gguf ? HeadRowOrder::kInterleaved : HeadRowOrder::kHalfSplit;
  }

  [[nodiscard]] const TensorNames& names() const { return *names_; }

  static std::string Name(const char* pattern, int layer, const char* suffix) {
    return fmt::format(fmt::runtime(pattern), layer) + suffix;
  }

  // `what` names the parts for the error of a matrix type that no kernel takes.
  Expected<PackedMatrix> Pack(std::span<const StoredMatrix> parts, const std::string& what) {
    auto packed = PackedMatrix::Pack(parts, pack_, team_);
    if (!packed) {
      return Fail(packed.error().code, fmt::format("{}: {}", what, packed.error().message), what);
    }
    source_.Release();
    size_bytes_ += packed->size_bytes();
    return packed;
  }

  Expected<PackedMatrix> PackOne(const std::string& name, int64_t rows, int64_t cols) {
    ATTEST_ASSIGN_OR_RETURN(const StoredMatrix matrix, source_.Matrix(name, rows, cols));
    return Pack(std::span(&matrix, 1), name);
  }

  Expected<std::vector<float>> Vector(const std::string& name, int64_t size) {
    ATTEST_ASSIGN_OR_RETURN(std::vector<float> values, source_.Vector(name, size));
    size_bytes_ += size * int64_t{sizeof(float)};
    return values;
  }

  Expected<LayerWeights> LoadLayer(int layer) {
    LayerWeights weights;
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t q_rows = int64_t{config_.q_heads} * config_.head_dim;
    ATTEST_ASSIGN_OR_RETURN(weights.attention_norm,
                            Vector(Name(names_->attention_norm, layer, ".weight"), hidden));
    ATTEST_ASSIGN_OR_RETURN(weights.qkv, LoadQkv(layer));
    ATTEST_ASSIGN_OR_RETURN(weights.output, PackOne(Name(names_->output, layer, ".weight"), hidden, q_rows));
    ATTEST_ASSIGN_OR_RETURN(weights.mlp_norm, Vector(Name(names_->mlp_norm, layer, ".weight"), hidden));
    ATTEST_ASSIGN_OR_RETURN(weights.gate_up, LoadGateUp(layer));
    ATTEST_ASSIGN_OR_RETURN(weights.down, PackOne(Name(names_->down, layer, ".weight"), hidden, inner));
    if (config_.attention_bias) {
      ATTEST_ASSIGN_OR_RETURN(weights.qkv_bias, LoadQkvBias(layer));
      ATTEST_ASSIGN_OR_RETURN(weights.output_bias, Vector(Name(names_->output, layer, ".bias"), hidden));
    }
    if (config_.mlp_bias) {
      ATTEST_ASSIGN_OR_RETURN(weights.gate_up_bias, Vector(Name(names_->gate, layer, ".bias"), inner));
      ATTEST_ASSIGN_OR_RETURN(const auto up, Vector(Name(names_->up, layer, ".bias"), inner));
      weights.gate_up_bias.insert(weights.gate_up_bias.end(), up.begin(), up.end());
      ATTEST_ASSIGN_OR_RETURN(weights.down_bias, Vector(Name(names_->down, layer, ".bias"), hidden));
    }
    source_.Release();
    return weights;
  }

  [[nodiscard]] int64_t size_bytes() const { return size_bytes_; }

 private:
  Expected<PackedMatrix> LoadQkv(int layer) {
    const int64_t hidden = config_.hidden_size;
    const int64_t q_rows = int64_t{config_.q_heads} * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.kv_heads} * config_.head_dim;
    std::array<StoredMatrix, 3> parts;
    ATTEST_ASSIGN_OR_RETURN(parts[0], source_.HeadMatrix(Name(names_->q, layer, ".weight"), q_rows, hidden,
                                                         config_.q_heads, head_rows_));
    ATTEST_ASSIGN_OR_RETURN(parts[1], source_.HeadMatrix(Name(names_->k, layer, ".weight"), kv_rows, hidden,
                                                         config_.kv_heads, head_rows_));
    ATTEST_ASSIGN_OR_RETURN(parts[2], source_.Matrix(Name(names_->v, layer, ".weight"), kv_rows, hidden));
    return Pack(parts, Name(names_->q, layer, ".weight with its k and v"));
  }

  Expected<std::vector<float>> LoadQkvBias(int layer) {
    const int64_t q_rows = int64_t{config_.q_heads} * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.kv_heads} * config_.head_dim;
    ATTEST_ASSIGN_OR_RETURN(std::vector<float> bias, source_.HeadVector(Name(names_->q, layer, ".bias"),
                                                                        q_rows, config_.q_heads, head_rows_));
    ATTEST_ASSIGN_OR_RETURN(const auto k, source_.HeadVector(Name(names_->k, layer, ".bias"), kv_rows,
                                                             config_.kv_heads, head_rows_));
    ATTEST_ASSIGN_OR_RETURN(const auto v, source_.Vector(Name(names_->v, layer, ".bias"), kv_rows));
    bias.insert(bias.end(), k.begin(), k.end());
    bias.insert(bias.end(), v.begin(), v.end());
    size_bytes_ += static_cast<int64_t>(bias.size() * sizeof(float));
    return bias;
  }

  Expected<PackedMatrix> LoadGateUp(int layer) {
    const int64_t inner = config_.intermediate_size;
    std::array<StoredMatrix, 2> parts;
    ATTEST_ASSIGN_OR_RETURN(parts[0],
                            source_.Matrix(Name(names_->gate, layer, ".weight"), inner, config_.hidden_size));
    ATTEST_ASSIGN_OR_RETURN(parts[1],
                            source_.Matrix(Name(names_->up, layer, ".weight"), inner, config_.hidden_size));
    return Pack(parts, Name(names_->gate, layer, ".weight with its up"));
  }

  TensorSource& source_;
  const PackedMatrix::PackOptions& pack_;
  const ModelConfig& config_;
  ThreadTeam& team_;
  const TensorNames* names_;
  HeadRowOrder head_rows_;
  int64_t size_bytes_ = 0;
};

// A tied model whose file also holds the head: a copy of the embedding is redundant, a different matrix wins,
// as in transformers 5 (which then does not tie).
bool HeadDiffersFromEmbedding(const StoredMatrix& head, const StoredMatrix& embedding) {
  const auto bytes = static_cast<size_t>(head.rows * RowBytes(head.dtype, head.cols));
  return head.dtype != embedding.dtype || std::memcmp(head.data, embedding.data, bytes) != 0;
}

Status LoadEmbeddingAndHead(Loader& loader, TensorSource& source, ModelConfig& config,
                            DecoderWeights& weights) {
  const std::string embedding_name = std::string(loader.names().embedding) + ".weight";
  const std::string head_name = std::string(loader.names().head) + ".weight";
  ATTEST_ASSIGN_OR_RETURN(const StoredMatrix embedding,
                          source.Matrix(embedding_name, config.vocab_size, config.hidden_size));
  if (config.tied_head && source.Has(head_name)) {
    ATTEST_ASSIGN_OR_RETURN(const StoredMatrix head,
                            source.Matrix(head_name, config.vocab_size, config.hidden_size));
    if (HeadDiffersFromEmbedding(head, embedding)) {
      LogWarning(
          fmt::format("tie_word_embeddings is true but {} differs from {}: the head of the file is used",
                      head_name, embedding_name));
      config.tied_head = false;
    }
  }
  weights.tied = config.tied_head;
  auto packed = loader.Pack(std::span(&embedding, 1), embedding_name);
  if (!packed) return std::unexpected(std::move(packed).error());
  if (weights.tied) {
    weights.head = std::move(*packed);
    return {};
  }
  weights.untied_embedding = std::move(*packed);
  ATTEST_ASSIGN_OR_RETURN(weights.head, loader.PackOne(head_name, config.vocab_size, config.hidden_size));
  return {};
}

}  // namespace

Expected<DecoderWeights> LoadWeights(const Checkpoint& checkpoint, const LoadWeightsOptions& options,
                                     ModelConfig& config, ThreadTeam& team) {
  DecoderWeights weights;
  PackedMatrix::PackOptions pack_into_arena =
      options.pack;  // 120 small matrices on pages of their own would waste 130 MiB
  pack_into_arena.arena = &weights.arena;
  TensorSource source(checkpoint, options.plain_dtype, options.progress);
  Loader loader(checkpoint, pack_into_arena, source, config, team);

  if (checkpoint.format() == CheckpointFormat::kGguf && source.Has(kGgufRopeDivisors)) {
    ATTEST_ASSIGN_OR_RETURN(config.rope.freq_divisors,
                            source.Vector(kGgufRopeDivisors, config.rope.rotary_dim / 2));
    for (size_t i = 0; i < config.rope.freq_divisors.size(); ++i) {
      const float divisor = config.rope.freq_divisors[i];
      if (divisor > 0 && divisor <= 1e30f) continue;
      return Fail(ErrorCode::kCorruptFile,
                  fmt::format("{}[{}] is {}, expected a number above 0", kGgufRopeDivisors, i, divisor),
                  kGgufRopeDivisors);
    }
  }
  weights.inv_freq = RopeInverseFrequencies(config.rope);

  ATTEST_RETURN_IF_ERROR(LoadEmbeddingAndHead(loader, source, config, weights));
  ATTEST_ASSIGN_OR_RETURN(
      weights.final_norm,
      loader.Vector(std::string(loader.names().final_norm) + ".weight", config.hidden_size));
  weights.layers.reserve(static_cast<size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    ATTEST_ASSIGN_OR_RETURN(LayerWeights loaded, loader.LoadLayer(layer));
    weights.layers.push_back(std::move(loaded));
  }
  source.Release();
  // Old checkpoints carry the plain inverse frequencies as a buffer; they follow from the config.
  ATTEST_RETURN_IF_ERROR(source.CheckAllTaken({".rotary_emb.inv_freq"}));
  weights.size_bytes = loader.size_bytes();
  return weights;
}

}  // namespace attest
