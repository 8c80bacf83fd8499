// What both formats share: some mapped files, the tensors in them, and lookup by name. Internal to io/.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/checkpoint.h"
#include "io/mapped_file.h"

namespace attest {

class MappedCheckpoint : public Checkpoint {
 public:
  [[nodiscard]] const std::filesystem::path& path() const override { return path_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  [[nodiscard]] const TensorInfo* FindTensor(std::string_view name) const override;
  [[nodiscard]] int64_t file_bytes() const override;
  void DropPages(const TensorInfo& tensor) const override;

 protected:
  explicit MappedCheckpoint(std::filesystem::path path) : path_(std::move(path)) {}

  // Builds the lookup. An error when two files hold a tensor of one name. Call once, after the last tensor.
  [[nodiscard]] Status IndexTensors();

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  std::vector<TensorInfo> tensors_;

 private:
  std::unordered_map<std::string_view, size_t> index_;  // views into tensors_
};

// `first`: any file of a split set is refused but the first, which opens all.
[[nodiscard]] Expected<std::unique_ptr<Checkpoint>> OpenGguf(const std::filesystem::path& first);
[[nodiscard]] Expected<std::unique_ptr<Checkpoint>> OpenSafetensors(const std::filesystem::path& folder);

// "stem-00001-of-00003.gguf" taken apart; nullopt for other names.
struct SplitName {
  std::string stem;
  int number;  // from 1
  int count;
};
[[nodiscard]] std::optional<SplitName> ParseSplitName(std::string_view file_name);
[[nodiscard]] std::string FormatSplitName(const SplitName& name);

}  // namespace attest
