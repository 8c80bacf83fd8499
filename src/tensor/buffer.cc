#include "tensor/buffer.h"

#include <fmt/format.h>

#include "device/memory.h"

namespace attest {

namespace {

constexpr int64_t kChunkBytes = int64_t{64}
                                << 20;  // pages of a chunk appear on first touch: a large one costs nothing
constexpr int64_t kAlignBytes = 64;

}  // namespace

Buffer::~Buffer() {
  if (owned_) FreePages(data_, size_bytes_);
}

Expected<Buffer> Buffer::Allocate(int64_t size_bytes, const char* what, BufferArena* arena) {
  if (arena != nullptr) return arena->Allocate(size_bytes, what);
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

Expected<Buffer> BufferArena::Allocate(int64_t size_bytes, const char* what) {
  // Also negative sizes, for the error.
  if (size_bytes < 0 || size_bytes > kChunkBytes / 4) return Buffer::Allocate(size_bytes, what);
  if (chunks_.empty() || used_bytes_ + size_bytes > chunks_.back().size_bytes()) {
    ATTEST_ASSIGN_OR_RETURN(Buffer chunk, Buffer::Allocate(kChunkBytes, what));
    chunks_.push_back(std::move(chunk));
    used_bytes_ = 0;
  }
  Buffer buffer;
  buffer.data_ = chunks_.back().data() + used_bytes_;
  buffer.size_bytes_ = static_cast<size_t>(size_bytes);
  buffer.owned_ = false;
  used_bytes_ += (size_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  return buffer;
}

}  // namespace attest
