// A Hugging Face folder read into memory, to be changed by a test and written again: as a folder, or as a
// GGUF file of architecture llama (its own conversion, so that it can disagree with the loader).
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"

namespace attest {

inline std::filesystem::path ModelDataFolder() {
  return std::filesystem::path(ATTEST_SOURCE_DIR) / "tests" / "data" / "model";
}

struct CopiedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string data;
};

struct CheckpointCopy {
  nlohmann::json config;
  std::map<std::string, CopiedTensor> tensors;

  static CheckpointCopy Read(const std::filesystem::path& folder) {
    CheckpointCopy copy;
    std::ifstream config(folder / "config.json");
    copy.config = nlohmann::json::parse(config);
    const auto checkpoint = Checkpoint::Open(folder).value();
    for (const TensorInfo& tensor : checkpoint->tensors()) {
      copy.tensors[tensor.name] = {
          tensor.dtype, tensor.shape,
          std::string(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.size_bytes))};
    }
    return copy;
  }

  void WriteFolder(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config.dump(1);
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors) writer.Tensor(name, tensor.dtype, tensor.shape, tensor.data);
    writer.Write(folder / "model.safetensors");
  }

  void Rename(const std::string& from, const std::string& to) {
    tensors[to] = std::move(tensors.at(from));
    tensors.erase(from);
  }

  // The metadata and tensors that llama.cpp's converter would write for config and tensors.
  [[nodiscard]] GgufWriter ToGguf() const {
    GgufWriter writer;
    const auto number = [&](const char* key) { return config.at(key).get<uint32_t>(); };
    const auto& rope = config.at("rope_parameters");
    writer.String("general.architecture", "llama").String("general.name", "a test");
    writer.U32("llama.block_count", number("num_hidden_layers"));
    writer.U32("llama.context_length", number("max_position_embeddings"));
    writer.U32("llama.embedding_length", number("hidden_size"));
    writer.U32("llama.feed_forward_length", number("intermediate_size"));
    writer.U32("llama.attention.head_count", number("num_attention_heads"));
    writer.U32("llama.attention.head_count_kv", number("num_key_value_heads"));
    writer.U32("llama.attention.key_length", number("head_dim"));
    writer.U32("llama.attention.value_length", number("head_dim"));
    writer.U32("llama.rope.dimension_count", number("head_dim"));
    writer.U32("llama.vocab_size", number("vocab_size"));
    writer.F32("llama.attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").get<float>());
    writer.F32("llama.rope.freq_base", rope.at("rope_theta").get<float>());
    writer.U32("tokenizer.ggml.bos_token_id", 1).U32("tokenizer.ggml.eos_token_id", 2);
    if (rope.at("rope_type") == "yarn") {
      writer.String("llama.rope.scaling.type", "yarn");
      writer.F32("llama.rope.scaling.factor", rope.at("factor").get<float>());
      writer.U32("llama.rope.scaling.original_context_length",
                 rope.at("original_max_position_embeddings").get<uint32_t>());
    }
    if (rope.at("rope_type") == "llama3") {
      const auto divisors = Llama3Divisors();
      writer.TensorF32("rope_freqs.weight", {static_cast<int64_t>(divisors.size())}, divisors);
    }
    for (const auto& [name, tensor] : tensors) {
      CopiedTensor moved = tensor;
      if (name.find("q_proj") != std::string::npos)
        moved = Interleaved(tensor, config.at("num_attention_heads"));
      if (name.find("k_proj") != std::string::npos)
        moved = Interleaved(tensor, config.at("num_key_value_heads"));
      // GGUF keeps vectors in f32.
      if (moved.shape.size() == 1) moved = AsF32(moved);
      writer.Tensor(GgufName(name), moved.dtype, moved.shape, moved.data);
    }
    return writer;
  }

  static CopiedTensor AsF32(const CopiedTensor& tensor) {
    CopiedTensor wide{DType::kF32, tensor.shape, ""};
    if (tensor.dtype == DType::kF32) return tensor;
    for (size_t at = 0; at < tensor.data.size(); at += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, tensor.data.data() + at, 2);
      const float value = tensor.dtype == DType::kBF16 ? ToFloat(bf16{bits}) : ToFloat(f16{bits});
      wide.data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return wide;
  }

 private:
  // Per head: rows 0, d/2, 1, d/2 + 1, ... of the Hugging Face order.
  static CopiedTensor Interleaved(const CopiedTensor& tensor, int64_t heads) {
    CopiedTensor moved = tensor;
    const int64_t head_dim = tensor.shape[0] / heads;
    const auto row_bytes = tensor.data.size() / static_cast<size_t>(tensor.shape[0]);
    moved.data.clear();
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
        for (const int64_t row : {pair, pair + head_dim / 2}) {
          moved.data += tensor.data.substr(static_cast<size_t>(head * head_dim + row) * row_bytes, row_bytes);
        }
      }
    }
    return moved;
  }

  static std::string GgufName(std::string name) {
    const std::pair<const char*, const char*> replacements[] = {{"model.embed_tokens", "token_embd"},
                                                                {"model.norm", "output_norm"},
                                                                {"lm_head", "output"},
                                                                {"model.layers", "blk"},
                                                                {"input_layernorm", "attn_norm"},
                                                                {"post_attention_layernorm", "ffn_norm"},
                                                                {"self_attn.q_proj", "attn_q"},
                                                                {"self_attn.k_proj", "attn_k"},
                                                                {"self_attn.v_proj", "attn_v"},
                                                                {"self_attn.o_proj", "attn_output"},
                                                                {"mlp.gate_proj", "ffn_gate"},
                                                                {"mlp.up_proj", "ffn_up"},
                                                                {"mlp.down_proj", "ffn_down"}};
    for (const auto& [from, to] : replacements) {
      if (const auto at = name.find(from); at != std::string::npos) name.replace(at, std::strlen(from), to);
    }
    return name;
  }

  [[nodiscard]] std::vector<float> Llama3Divisors() const {
    const auto& rope = config.at("rope_parameters");
    const double theta = rope.at("rope_theta"), factor = rope.at("factor"), low = rope.at("low_freq_factor"),
                 high = rope.at("high_freq_factor"), original = rope.at("original_max_position_embeddings");
    const int dim = config.at("head_dim");
    std::vector<float> divisors;
    for (int i = 0; i < dim; i += 2) {
      const double wavelength = 2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / dim);
      double divisor = 1;
      if (wavelength > original / low) {
        divisor = factor;
      } else if (wavelength >= original / high) {
        const double smooth = (original / wavelength - low) / (high - low);
        divisor = 1 / ((1 - smooth) / factor + smooth);
      }
      divisors.push_back(static_cast<float>(divisor));
    }
    return divisors;
  }
};

}  // namespace attest
