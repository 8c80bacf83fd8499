#include "io/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>

#include "io/file_error.h"

namespace attest {
namespace {

static_assert(std::endian::native == std::endian::little, "file integers are read as they lie");

std::string DescribeType(const GgufEntry& entry) {
  if (entry.type != GgufType::kArray) return std::string(GgufTypeName(entry.type));
  return fmt::format("array of {} {}", entry.count, GgufTypeName(entry.item_type));
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  switch (type) {
    case GgufType::kU8:
      return "u8";
    case GgufType::kI8:
      return "i8";
    case GgufType::kU16:
      return "u16";
    case GgufType::kI16:
      return "i16";
    case GgufType::kU32:
      return "u32";
    case GgufType::kI32:
      return "i32";
    case GgufType::kF32:
      return "f32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kU64:
      return "u64";
    case GgufType::kI64:
      return "i64";
    case GgufType::kF64:
      return "f64";
  }
  return "unknown";
}

const GgufEntry* GgufFile::Find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &metadata_[found->second];
}

template <class T>
T GgufFile::Load(uint64_t offset) const {
  T value;
  std::memcpy(&value, bytes_.data() + offset, sizeof(T));
  return value;
}

std::unexpected<Error> GgufFile::WrongType(const GgufEntry& entry, std::string_view wanted) const {
  return BadFile(file_name_, entry.offset,
                 fmt::format("metadata {} is {}, must be {}", Quoted(entry.key), DescribeType(entry), wanted),
                 std::string(entry.key));
}

Expected<int64_t> GgufFile::LoadInt(const GgufEntry& entry, GgufType type, uint64_t offset) const {
  switch (type) {
    case GgufType::kU8:
      return Load<uint8_t>(offset);
    case GgufType::kI8:
      return Load<int8_t>(offset);
    case GgufType::kU16:
      return Load<uint16_t>(offset);
    case GgufType::kI16:
      return Load<int16_t>(offset);
    case GgufType::kU32:
      return Load<uint32_t>(offset);
    case GgufType::kI32:
      return Load<int32_t>(offset);
    case GgufType::kI64:
      return Load<int64_t>(offset);
    case GgufType::kU64: {
      const auto value = Load<uint64_t>(offset);
      constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      if (value <= kMax) return static_cast<int64_t>(value);
      return BadFile(file_name_, offset,
                     fmt::format("metadata {} holds {}, must be at most {}", Quoted(entry.key), value, kMax),
                     std::string(entry.key));
    }
    default:
      return WrongType(entry, "an integer");
  }
}

Expected<std::optional<int64_t>> GgufFile::FindInt(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  return LoadInt(*entry, entry->type, entry->offset);
}

Expected<std::optional<double>> GgufFile::FindFloat(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type == GgufType::kF32) return Load<float>(entry->offset);
  if (entry->type == GgufType::kF64) return Load<double>(entry->offset);
  return WrongType(*entry, "f32 or f64");
}

Expected<std::optional<bool>> GgufFile::FindBool(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufType::kBool) return WrongType(*entry, "bool");
  return Load<uint8_t>(entry->offset) != 0;
}

Expected<std::optional<std::string_view>> GgufFile::FindString(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufType::kString) return WrongType(*entry, "string");
  const char* text = reinterpret_cast<const char*>(bytes_.data()) + entry->offset + sizeof(uint64_t);
  return std::string_view(text, Load<uint64_t>(entry->offset));
}

Expected<std::optional<std::vector<int32_t>>> GgufFile::FindInts(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  const GgufType item = entry->item_type;
  const bool is_wide = item == GgufType::kI64 || item == GgufType::kU64;
  if (entry->type != GgufType::kArray || !(is_wide || item == GgufType::kI32 || item == GgufType::kU32)) {
    return WrongType(*entry, "an array of i32, u32, i64 or u64");
  }
  std::vector<int32_t> values(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const uint64_t offset = entry->offset + i * (is_wide ? 8 : 4);
    ATTEST_ASSIGN_OR_RETURN(const int64_t value, LoadInt(*entry, item, offset));
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
      return BadFile(file_name_, offset,
                     fmt::format("metadata {} item {} is {}, must fit in 32 bits", Quoted(key), i, value),
                     std::string(key));
    }
    values[i] = static_cast<int32_t>(value);
  }
  return values;
}

Expected<std::optional<std::vector<float>>> GgufFile::FindFloats(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufType::kArray || entry->item_type != GgufType::kF32) {
    return WrongType(*entry, "an array of f32");
  }
  std::vector<float> values(entry->count);
  if (!values.empty()) {
    std::memcpy(values.data(), bytes_.data() + entry->offset, values.size() * sizeof(float));
  }
  return values;
}

Expected<std::optional<std::vector<std::string_view>>> GgufFile::FindStrings(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufType::kArray || entry->item_type != GgufType::kString) {
    return WrongType(*entry, "an array of string");
  }
  std::vector<std::string_view> values(entry->count);
  uint64_t offset = entry->offset;
  for (std::string_view& value : values) {
    const auto length = Load<uint64_t>(offset);
    value = {reinterpret_cast<const char*>(bytes_.data()) + offset + sizeof(uint64_t), length};
    offset += sizeof(uint64_t) + length;
  }
  return values;
}

template <class T>
Expected<T> GgufFile::Require(Expected<std::optional<T>> found, std::string_view key) const {
  if (!found) return std::unexpected<Error>(std::move(found).error());
  if (!found->has_value()) {
    return FailOnOneLine(ErrorCode::kCorruptFile,
                         fmt::format("{}: no metadata key {}", file_name_, Quoted(key)), std::string(key));
  }
  return *std::move(*found);
}

Expected<int64_t> GgufFile::Int(std::string_view key) const { return Require(FindInt(key), key); }
Expected<double> GgufFile::Float(std::string_view key) const { return Require(FindFloat(key), key); }
Expected<std::string_view> GgufFile::String(std::string_view key) const {
  return Require(FindString(key), key);
}
Expected<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  return Require(FindStrings(key), key);
}

}  // namespace attest
