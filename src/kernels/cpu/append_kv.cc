#include "kernels/cpu/append_kv.h"

#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "tensor/convert.h"
#include "tensor/float8.h"

namespace attest {
namespace {

struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};

void Convert(float from, float* to) { *to = from; }
void Convert(float from, bf16* to) { *to = ToBf16(from); }
void Convert(float from, f16* to) { *to = ToF16(from); }
void Convert(float from, E4M3* to) { to->bits = ToF8E4M3(from); }
void Convert(float from, E5M2* to) { to->bits = ToF8E5M2(from); }
void Convert(float from, int8_t* to) { *to = ToI8(from); }

// Returns the NaN that T cannot hold.
template <class T>
int64_t StoreRow(const float* from, int n, T* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return 0;
  }
  int64_t lost = 0;
  for (int i = 0; i < n; ++i) {
    Convert(from[i], to + i);
    if constexpr (std::is_same_v<T, int8_t>) lost += std::isnan(from[i]) ? 1 : 0;
  }
  return lost;
}

// The row's values divided by the scale. `storage` grows only where they have to be changed: a model's own
// step appends plain f32 and allocates nothing.
const float* Values(const std::byte* row, DType dtype, int n, float scale, std::vector<float>& storage) {
  if (dtype == DType::kF32 && scale == 1.0f) return reinterpret_cast<const float*>(row);
  storage.resize(static_cast<size_t>(n));
  float* const buffer = storage.data();
  RowToFloats(row, dtype, n, buffer);
  if (scale != 1.0f) {
    for (int i = 0; i < n; ++i) buffer[i] /= scale;
  }
  return buffer;
}

template <class T>
int64_t AppendRows(const KvRows& rows, bool is_value, const PagedKv& kv, int64_t row_begin, int64_t row_end) {
  const View<const std::byte, 3>& from = is_value ? rows.v : rows.k;
  const KvDescale& scale = is_value ? rows.v_scale : rows.k_scale;
  const KvPages& pages = is_value ? kv.v : kv.k;
  const auto dim = static_cast<int>(from.shape[2]);
  const int64_t element_bytes = BlockBytes(rows.dtype);
  std::vector<float> storage;
  int64_t lost = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = rows.slots[static_cast<size_t>(row)];
    if (slot < 0) continue;
    const int64_t block = slot / kv.block_size;
    const int64_t offset = slot % kv.block_size;
    ATTEST_CHECK_LT(block, kv.num_blocks);  // a slot past the pool would overwrite another layer's pages
    const int seq = rows.seqs.empty() ? 0 : rows.seqs[static_cast<size_t>(row)];
    T* to = static_cast<T*>(pages.data) + block * pages.block_stride + offset * pages.slot_stride;
    for (int64_t head = 0; head < from.shape[1]; ++head) {
      const std::byte* data = from.data + (row * from.stride[0] + head * from.stride[1]) * element_bytes;
      const float* values = Values(data, rows.dtype, dim, scale.at(seq, static_cast<int>(head)), storage);
      lost += StoreRow(values, dim, to + head * pages.head_stride);
    }
  }
  return lost;
}

template <class T>
int64_t Append(const KvRows& rows, const PagedKv& kv, int64_t row_begin, int64_t row_end) {
  return AppendRows<T>(rows, false, kv, row_begin, row_end) +
         AppendRows<T>(rows, true, kv, row_begin, row_end);
}

View<const std::byte, 3> Bytes(const View<const float, 3>& view) {
  return {.data = reinterpret_cast<const std::byte*>(view.data), .shape = view.shape, .stride = view.stride};
}

void CopyPage(const KvPages& pages, const BlockCopy& copy, const PagedKv& kv, int dim) {
  const int64_t element_bytes = BlockBytes(kv.dtype);
  auto* base = static_cast<std::byte*>(pages.data);
  const std::byte* from = base + copy.from * pages.block_stride * element_bytes;
  std::byte* to = base + copy.to * pages.block_stride * element_bytes;
  const auto row_bytes = static_cast<size_t>(dim * element_bytes);
  for (int64_t head = 0; head < kv.kv_heads; ++head) {
    for (int64_t slot = 0; slot < kv.block_size; ++slot) {
      const int64_t at = (head * pages.head_stride + slot * pages.slot_stride) * element_bytes;
      std::memcpy(to + at, from + at, row_bytes);
    }
  }
}

}  // namespace

int64_t AppendKvRows(const KvRows& rows, const PagedKv& kv, int64_t row_begin, int64_t row_end) {
  switch (kv.dtype) {
    case DType::kF32:
      return Append<float>(rows, kv, row_begin, row_end);
    case DType::kBF16:
      return Append<bf16>(rows, kv, row_begin, row_end);
    case DType::kF16:
      return Append<f16>(rows, kv, row_begin, row_end);
    case DType::kF8E4M3:
      return Append<E4M3>(rows, kv, row_begin, row_end);
    case DType::kF8E5M2:
      return Append<E5M2>(rows, kv, row_begin, row_end);
    case DType::kI8:
      return Append<int8_t>(rows, kv, row_begin, row_end);
    default:
      ATTEST_CHECK(!IsQuantised(kv.dtype));  // ValidateSpec refuses the others
  }
  return 0;
}

int64_t AppendKvRows(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots,
                     const PagedKv& kv, int64_t row_begin, int64_t row_end) {
  return AppendKvRows({.k = Bytes(k),
                       .v = Bytes(v),
                       .dtype = DType::kF32,
                       .slots = slots,
                       .k_scale = {.data = kv.k_scales, .seq_stride = 0, .head_stride = 1},
                       .v_scale = {.data = kv.v_scales, .seq_stride = 0, .head_stride = 1},
                       .seqs = {}},
                      kv, row_begin, row_end);
}

void CopyKvBlocks(std::span<const BlockCopy> copies, const PagedKv& kv) {
  for (const BlockCopy& copy : copies) {
    ATTEST_CHECK(copy.from >= 0 && copy.from < kv.num_blocks);
    ATTEST_CHECK(copy.to >= 0 && copy.to < kv.num_blocks);
    if (copy.from == copy.to) continue;
    CopyPage(kv.k, copy, kv, kv.head_dim);
    CopyPage(kv.v, copy, kv, kv.v_head_dim);
  }
}

}  // namespace attest
