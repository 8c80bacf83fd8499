#include "io/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "io/file_error.h"

namespace attest {
namespace {

// Data begins at a multiple of this, as the reference implementation has it.
constexpr size_t kDataAlignment = 8;

std::unexpected<Error> WriteError(const std::filesystem::path& path, const char* call, int error) {
  return FailOnOneLine(
      ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), call, std::generic_category().message(error)));
}

Status CheckShape(const SafetensorsEntry& entry) {
  int64_t bytes = SafetensorsElementBytes(entry.dtype);
  bool fits = bytes > 0;
  for (const int64_t extent : entry.shape) {
    fits = fits && extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (fits && static_cast<uint64_t>(bytes) == entry.data.size()) return {};
  return FailOnOneLine(ErrorCode::kInvalidArgument,
                       fmt::format("tensor {} is {} [{}] and has {} bytes of data", Quoted(entry.name),
                                   Quoted(entry.dtype), fmt::join(entry.shape, ", "), entry.data.size()),
                       entry.name);
}

Expected<std::string> HeaderOf(std::span<const SafetensorsEntry> entries,
                               const std::map<std::string, std::string>& metadata) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (header.contains(entry.name)) {
      return FailOnOneLine(ErrorCode::kInvalidArgument,
                           fmt::format("tensor {} appears twice", Quoted(entry.name)), entry.name);
    }
    ATTEST_RETURN_IF_ERROR(CheckShape(entry));
    header[entry.name] = {{"dtype", entry.dtype},
                          {"shape", entry.shape},
                          {"data_offsets", {offset, offset + entry.data.size()}}};
    offset += entry.data.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    return Fail(ErrorCode::kInvalidArgument, "a name or a metadata text is no UTF-8", "__metadata__");
  }
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  return text;
}

// A file that is removed again unless Commit moves it to its place.
class PartialFile {
 public:
  explicit PartialFile(const std::filesystem::path& target)
      : target_(target), name_(target.string() + ".XXXXXX") {}
  ~PartialFile() {
    if (fd_ >= 0) ::close(fd_);
    if (exists_) ::unlink(name_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  Status Open() {
    fd_ = ::mkostemp(name_.data(), O_CLOEXEC);  // mode 0600
    if (fd_ < 0) return WriteError(target_, "create", errno);
    exists_ = true;
    return {};
  }
  Status Append(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(fd_, at, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return WriteError(target_, "write", errno);
      at += written;
      size -= static_cast<size_t>(written);
    }
    return {};
  }
  Status Commit() {
    if (::close(std::exchange(fd_, -1)) != 0) return WriteError(target_, "close", errno);
    if (::rename(name_.c_str(), target_.c_str()) != 0) return WriteError(target_, "rename", errno);
    exists_ = false;
    return {};
  }

 private:
  const std::filesystem::path& target_;
  std::string name_;
  int fd_ = -1;
  bool exists_ = false;
};

}  // namespace

Status WriteSafetensors(const std::filesystem::path& path, std::span<const SafetensorsEntry> entries,
                        const std::map<std::string, std::string>& metadata) {
  ATTEST_ASSIGN_OR_RETURN(const std::string header, HeaderOf(entries, metadata));
  const uint64_t header_bytes = header.size();
  std::string begin(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  begin += header;
  PartialFile file(path);
  ATTEST_RETURN_IF_ERROR(file.Open());
  ATTEST_RETURN_IF_ERROR(file.Append(begin.data(), begin.size()));
  for (const SafetensorsEntry& entry : entries) {
    ATTEST_RETURN_IF_ERROR(file.Append(entry.data.data(), entry.data.size()));
  }
  return file.Commit();
}

}  // namespace attest
