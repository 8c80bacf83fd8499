// The bytes of the KV cache: one buffer per layer on 2 MiB pages, K pages of all blocks and then V pages,
// laid out head by head (tensor/paged_kv.h draws a page). Who owns which block is cache/block_pool.h's
// business.
//
// Owned by the runner; only AppendKv writes into it. Buffers become resident as blocks are first written.
#pragma once

#include <cstdint>
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
  DType dtype = DType::kBF16;  // bf16 or f32
  int block_size = 16;         // tokens: 8, 16, 32, 64 or 128
};

// Errors name the field, its value and the allowed ones.
[[nodiscard]] Status CheckKvShape(const KvShape& shape);
// Bytes of one block over all layers. REQUIRES: CheckKvShape holds.
[[nodiscard]] int64_t KvBytesPerBlock(const KvShape& shape);

class KvStorage {
 public:
  // kResourceExhausted names the bytes the system refused.
  static Expected<KvStorage> Allocate(const KvShape& shape, int64_t num_blocks);

  // One per layer, in order. Valid while the storage lives; moving it keeps them valid.
  [[nodiscard]] const std::vector<PagedKv>& layers() const { return layers_; }
  [[nodiscard]] int64_t size_bytes() const;

 private:
  KvStorage() = default;
  std::vector<Buffer> buffers_;
  std::vector<PagedKv> layers_;
};

}  // namespace attest
