// The bytes of the KV cache: one buffer per layer (or per layer of a block, where layers of several KV groups
// share it, cache/kv_groups.h) on 2 MiB pages, K pages of all blocks and then V pages, laid out head by head
// (tensor/paged_kv.h draws a page). Who owns which block is cache/block_pool.h's business.
//
// Owned by the runner; only AppendKv writes into it. Buffers become resident as blocks are first written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/paged_kv.h"

namespace attest {

// What one block of the model costs; shared by sizing and allocation.
struct KvShape {
  int num_layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  DType dtype = DType::kBF16;  // one of kKvDTypes
  int block_size = 16;         // tokens: 8, 16, 32, 64 or 128
  // [num_layers] the buffer that holds a layer: layers of different KV groups share one, in different blocks.
  // Empty: each layer has its own.
  std::vector<int> buffers = {};
  [[nodiscard]] int num_buffers() const {
    return buffers.empty() ? num_layers : *std::ranges::max_element(buffers) + 1;
  }
};

// What --kv-cache-dtype takes besides "auto"; fp8 is fp8_e4m3.
struct KvDTypeName {
  std::string_view name;
  DType dtype;
};
inline constexpr KvDTypeName kKvDTypes[] = {
    {"bf16", DType::kBF16},   {"f16", DType::kF16},         {"f32", DType::kF32},
    {"fp8", DType::kF8E4M3},  {"fp8_e4m3", DType::kF8E4M3}, {"fp8_e5m2", DType::kF8E5M2},
    {"int8", DType::kI8},     {"bfloat16", DType::kBF16},   {"float16", DType::kF16},
    {"float32", DType::kF32},
};
// The type of a name above; kInvalidArgument lists them.
[[nodiscard]] Expected<DType> KvDTypeOf(std::string_view name);

// What a stored value is multiplied with, [num_layers, kv_heads] each; empty: 1. int8 needs them.
struct KvScales {
  std::vector<float> k, v;
};

// Errors name the field, its value and the allowed ones.
[[nodiscard]] Status CheckKvShape(const KvShape& shape);
// Bytes of one block over all buffers. REQUIRES: CheckKvShape holds.
[[nodiscard]] int64_t KvBytesPerBlock(const KvShape& shape);

class KvStorage {
 public:
  // kResourceExhausted names the bytes the system refused; kInvalidArgument, scales that are not one positive
  // number for each layer and KV head.
  static Expected<KvStorage> Allocate(const KvShape& shape, int64_t num_blocks, KvScales scales = {});

  // One per layer, in order. Valid while the storage lives; moving it keeps them valid.
  [[nodiscard]] const std::vector<PagedKv>& layers() const { return layers_; }
  [[nodiscard]] int64_t size_bytes() const;

 private:
  KvStorage() = default;
  std::vector<Buffer> buffers_;
  std::vector<PagedKv> layers_;
  KvScales scales_;  // layers_ point into it
};

}  // namespace attest
