// A whole file mapped read-only. Owns the mapping; spans into it live as long as the MappedFile (moving it
// does not move the bytes). Safe to read from any number of threads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace attest {

class MappedFile {
 public:
  // kNotFound when absent, kIo when the system refuses or the path is no regular file. An empty file maps to
  // an empty span.
  static Expected<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  [[nodiscard]] bool Contains(const std::byte* pointer) const;

  // Releases the resident pages that lie wholly inside [offset, offset + size_bytes); a later read fetches
  // them again. REQUIRES: the range lies in the file.
  void DropPages(size_t offset, size_t size_bytes) const;

 private:
  MappedFile(std::filesystem::path path, std::byte* data, size_t size_bytes)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}

  std::filesystem::path path_;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace attest
