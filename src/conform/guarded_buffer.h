// A buffer of exactly n elements between two guards. The guards hold 0xff bytes, a NaN in every float format,
// so a value read past the end shows in the result; under the address sanitizer the read itself is reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define ATTEST_CONFORM_ASAN 1
#elif defined(__has_feature)  // clang
#define ATTEST_CONFORM_ASAN __has_feature(address_sanitizer)
#else
#define ATTEST_CONFORM_ASAN 0
#endif
#if ATTEST_CONFORM_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace attest::conform {

class GuardedBytes {
 public:
  GuardedBytes() : GuardedBytes(0) {}
  explicit GuardedBytes(int64_t size) : size_(static_cast<size_t>(size)) {
    memory_.reset(new (std::align_val_t{64}) std::byte[size_ + 2 * kGuard]);
    std::memset(memory_.get(), 0xff, size_ + 2 * kGuard);
    ASAN_POISON_MEMORY_REGION(memory_.get(), kGuard);
    ASAN_POISON_MEMORY_REGION(data() + size_, kGuard);
  }
  GuardedBytes(GuardedBytes&&) = default;
  GuardedBytes& operator=(GuardedBytes&&) = default;

  [[nodiscard]] std::byte* data() const { return memory_.get() + kGuard; }
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(size_); }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data());
  }
  // Nobody wrote outside the buffer.
  [[nodiscard]] bool GuardsIntact() const {
    ASAN_UNPOISON_MEMORY_REGION(memory_.get(), kGuard);
    ASAN_UNPOISON_MEMORY_REGION(data() + size_, kGuard);
    bool intact = true;
    for (size_t i = 0; i < kGuard; ++i) {
      intact = intact && memory_[i] == std::byte{0xff} && memory_[kGuard + size_ + i] == std::byte{0xff};
    }
    ASAN_POISON_MEMORY_REGION(memory_.get(), kGuard);
    ASAN_POISON_MEMORY_REGION(data() + size_, kGuard);
    return intact;
  }

 private:
  static constexpr size_t kGuard = 256;
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  size_t size_ = 0;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace attest::conform
