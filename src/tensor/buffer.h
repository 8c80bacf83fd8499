// Owns bytes on 2 MiB pages (device/memory.h). Movable, not copyable. Zero-filled when made. A BufferArena
// lets many small buffers share pages: alone, each would take at least one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"

namespace attest {

class BufferArena;

class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)),
        owned_(std::exchange(other.owned_, true)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // kResourceExhausted names `what` and the size when the system refuses. With an arena the buffer lies in it
  // (64-byte aligned) and must not outlive it.
  static Expected<Buffer> Allocate(int64_t size_bytes, const char* what, BufferArena* arena = nullptr);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] int64_t size_bytes() const { return static_cast<int64_t>(size_bytes_); }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  friend class BufferArena;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool owned_ = true;  // false: the arena's
};

// Hands out parts of large chunks in order; nothing is given back before the arena goes. One thread.
class BufferArena {
 public:
  [[nodiscard]] Expected<Buffer> Allocate(int64_t size_bytes, const char* what);

 private:
  std::vector<Buffer> chunks_;
  int64_t used_bytes_ = 0;  // of the last chunk
};

}  // namespace attest
