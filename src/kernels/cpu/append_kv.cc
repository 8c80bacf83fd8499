#include "kernels/cpu/append_kv.h"

#include <cstring>

#include "base/check.h"

namespace attest {
namespace {

void StoreRow(const float* from, int n, float* to) { std::memcpy(to, from, static_cast<size_t>(n) * 4); }
void StoreRow(const float* from, int n, bf16* to) {
  for (int i = 0; i < n; ++i) to[i] = ToBf16(from[i]);
}
void StoreRow(const float* from, int n, f16* to) {
  for (int i = 0; i < n; ++i) to[i] = ToF16(from[i]);
}

template <class T>
void AppendRows(View<const float, 3> rows, std::span<const int64_t> slots, const KvPages& pages,
                int block_size, int64_t num_blocks, int64_t row_begin, int64_t row_end) {
  const auto dim = static_cast<int>(rows.shape[2]);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = slots[static_cast<size_t>(row)];
    if (slot < 0) continue;
    const int64_t block = slot / block_size;
    const int64_t offset = slot % block_size;
    ATTEST_CHECK_LT(block, num_blocks);  // a slot past the pool would overwrite another layer's pages
    T* to = static_cast<T*>(pages.data) + block * pages.block_stride + offset * pages.slot_stride;
    for (int64_t head = 0; head < rows.shape[1]; ++head) {
      StoreRow(rows.At(row, head), dim, to + head * pages.head_stride);
    }
  }
}

template <class T>
void Append(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots, const PagedKv& kv,
            int64_t row_begin, int64_t row_end) {
  AppendRows<T>(k, slots, kv.k, kv.block_size, kv.num_blocks, row_begin, row_end);
  AppendRows<T>(v, slots, kv.v, kv.block_size, kv.num_blocks, row_begin, row_end);
}

}  // namespace

bool CanAppendKv(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void AppendKvRows(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots,
                  const PagedKv& kv, int64_t row_begin, int64_t row_end) {
  switch (kv.dtype) {
    case DType::kF32:
      return Append<float>(k, v, slots, kv, row_begin, row_end);
    case DType::kBF16:
      return Append<bf16>(k, v, slots, kv, row_begin, row_end);
    case DType::kF16:
      return Append<f16>(k, v, slots, kv, row_begin, row_end);
    default:
      ATTEST_CHECK(CanAppendKv(kv.dtype));
  }
}

}  // namespace attest
