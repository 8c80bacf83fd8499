#include "model/config_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "model/config_check.h"
#include "model/rope.h"

namespace attest {
namespace {

// Looks keys up under "llama." and remembers which were asked for.
class ArchReader {
 public:
  explicit ArchReader(const GgufFile& file) : file_(file) {}

  Expected<std::optional<int64_t>> Int(const char* key) { return file_.FindInt(Read(key)); }
  Expected<std::optional<bool>> Bool(const char* key) { return file_.FindBool(Read(key)); }
  Expected<std::optional<double>> Float(const char* key) { return file_.FindFloat(Read(key)); }
  Expected<std::optional<std::string_view>> String(const char* key) { return file_.FindString(Read(key)); }
  Expected<int64_t> RequiredInt(const char* key) { return file_.Int(Read(key)); }
  Expected<double> RequiredFloat(const char* key) { return file_.Float(Read(key)); }
  // Optional as another type, but whose value is of no interest here.
  void Ignore(const char* key) { Read(key); }

  // A number that may be stored once or once per layer; layers that differ are refused.
  Expected<std::optional<int64_t>> IntOrEqualInts(const char* key) {
    const std::string path = Read(key);
    const GgufEntry* entry = file_.Find(path);
    if (entry == nullptr || entry->type != GgufType::kArray) return file_.FindInt(path);
    ATTEST_ASSIGN_OR_RETURN(const auto values, file_.FindInts(path));
    if (!values || values->empty()) {
      return Fail(ErrorCode::kCorruptFile, fmt::format("{} is an empty array", path), path);
    }
    const auto other = std::ranges::find_if(*values, [&](int32_t v) { return v != values->front(); });
    if (other != values->end()) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("{} is {} in layer 0 and {} in layer {}; layers must be equal", path,
                              values->front(), *other, other - values->begin()),
                  path);
    }
    return values->front();
  }

  [[nodiscard]] static std::string Path(const char* key) { return std::string("llama.") + key; }

  [[nodiscard]] Status CheckUnread() const {
    for (const GgufEntry& entry : file_.metadata()) {
      if (!entry.key.starts_with("llama.") || read_.contains(entry.key)) continue;
      return Fail(
          ErrorCode::kUnsupported,
          fmt::format("metadata key {} ({}) is not understood; it may change what the layers compute, "
                      "so the model is not loaded",
                      entry.key, GgufTypeName(entry.type)),
          std::string(entry.key));
    }
    return {};
  }

 private:
  std::string Read(const char* key) {
    std::string path = Path(key);
    read_.insert(path);
    return path;
  }

  const GgufFile& file_;
  std::set<std::string, std::less<>> read_;
};

Status ReadYarn(ArchReader& reader, RopeConfig& rope) {
  ATTEST_ASSIGN_OR_RETURN(rope.original_max_positions,
                          reader.RequiredInt("rope.scaling.original_context_length"));
  ATTEST_ASSIGN_OR_RETURN(const auto beta_fast, reader.Float("rope.scaling.yarn_beta_fast"));
  ATTEST_ASSIGN_OR_RETURN(const auto beta_slow, reader.Float("rope.scaling.yarn_beta_slow"));
  ATTEST_ASSIGN_OR_RETURN(const auto yarn_factor, reader.Float("rope.scaling.yarn_attn_factor"));
  ATTEST_ASSIGN_OR_RETURN(const auto attention_factor, reader.Float("rope.scaling.attn_factor"));
  ATTEST_ASSIGN_OR_RETURN(const auto blend, reader.Float("rope.scaling.yarn_ext_factor"));
  if (blend && *blend != 1.0) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("llama.rope.scaling.yarn_ext_factor is {}; only 1 is supported", *blend),
                "llama.rope.scaling.yarn_ext_factor");
  }
  if (rope.original_max_positions < 1) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("llama.rope.scaling.original_context_length is {}, expected at least 1",
                            rope.original_max_positions),
                "llama.rope.scaling.original_context_length");
  }
  rope.beta_fast = beta_fast.value_or(rope.beta_fast);
  rope.beta_slow = beta_slow.value_or(rope.beta_slow);
  // In GGUF both numbers multiply the factor of the method instead of replacing it.
  rope.attention_factor =
      YarnAttentionFactor(rope.factor, 0, 0) * yarn_factor.value_or(1.0) * attention_factor.value_or(1.0);
  return {};
}

