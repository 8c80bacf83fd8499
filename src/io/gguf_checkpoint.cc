// One GGUF file, or a split set: NAME-00001-of-00003.gguf opens all three, and the three must agree that they
// belong together.
#include <fmt/format.h>

#include <charconv>

#include "io/file_error.h"
#include "io/gguf.h"
#include "io/mapped_checkpoint.h"

namespace attest {
namespace {

constexpr std::string_view kSplitNo = "split.no";
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitTensors = "split.tensors.count";
constexpr int kMaxSplits = 99999;  // five digits in the name

class GgufCheckpoint final : public MappedCheckpoint {
 public:
  explicit GgufCheckpoint(std::filesystem::path path) : MappedCheckpoint(std::move(path)) {}

  Status Load() {
    ATTEST_ASSIGN_OR_RETURN(const GgufFile* first, Add(path_));
    ATTEST_ASSIGN_OR_RETURN(const auto count, first->FindInt(kSplitCount));
    if (count && *count != 1) ATTEST_RETURN_IF_ERROR(LoadOthers(*count));
    return IndexTensors();
  }

  [[nodiscard]] CheckpointFormat format() const override { return CheckpointFormat::kGguf; }
  [[nodiscard]] const GgufFile* gguf() const override { return parsed_.front().get(); }
  [[nodiscard]] Expected<std::string> ReadSideFile(std::string_view name) const override {
    return FailOnOneLine(
        ErrorCode::kNotFound,
        fmt::format("{}: no side file {}: a GGUF file holds everything", path_.string(), Quoted(name)));
  }

 private:
  Expected<const GgufFile*> Add(const std::filesystem::path& path) {
    ATTEST_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    ATTEST_ASSIGN_OR_RETURN(GgufFile parsed, GgufFile::Parse(file.bytes(), path.string()));
    tensors_.insert(tensors_.end(), parsed.tensors().begin(), parsed.tensors().end());
    files_.push_back(std::move(file));
    parsed_.push_back(std::make_unique<GgufFile>(std::move(parsed)));
    return parsed_.back().get();
  }

  Status LoadOthers(int64_t count) {
    const GgufFile& first = *parsed_.front();
    const auto bad = [&](const GgufFile& file, std::string_view key, std::string problem) {
      const GgufEntry* entry = file.Find(key);
      return BadFile(file.file_name(), entry == nullptr ? 0 : entry->offset, problem, std::string(key));
    };
    if (count < 1 || count > kMaxSplits) {
      return bad(first, kSplitCount, fmt::format("split.count is {}, must be 1 to {}", count, kMaxSplits));
    }
    std::optional<SplitName> name = ParseSplitName(path_.filename().string());
    if (!name || name->count != count) {
      return bad(first, kSplitCount,
                 fmt::format("split.count is {}, so the file must be named like NAME-00001-of-{:05}.gguf",
                             count, count));
    }
    if (name->number != 1) {
      name->number = 1;
      return FailOnOneLine(ErrorCode::kInvalidArgument,
                           fmt::format("{}: one part of {}; open the first, {}", path_.string(), count,
                                       FormatSplitName(*name)));
    }
    ATTEST_ASSIGN_OR_RETURN(const int64_t total, first.Int(kSplitTensors));
    for (int i = 0; i < count; ++i) {
      name->number = i + 1;
      if (i > 0) ATTEST_RETURN_IF_ERROR(Add(path_.parent_path() / FormatSplitName(*name)));
      const GgufFile& part = *parsed_.back();
      for (const auto& [key, expected] : {std::pair(kSplitNo, int64_t{i}), std::pair(kSplitCount, count),
                                          std::pair(kSplitTensors, total)}) {
        ATTEST_ASSIGN_OR_RETURN(const int64_t value, part.Int(key));
        if (value == expected) continue;
        return bad(part, key, fmt::format("{} is {}, must be {} in this part", key, value, expected));
      }
    }
    if (static_cast<int64_t>(tensors_.size()) != total) {
      return bad(first, kSplitTensors,
                 fmt::format("split.tensors.count is {}, the {} parts hold {} tensors", total, count,
                             tensors_.size()));
    }
    return {};
  }

  std::vector<std::unique_ptr<GgufFile>> parsed_;
};

}  // namespace

std::optional<SplitName> ParseSplitName(std::string_view file_name) {
  constexpr std::string_view kShape = "-00000-of-00000.gguf";
  if (file_name.size() <= kShape.size()) return std::nullopt;
  const std::string_view tail = file_name.substr(file_name.size() - kShape.size());
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") return std::nullopt;
  const auto parse = [&](size_t begin) -> int {
    int value = 0;
    const char* end = tail.data() + begin + 5;
    const auto [stop, error] = std::from_chars(tail.data() + begin, end, value);
    return error == std::errc() && stop == end ? value : 0;
  };
  SplitName name{std::string(file_name.substr(0, file_name.size() - kShape.size())), parse(1), parse(10)};
  if (name.number < 1 || name.count < 1 || name.number > name.count) return std::nullopt;
  return name;
}

std::string FormatSplitName(const SplitName& name) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name.stem, name.number, name.count);
}

Expected<std::unique_ptr<Checkpoint>> OpenGguf(const std::filesystem::path& first) {
  auto checkpoint = std::make_unique<GgufCheckpoint>(first);
  ATTEST_RETURN_IF_ERROR(checkpoint->Load());
  return checkpoint;
}

}  // namespace attest
