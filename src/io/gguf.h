// One GGUF file (version 2 or 3, little endian) as parsed from memory: metadata and tensor descriptions.
// Immutable; any number of threads may read it. It points into the bytes it was parsed from and does not own
// them: they must outlive it. Nothing is taken on trust: after Parse succeeded, every entry and every tensor
// lies inside the bytes, names are unique, and no two tensors share a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "io/checkpoint.h"

namespace attest {

enum class GgufType : uint32_t {  // the numbers in the file
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
[[nodiscard]] std::string_view GgufTypeName(GgufType type);  // "u8", "string", ...

// One metadata pair. `offset`: where the value's first byte lies (an array's: its first item).
struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kU8;
  GgufType item_type = GgufType::kU8;  // of an array's items
  uint64_t count = 1;                  // an array's items
  uint64_t offset = 0;
};

class GgufFile {
 public:
  // `file_name` stands in messages and in TensorInfo::file. Memory grows with what the file holds, never with
  // what a count in it claims.
  static Expected<GgufFile> Parse(std::span<const std::byte> bytes, std::string file_name);

  [[nodiscard]] const std::string& file_name() const { return file_name_; }
  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] uint32_t alignment() const { return alignment_; }
  [[nodiscard]] uint64_t data_offset() const { return data_offset_; }  // where tensor data begins
  [[nodiscard]] const std::vector<GgufEntry>& metadata() const { return metadata_; }  // in file order
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }   // in file order
  [[nodiscard]] const GgufEntry* Find(std::string_view key) const;                    // nullptr when absent

  // Typed lookups. nullopt when the key is absent. A value of another type, or one that does not fit, is
  // kCorruptFile and names the key, the stored type and the wanted one: an array of u8 is never read as one
  // of f32.
  [[nodiscard]] Expected<std::optional<int64_t>> FindInt(std::string_view key) const;   // any integer type
  [[nodiscard]] Expected<std::optional<double>> FindFloat(std::string_view key) const;  // f32 or f64
  [[nodiscard]] Expected<std::optional<bool>> FindBool(std::string_view key) const;
  [[nodiscard]] Expected<std::optional<std::string_view>> FindString(std::string_view key) const;
  // Arrays. Ints: i32, u32, i64 or u64 items whose values fit in int32. Views point into the file's bytes.
  [[nodiscard]] Expected<std::optional<std::vector<int32_t>>> FindInts(std::string_view key) const;
  [[nodiscard]] Expected<std::optional<std::vector<float>>> FindFloats(std::string_view key) const;  // f32
  [[nodiscard]] Expected<std::optional<std::vector<std::string_view>>> FindStrings(
      std::string_view key) const;

  // The same for keys that must be there: kCorruptFile "no metadata key KEY" when absent.
  [[nodiscard]] Expected<int64_t> Int(std::string_view key) const;
  [[nodiscard]] Expected<double> Float(std::string_view key) const;
  [[nodiscard]] Expected<std::string_view> String(std::string_view key) const;
  [[nodiscard]] Expected<std::vector<std::string_view>> Strings(std::string_view key) const;

 private:
  friend class GgufParser;
  GgufFile(std::span<const std::byte> bytes, std::string file_name)
      : bytes_(bytes), file_name_(std::move(file_name)) {}

  // REQUIRES: offset + sizeof(T) lies in the file, as it does for every entry.
  template <class T>
  [[nodiscard]] T Load(uint64_t offset) const;
  [[nodiscard]] std::unexpected<Error> WrongType(const GgufEntry& entry, std::string_view wanted) const;
  [[nodiscard]] Expected<int64_t> LoadInt(const GgufEntry& entry, GgufType type, uint64_t offset) const;
  template <class T>
  [[nodiscard]] Expected<T> Require(Expected<std::optional<T>> found, std::string_view key) const;

  std::span<const std::byte> bytes_;
  std::string file_name_;
  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  uint64_t data_offset_ = 0;
  std::vector<GgufEntry> metadata_;
  std::unordered_map<std::string_view, size_t> index_;  // key -> place in metadata_; views into bytes_
  std::vector<TensorInfo> tensors_;
};

}  // namespace attest
