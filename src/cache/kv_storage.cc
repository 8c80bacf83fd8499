#include "cache/kv_storage.h"

#include <fmt/format.h>

#include <array>
#include <limits>

namespace attest {

Status CheckKvShape(const KvShape& shape) {
  struct Field {
    const char* name;
    int value;
  };
  for (const Field field : {Field{"num_layers", shape.num_layers}, Field{"kv_heads", shape.kv_heads},
                            Field{"head_dim", shape.head_dim}, Field{"v_head_dim", shape.v_head_dim}}) {
    if (field.value < 1) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} {} is out of range: at least 1", field.name, field.value), field.name);
    }
  }
  bool known_size = false;
  for (const int size : {8, 16, 32, 64, 128}) known_size |= shape.block_size == size;
  if (!known_size) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("block_size {} is not one of 8, 16, 32, 64, 128", shape.block_size),
                "block_size");
  }
  if (shape.dtype != DType::kBF16 && shape.dtype != DType::kF32) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("kv_cache_dtype {} is not one of bf16, f32", DTypeName(shape.dtype)),
                "kv_cache_dtype");
  }
  return {};
}

int64_t KvBytesPerBlock(const KvShape& shape) {
  return shape.num_layers * PagedKvLayerBytes(shape.dtype, 1, shape.block_size, shape.kv_heads,
                                              shape.head_dim, shape.v_head_dim);
}

Expected<KvStorage> KvStorage::Allocate(const KvShape& shape, int64_t num_blocks) {
  ATTEST_RETURN_IF_ERROR(CheckKvShape(shape));
  // Block ids are 32 bits, and bytes must fit 63.
  if (num_blocks < 2 || num_blocks > std::numeric_limits<int32_t>::max() ||
      num_blocks > std::numeric_limits<int64_t>::max() / KvBytesPerBlock(shape)) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("num_blocks {} is out of range", num_blocks),
                "num_blocks");
  }
  const int64_t k_head = int64_t{shape.block_size} * shape.head_dim;
  const int64_t v_head = int64_t{shape.block_size} * shape.v_head_dim;
  const int64_t k_bytes = RowBytes(shape.dtype, num_blocks * shape.kv_heads * k_head);
  const int64_t layer_bytes = PagedKvLayerBytes(shape.dtype, num_blocks, shape.block_size, shape.kv_heads,
                                                shape.head_dim, shape.v_head_dim);
  KvStorage storage;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    ATTEST_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(layer_bytes, "KV cache of one layer"));
    storage.layers_.push_back({
        .k = {.data = buffer.data(),
              .block_stride = shape.kv_heads * k_head,
              .head_stride = k_head,
              .slot_stride = shape.head_dim},
        .v = {.data = buffer.data() + k_bytes,
              .block_stride = shape.kv_heads * v_head,
              .head_stride = v_head,
              .slot_stride = shape.v_head_dim},
        .dtype = shape.dtype,
        .num_blocks = num_blocks,
        .block_size = shape.block_size,
        .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim,
        .v_head_dim = shape.v_head_dim,
    });
    storage.buffers_.push_back(std::move(buffer));
  }
  return storage;
}

int64_t KvStorage::size_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.size_bytes();
  return bytes;
}

}  // namespace attest
