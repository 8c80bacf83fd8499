#include "io/checkpoint.h"

#include <fmt/format.h>

#include <system_error>

#include "base/check.h"
#include "io/file_error.h"
#include "io/mapped_checkpoint.h"

namespace attest {

Expected<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return OpenSafetensors(path);
  if (std::filesystem::exists(status) && path.extension() == ".safetensors") {
    return FailOnOneLine(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: give the folder it lies in: the config and tokenizer are needed too",
                    path.string()));
  }
  return OpenGguf(path);
}

const TensorInfo* MappedCheckpoint::FindTensor(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

int64_t MappedCheckpoint::file_bytes() const {
  int64_t sum = 0;
  for (const MappedFile& file : files_) sum += static_cast<int64_t>(file.bytes().size());
  return sum;
}

void MappedCheckpoint::DropPages(const TensorInfo& tensor) const {
  if (tensor.size_bytes == 0) return;
  for (const MappedFile& file : files_) {
    if (!file.Contains(tensor.data)) continue;
    file.DropPages(static_cast<size_t>(tensor.file_offset), static_cast<size_t>(tensor.size_bytes));
    return;
  }
  ATTEST_CHECK(!"a tensor of another checkpoint");
}

Status MappedCheckpoint::IndexTensors() {
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [other, is_new] = index_.emplace(tensors_[i].name, i);
    if (is_new) continue;
    return BadFile(
        tensors_[i].file, static_cast<uint64_t>(tensors_[i].file_offset),
        fmt::format("tensor {} is also in {}", Quoted(tensors_[i].name), tensors_[other->second].file),
        tensors_[i].name);
  }
  return {};
}

}  // namespace attest