Status ReadRope(ArchReader& reader, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  ATTEST_ASSIGN_OR_RETURN(rope.theta, reader.RequiredFloat("rope.freq_base"));
  ATTEST_ASSIGN_OR_RETURN(const auto dimensions, reader.Int("rope.dimension_count"));
  if (dimensions && *dimensions != config.head_dim) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("llama.rope.dimension_count is {}; only the head_dim, {}, is supported",
                            *dimensions, config.head_dim),
                "llama.rope.dimension_count");
  }
  rope.rotary_dim = config.head_dim;

  ATTEST_ASSIGN_OR_RETURN(const auto type, reader.String("rope.scaling.type"));
  ATTEST_ASSIGN_OR_RETURN(const auto factor, reader.Float("rope.scaling.factor"));
  ATTEST_ASSIGN_OR_RETURN(const auto old_factor, reader.Float("rope.scale_linear"));  // before rope.scaling.*
  reader.Ignore(
      "rope.scaling.finetuned");  // the weights were tuned with the scaling on; nothing changes here
  if (type && *type != "none" && *type != "linear" && *type != "yarn") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("llama.rope.scaling.type is \"{}\"; supported: none, linear, yarn", *type),
                "llama.rope.scaling.type");
  }
  if (type && *type == "none") {
    reader.Ignore("rope.scaling.original_context_length");
    return {};
  }
  if (type && *type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    ATTEST_ASSIGN_OR_RETURN(rope.factor, reader.RequiredFloat("rope.scaling.factor"));
    return ReadYarn(reader, rope);
  }
  // A factor without a type is a linear one, as in files older than the type key.
  rope.factor = factor.value_or(old_factor.value_or(1.0));
  if (type && !factor && !old_factor) {
    return Fail(ErrorCode::kCorruptFile,
                "llama.rope.scaling.type is \"linear\" without llama.rope.scaling.factor",
                "llama.rope.scaling.factor");
  }
  if (rope.factor != 1.0) rope.scaling = RopeScaling::kLinear;
  reader.Ignore("rope.scaling.original_context_length");
  return {};
}

Status ReadShape(ArchReader& reader, ModelConfig& config) {
  ATTEST_ASSIGN_OR_RETURN(config.hidden_size, reader.RequiredInt("embedding_length"));
  ATTEST_ASSIGN_OR_RETURN(config.max_positions, reader.RequiredInt("context_length"));
  ATTEST_ASSIGN_OR_RETURN(config.rms_norm_eps, reader.RequiredFloat("attention.layer_norm_rms_epsilon"));
  ATTEST_ASSIGN_OR_RETURN(const int64_t layers, reader.RequiredInt("block_count"));
  ATTEST_ASSIGN_OR_RETURN(const auto inner, reader.IntOrEqualInts("feed_forward_length"));
  ATTEST_ASSIGN_OR_RETURN(const auto q_heads, reader.IntOrEqualInts("attention.head_count"));
  ATTEST_ASSIGN_OR_RETURN(const auto kv_heads, reader.IntOrEqualInts("attention.head_count_kv"));
  if (!inner) {
    return Fail(ErrorCode::kCorruptFile, "no metadata key llama.feed_forward_length",
                "llama.feed_forward_length");
  }
  if (!q_heads) {
    return Fail(ErrorCode::kCorruptFile, "no metadata key llama.attention.head_count",
                "llama.attention.head_count");
  }
  config.intermediate_size = *inner;
  // Absent head_count_kv means one K/V head per query head; K's shape is checked against it.
  ATTEST_ASSIGN_OR_RETURN(const auto key_length, reader.Int("attention.key_length"));
  ATTEST_ASSIGN_OR_RETURN(const auto value_length, reader.Int("attention.value_length"));
  constexpr int64_t kLimit = 1 << 20;
  const auto in_range = [](int64_t value) { return value >= 1 && value <= kLimit; };
  if (!in_range(layers) || !in_range(*q_heads) || !in_range(kv_heads.value_or(1)) ||
      !in_range(key_length.value_or(1))) {
    return Fail(
        ErrorCode::kCorruptFile,
        fmt::format("llama.block_count {}, head_count {}, head_count_kv {} and key_length {} must be 1 to "
                    "{}",
                    layers, *q_heads, kv_heads.value_or(*q_heads), key_length.value_or(0), kLimit),
        "llama.attention.head_count");
  }
  if (!key_length && config.hidden_size % *q_heads != 0) {
    return Fail(
        ErrorCode::kCorruptFile,
        fmt::format("llama.embedding_length {} is not a multiple of llama.attention.head_count {} and "
                    "there is no key_length",
                    config.hidden_size, *q_heads),
        "llama.attention.key_length");
  }
  const int64_t head_dim = key_length.value_or(config.hidden_size / *q_heads);
  if (value_length && *value_length != head_dim) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("llama.attention.value_length is {}; only the key length, {}, is supported",
                            *value_length, head_dim),
                "llama.attention.value_length");
  }
  config.num_layers = static_cast<int>(layers);
  config.q_heads = static_cast<int>(*q_heads);
  config.kv_heads = static_cast<int>(kv_heads.value_or(*q_heads));
  config.head_dim = static_cast<int>(head_dim);
  return {};
}

