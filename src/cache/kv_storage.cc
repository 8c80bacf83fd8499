#include "cache/kv_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace attest {
namespace {

std::string DTypeNames() {
  std::string names;
  for (const KvDTypeName& entry : kKvDTypes) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

Status CheckScales(const char* field, const std::vector<float>& scales, const KvShape& shape) {
  if (scales.empty()) return {};
  const auto wanted = static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.kv_heads);
  if (scales.size() != wanted) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has {} entries, expected {} (layers x KV heads)", field, scales.size(), wanted),
        field);
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] > 0 && std::isfinite(scales[i])) continue;
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}[{}] is {}, expected a number > 0", field, i, scales[i]), field);
  }
  return {};
}

}  // namespace

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
  if (!shape.buffers.empty() && (shape.buffers.size() != static_cast<size_t>(shape.num_layers) ||
                                 *std::ranges::min_element(shape.buffers) < 0)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("buffers has {} entries, expected one from 0 on for each of {} layers",
                            shape.buffers.size(), shape.num_layers),
                "buffers");
  }
  bool known_size = false;
  for (const int size : {8, 16, 32, 64, 128}) known_size |= shape.block_size == size;
  if (!known_size) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("block_size {} is not one of 8, 16, 32, 64, 128", shape.block_size),
                "block_size");
  }
  if (std::ranges::find(kKvDTypes, shape.dtype, &KvDTypeName::dtype) == std::end(kKvDTypes)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("kv_cache_dtype {} is not one of {}", DTypeName(shape.dtype), DTypeNames()),
                "kv_cache_dtype");
  }
  return {};
}

Expected<DType> KvDTypeOf(std::string_view name) {
  const auto found = std::ranges::find(kKvDTypes, name, &KvDTypeName::name);
  if (found != std::end(kKvDTypes)) return found->dtype;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("kv_cache_dtype {} is not one of auto, {}", name, DTypeNames()), "kv_cache_dtype");
}

int64_t KvBytesPerBlock(const KvShape& shape) {
  return shape.num_buffers() * PagedKvLayerBytes(shape.dtype, 1, shape.block_size, shape.kv_heads,
                                                 shape.head_dim, shape.v_head_dim);
}

Expected<KvStorage> KvStorage::Allocate(const KvShape& shape, int64_t num_blocks, KvScales scales) {
  ATTEST_RETURN_IF_ERROR(CheckKvShape(shape));
  ATTEST_RETURN_IF_ERROR(CheckScales("k_scales", scales.k, shape));
  ATTEST_RETURN_IF_ERROR(CheckScales("v_scales", scales.v, shape));
  // Block ids are 32 bits, and bytes must fit 63.
  const int64_t max_blocks = std::min<int64_t>(std::numeric_limits<int32_t>::max(),
                                               std::numeric_limits<int64_t>::max() / KvBytesPerBlock(shape));
  if (num_blocks < 2 || num_blocks > max_blocks) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("num_blocks {} is out of range: 2 to {}", num_blocks, max_blocks), "num_blocks");
  }
  const int64_t k_head = int64_t{shape.block_size} * shape.head_dim;
  const int64_t v_head = int64_t{shape.block_size} * shape.v_head_dim;
  const int64_t k_bytes = RowBytes(shape.dtype, num_blocks * shape.kv_heads * k_head);
  const int64_t layer_bytes = PagedKvLayerBytes(shape.dtype, num_blocks, shape.block_size, shape.kv_heads,
                                                shape.head_dim, shape.v_head_dim);
  KvStorage storage;
  storage.scales_ = std::move(scales);
  const auto scales_of = [&](const std::vector<float>& all, int layer) -> const float* {
    return all.empty() ? nullptr : all.data() + int64_t{layer} * shape.kv_heads;
  };
  for (int i = 0; i < shape.num_buffers(); ++i) {
    ATTEST_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(layer_bytes, "KV cache of one layer"));
    storage.buffers_.push_back(std::move(buffer));
  }
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const int own = shape.buffers.empty() ? layer : shape.buffers[static_cast<size_t>(layer)];
    const Buffer& buffer = storage.buffers_[static_cast<size_t>(own)];
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
        .k_scales = scales_of(storage.scales_.k, layer),
        .v_scales = scales_of(storage.scales_.v, layer),
    });
  }
  return storage;
}

int64_t KvStorage::size_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.size_bytes();
  return bytes;
}

}  // namespace attest
