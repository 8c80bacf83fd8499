// Owns bytes on 2 MiB pages (device/memory.h). Movable, not copyable. Zero-filled when made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace attest {

class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // kResourceExhausted names `what` and the size when the system refuses.
  static Expected<Buffer> Allocate(int64_t size_bytes, const char* what);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] int64_t size_bytes() const { return static_cast<int64_t>(size_bytes_); }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace attest
