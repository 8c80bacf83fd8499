// A model's files as one thing: named tensors in mapped memory plus metadata, whatever the format. Nothing
// read from a file is trusted: every count, offset and length is checked against the file's size before use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace attest {

struct TensorInfo {
  std::string name;  // as in the file
  DType dtype = DType::kF32;
  std::vector<int64_t>
      shape;  // row-major, outermost first: [out_features, in_features] (GGUF dims are reversed here)
  // Inside the mapping; valid while the Checkpoint lives. Aligned to at least 8 bytes in GGUF, not at all in
  // safetensors: copy with memcpy, or check before reading wider types in place.
  const std::byte* data = nullptr;
  int64_t size_bytes = 0;
  std::string file;         // which file it lies in
  int64_t file_offset = 0;  // byte offset in that file
};

enum class CheckpointFormat { kGguf, kSafetensors };

class GgufFile;  // io/gguf.h

class Checkpoint {
 public:
  // `path` is a folder with safetensors (single file or index + shards), or a .gguf file (the first of a
  // split set opens all). One-line errors: file, byte offset, field, value, limit. Opening reads headers
  // only; a file shorter than its header says is refused here.
  static Expected<std::unique_ptr<Checkpoint>> Open(const std::filesystem::path& path);
  virtual ~Checkpoint() = default;

  [[nodiscard]] virtual CheckpointFormat format() const = 0;
  [[nodiscard]] virtual const std::filesystem::path& path() const = 0;
  [[nodiscard]] virtual const std::vector<TensorInfo>& tensors() const = 0;
  [[nodiscard]] virtual const TensorInfo* FindTensor(std::string_view name) const = 0;  // nullptr when absent
  [[nodiscard]] virtual int64_t file_bytes() const = 0;                                 // of all files
  // GGUF: metadata of the first file. nullptr for safetensors.
  [[nodiscard]] virtual const GgufFile* gguf() const = 0;
  // Safetensors: text of a side file in the folder ("config.json", "tokenizer.json", ...); kNotFound when
  // absent.
  [[nodiscard]] virtual Expected<std::string> ReadSideFile(std::string_view name) const = 0;
  // Tells the system that a tensor's file pages are no longer needed (madvise); the data stays readable.
  virtual void DropPages(const TensorInfo& tensor) const = 0;
};

// MODEL as a user types it -> a path: an existing folder or .gguf file as it is; otherwise "org/name" in the
// local Hugging Face cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME rules; refs/main, then the newest
// snapshot). kNotFound names every place looked at and the `hf download org/name` line. Never downloads. The
// environment is passed in: nothing below the command line reads it.
struct HubEnvironment {
  std::string hf_hub_cache, hf_home, xdg_cache_home, home;
};
[[nodiscard]] Expected<std::filesystem::path> ResolveModel(std::string_view model,
                                                           const HubEnvironment& environment);

}  // namespace attest
