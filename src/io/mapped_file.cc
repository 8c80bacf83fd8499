#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "io/file_error.h"

namespace attest {
namespace {

std::unexpected<Error> SystemError(const std::filesystem::path& path, const char* call, int error) {
  const bool absent = error == ENOENT || error == ENOTDIR;
  return FailOnOneLine(
      absent ? ErrorCode::kNotFound : ErrorCode::kIo,
      fmt::format("{}: {}: {}", path.string(), call, std::generic_category().message(error)));
}

}  // namespace

Expected<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "open", errno);
  struct stat info{};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return SystemError(path, "fstat", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return FailOnOneLine(ErrorCode::kIo, fmt::format("{}: not a regular file", path.string()));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    ::close(fd);
    return MappedFile(path, nullptr, 0);
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);  // the mapping keeps the file
  if (data == MAP_FAILED) return SystemError(path, "mmap", error);
  return MappedFile(path, static_cast<std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

bool MappedFile::Contains(const std::byte* pointer) const {
  const std::less<const std::byte*> before;  // a total order, also between unrelated objects
  return data_ != nullptr && !before(pointer, data_) && before(pointer, data_ + size_bytes_);
}

void MappedFile::DropPages(size_t offset, size_t size_bytes) const {
  ATTEST_CHECK_LE(offset, size_bytes_);
  ATTEST_CHECK_LE(size_bytes, size_bytes_ - offset);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size_bytes) / page * page;
  // Advice only: when the system declines, the pages stay resident and nothing else changes.
  if (begin < end) (void)::madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

}  // namespace attest