Status RefuseUnsupportedFeatures(ArchReader& reader) {
  for (const char* key : {"expert_count", "expert_used_count", "attention.sliding_window"}) {
    ATTEST_ASSIGN_OR_RETURN(const auto value, reader.Int(key));
    if (value && *value != 0) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("{} is {}; this decoder has no {}, only 0 is supported", ArchReader::Path(key),
                              *value, std::string_view(key).starts_with("expert") ? "experts" : "windows"),
                  ArchReader::Path(key));
    }
  }
  // Names the converter's source layout; the rows of Q and K are interleaved in every file of this kind.
  reader.Ignore("tensor_data_layout");
  return {};
}

}  // namespace

Expected<ModelConfig> ConfigFromGguf(const GgufFile& file, const GgufTensorFacts& facts) {
  ATTEST_ASSIGN_OR_RETURN(const std::string_view architecture, file.String("general.architecture"));
  if (architecture != "llama") {
    return std::unexpected(UnsupportedArchitecture("general.architecture", architecture));
  }
  ModelConfig config;
  config.architecture = "llama";
  ATTEST_ASSIGN_OR_RETURN(const auto name, file.FindString("general.name"));
  config.name = name ? std::string(*name) : facts.name;

  ArchReader reader(file);
  ATTEST_RETURN_IF_ERROR(RefuseUnsupportedFeatures(reader));
  ATTEST_RETURN_IF_ERROR(ReadShape(reader, config));
  ATTEST_RETURN_IF_ERROR(ReadRope(reader, config));
  ATTEST_ASSIGN_OR_RETURN(const auto vocab_size, reader.Int("vocab_size"));
  if (vocab_size && *vocab_size != facts.embedding_rows) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("llama.vocab_size is {} but token_embd.weight has {} rows", *vocab_size,
                            facts.embedding_rows),
                "llama.vocab_size");
  }
  config.vocab_size = facts.embedding_rows;
  config.tied_head = !facts.has_output;
  config.attention_bias = facts.attention_bias;
  config.mlp_bias = facts.mlp_bias;
  ATTEST_RETURN_IF_ERROR(reader.CheckUnread());

  // eos, and what chat models end a turn or a message with.
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ATTEST_ASSIGN_OR_RETURN(const auto id, file.FindInt(key));
    if (!id) continue;
    if (*id < 0 || *id >= config.vocab_size) {
      return Fail(ErrorCode::kCorruptFile,
                  fmt::format("{} is {}, expected 0 to {}", key, *id, config.vocab_size - 1), key);
    }
    const auto eos = static_cast<int32_t>(*id);
    if (std::ranges::find(config.eos_ids, eos) == config.eos_ids.end()) config.eos_ids.push_back(eos);
  }
  ATTEST_ASSIGN_OR_RETURN(const auto bos, file.FindInt("tokenizer.ggml.bos_token_id"));
  if (bos && *bos >= 0 && *bos < config.vocab_size) config.bos_id = static_cast<int32_t>(*bos);
  ATTEST_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

}  // namespace attest
