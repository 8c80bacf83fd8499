// A folder with model.safetensors (or the one *.safetensors), or with an index and its shards. Index and
// shards must agree on every tensor, both ways.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <unordered_map>

#include "io/file_error.h"
#include "io/mapped_checkpoint.h"
#include "io/safetensors.h"

namespace attest {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

class SafetensorsCheckpoint final : public MappedCheckpoint {
 public:
  explicit SafetensorsCheckpoint(std::filesystem::path path) : MappedCheckpoint(std::move(path)) {}

  Status Load() {
    std::error_code error;
    if (std::filesystem::exists(path_ / kSingleName, error)) {
      ATTEST_RETURN_IF_ERROR(Add(std::string(kSingleName)));
    } else if (std::filesystem::exists(path_ / kIndexName, error)) {
      ATTEST_RETURN_IF_ERROR(LoadShards());
    } else {
      ATTEST_ASSIGN_OR_RETURN(const std::string name, FindOnlyFile());
      ATTEST_RETURN_IF_ERROR(Add(name));
    }
    return IndexTensors();
  }

  [[nodiscard]] CheckpointFormat format() const override { return CheckpointFormat::kSafetensors; }
  [[nodiscard]] const GgufFile* gguf() const override { return nullptr; }

  [[nodiscard]] Expected<std::string> ReadSideFile(std::string_view name) const override {
    if (name.empty() || name[0] == '.' || name.find('/') != name.npos) {
      return FailOnOneLine(ErrorCode::kInvalidArgument,
                           fmt::format("side file {} must be a plain file name", Quoted(name)));
    }
    ATTEST_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path_ / name));
    const auto bytes = file.bytes();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  // Maps one file and appends its tensors.
  Status Add(const std::string& name) {
    ATTEST_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path_ / name));
    ATTEST_ASSIGN_OR_RETURN(std::vector<TensorInfo> found,
                            ParseSafetensors(file.bytes(), (path_ / name).string()));
    std::move(found.begin(), found.end(), std::back_inserter(tensors_));
    files_.push_back(std::move(file));
    return {};
  }

  Expected<std::string> FindOnlyFile() const {
    std::set<std::string> safetensors, ggufs;
    std::error_code error;
    for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end;
         it.increment(error)) {
      if (it->path().extension() == ".safetensors") safetensors.insert(it->path().filename().string());
      if (it->path().extension() == ".gguf") ggufs.insert(it->path().filename().string());
    }
    if (error) return FailOnOneLine(ErrorCode::kIo, fmt::format("{}: {}", path_.string(), error.message()));
    if (safetensors.size() == 1) return *safetensors.begin();
    if (safetensors.size() > 1) {
      return FailOnOneLine(ErrorCode::kCorruptFile,
                           fmt::format("{}: {} .safetensors files ({}) but no {}", path_.string(),
                                       safetensors.size(), fmt::join(safetensors, ", "), kIndexName));
    }
    if (!ggufs.empty()) {
      return FailOnOneLine(ErrorCode::kInvalidArgument,
                           fmt::format("{}: no .safetensors file; open one of its GGUF files: {}",
                                       path_.string(), fmt::join(ggufs, ", ")));
    }
    return FailOnOneLine(ErrorCode::kNotFound,
                         fmt::format("{}: neither {} nor {} nor any other .safetensors file", path_.string(),
                                     kSingleName, kIndexName));
  }

  Status LoadShards() {
    const std::string index_file = (path_ / kIndexName).string();
    ATTEST_ASSIGN_OR_RETURN(const std::string text, ReadSideFile(kIndexName));
    ATTEST_ASSIGN_OR_RETURN(const std::vector<ShardedTensor> map, ParseSafetensorsIndex(text, index_file));
    std::unordered_map<std::string_view, std::string_view> shard_of;  // views into map
    std::set<std::string> shards;
    for (const ShardedTensor& tensor : map) {
      shard_of.emplace(tensor.name, tensor.shard);
      shards.insert(tensor.shard);
    }
    for (const std::string& shard : shards) {
      std::error_code error;
      if (!std::filesystem::exists(path_ / shard, error)) {
        return FailOnOneLine(ErrorCode::kCorruptFile,
                             fmt::format("{}: shard {} is missing in {}", index_file, shard, path_.string()));
      }
      const size_t begin = tensors_.size();
      ATTEST_RETURN_IF_ERROR(Add(shard));
      for (size_t i = begin; i < tensors_.size(); ++i) {
        const TensorInfo& tensor = tensors_[i];
        const auto entry = shard_of.find(tensor.name);
        if (entry != shard_of.end() && entry->second == shard) continue;
        return BadFile(tensor.file, static_cast<uint64_t>(tensor.file_offset),
                       entry == shard_of.end()
                           ? fmt::format("tensor {} is not in {}", Quoted(tensor.name), kIndexName)
                           : fmt::format("tensor {} should lie in {} by {}", Quoted(tensor.name),
                                         entry->second, kIndexName),
                       tensor.name);
      }
    }
    // Every tensor found is listed, and names within a shard are unique: what is left over is missing.
    if (tensors_.size() == map.size()) return {};
    std::set<std::string_view> found;
    for (const TensorInfo& tensor : tensors_) found.insert(tensor.name);
    for (const ShardedTensor& tensor : map) {
      if (found.contains(tensor.name)) continue;
      return FailOnOneLine(
          ErrorCode::kCorruptFile,
          fmt::format("{}: tensor {} is not in its shard {}", index_file, Quoted(tensor.name), tensor.shard),
          tensor.name);
    }
    return {};
  }
};

}  // namespace

Expected<std::unique_ptr<Checkpoint>> OpenSafetensors(const std::filesystem::path& folder) {
  auto checkpoint = std::make_unique<SafetensorsCheckpoint>(folder);
  ATTEST_RETURN_IF_ERROR(checkpoint->Load());
  return checkpoint;
}

}  // namespace attest
