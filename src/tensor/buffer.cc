#include "tensor/buffer.h"

#include <fmt/format.h>

#include "device/memory.h"

namespace attest {

Buffer::~Buffer() { FreePages(data_, size_bytes_); }

Expected<Buffer> Buffer::Allocate(int64_t size_bytes, const char* what) {
  if (size_bytes < 0) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: size {} bytes is negative", what, size_bytes));
  }
  Buffer buffer;
  buffer.size_bytes_ = static_cast<size_t>(size_bytes);
  buffer.data_ = static_cast<std::byte*>(AllocatePages(buffer.size_bytes_));
  if (buffer.data_ == nullptr) {
    buffer.size_bytes_ = 0;
    return Fail(ErrorCode::kResourceExhausted, fmt::format("{}: cannot allocate {} bytes", what, size_bytes));
  }
  return buffer;
}

}  // namespace attest
