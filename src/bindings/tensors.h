// Checks of the tensors of the C interface: every property by name and value, without reading an element.
#pragma once

#include <attest/attention_c.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/reasons.h"
#include "tensor/dtype.h"
#include "tensor/paged_kv.h"
#include "tensor/view.h"

namespace attest::bindings {

[[nodiscard]] std::optional<DType> DTypeOf(int32_t dtype);

// One axis: exactly `size`, or at least it.
struct Extent {
  int64_t size = 0;
  bool at_least = false;
};

struct TensorRule {
  const char* name = "";
  std::vector<DType> dtypes;  // accepted
  std::vector<Extent> shape;  // one per axis
  bool dense_last = true;     // the innermost stride is 1
  bool is_output = false;     // no element twice
};
// Adds the reasons and says whether there was none.
bool CheckTensor(const attest_tensor& tensor, const TensorRule& rule, Reasons& reasons);
// A tensor that must be there iff `wanted`.
bool CheckOptional(const attest_tensor& tensor, bool wanted, const char* flag, const TensorRule& rule,
                   Reasons& reasons);

// A piece of memory of a call, for the overlap check. Made from a tensor that was accepted.
struct Region {
  const char* name = "";
  uintptr_t begin = 0, end = 0;  // bytes; equal: empty
  int64_t row_bytes = 0;         // of one step of axis 0; 0: not known
  int64_t row_span = 0;          // bytes between the first and past the last element of one such step
};
[[nodiscard]] Region RegionOf(const char* name, const attest_tensor& tensor);
// No output shares a byte with another region. Rows that interleave at one stride (a fused buffer) do not.
void CheckOverlap(std::span<const Region> outputs, std::span<const Region> inputs, Reasons& reasons);

template <class T, int kRank>
[[nodiscard]] View<T, kRank> ViewOf(const attest_tensor& tensor) {
  View<T, kRank> view{.data = static_cast<T*>(tensor.data), .shape = {}, .stride = {}};
  for (int i = 0; i < kRank; ++i) {
    view.shape[static_cast<size_t>(i)] = tensor.shape[i];
    view.stride[static_cast<size_t>(i)] = tensor.stride[i];
  }
  return view;
}
// REQUIRES: k and v were accepted as [num_blocks, kv_heads, block_size, dim].
[[nodiscard]] PagedKv PagesOf(const attest_tensor& k, const attest_tensor& v);

}  // namespace attest::bindings
