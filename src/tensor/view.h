// A View is a pointer with a shape and strides: copied freely, owns nothing, never stored past the call.
// Strides are in elements. The last stride may differ from 1; kernels that need 1 say so in their contract.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"

namespace attest {

template <class T, int kRank>
struct View {
  T* data = nullptr;
  std::array<int64_t, kRank> shape{};
  std::array<int64_t, kRank> stride{};

  // Dense, row-major.
  static View Dense(T* data, const std::array<int64_t, kRank>& shape) {
    View view{.data = data, .shape = shape, .stride = {}};
    int64_t step = 1;
    for (int i = kRank - 1; i >= 0; --i) {
      view.stride[static_cast<size_t>(i)] = step;
      step *= shape[static_cast<size_t>(i)];
    }
    return view;
  }

  [[nodiscard]] int64_t size() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }

  // The address of an element; 64-bit arithmetic throughout. Trailing indices may be left out (then 0).
  template <class... Index>
  [[nodiscard]] T* At(Index... index) const {
    static_assert(sizeof...(Index) <= kRank);
    int64_t offset = 0;
    size_t axis = 0;
    ((offset += static_cast<int64_t>(index) * stride[axis++]), ...);
    return data + offset;
  }

  operator View<const T, kRank>() const  // NOLINT(google-explicit-constructor)
    requires(!std::is_const_v<T>)
  {
    return {.data = data, .shape = shape, .stride = stride};
  }
};

}  // namespace attest
