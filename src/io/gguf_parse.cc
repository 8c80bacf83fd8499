// GGUF from bytes. Every read goes through Read, ReadString or SkipItems, which compare with the bytes that
// are left; a count is compared with what could fit before anything is sized by it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "io/file_error.h"
#include "io/gguf.h"
#include "io/gguf_types.h"

namespace attest {
namespace {

constexpr uint32_t kMagic = 0x46554747;   // "GGUF"
constexpr uint64_t kMinEntryBytes = 14;   // key length 8, key 1, type 4, value 1
constexpr uint64_t kMinTensorBytes = 33;  // name length 8, name 1, dims 4 + 8, type 4, offset 8
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's own limit
// The format says 64 and tools have written longer names; 1 KiB keeps a name a name.
constexpr uint64_t kMaxTensorNameBytes = 1024;
constexpr uint32_t kMaxDims = 4;
// Arrays may nest. No known file nests deeper than 2; the bound keeps the recursion off the stack's end.
constexpr int kMaxArrayDepth = 8;
// The format asks for a multiple of 8. 1 MiB is 32,768 times the default and below any file worth loading.
constexpr uint32_t kMinAlignment = 8;
constexpr uint32_t kMaxAlignment = 1u << 20;

// Bytes of one value; for strings and arrays the least an item takes (an empty one).
uint64_t MinItemBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
    case GgufType::kString:  // its length
      return 8;
    case GgufType::kArray:  // item type and count
      return 12;
  }
  return 0;  // not a type
}

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string file_name)
      : bytes_(bytes), file_(bytes, std::move(file_name)) {}

  Expected<GgufFile> Run() {
    ATTEST_RETURN_IF_ERROR(ParseMagicAndVersion());
    ATTEST_ASSIGN_OR_RETURN(const uint64_t num_tensors, Read<uint64_t>("tensor count"));
    ATTEST_RETURN_IF_ERROR(CheckCount(num_tensors, kMinTensorBytes, "tensor count"));
    ATTEST_ASSIGN_OR_RETURN(const uint64_t num_entries, Read<uint64_t>("metadata count"));
    ATTEST_RETURN_IF_ERROR(CheckCount(num_entries, kMinEntryBytes, "metadata count"));
    for (uint64_t i = 0; i < num_entries; ++i) ATTEST_RETURN_IF_ERROR(ParseEntry(i));
    ATTEST_RETURN_IF_ERROR(ReadAlignment());
    std::vector<uint64_t> offset_places;  // where each tensor's offset field lies, for messages
    for (uint64_t i = 0; i < num_tensors; ++i) ATTEST_RETURN_IF_ERROR(ParseTensor(i, offset_places));
    ATTEST_RETURN_IF_ERROR(PlaceTensors(offset_places));
    return std::move(file_);
  }

 private:
  [[nodiscard]] uint64_t left() const { return bytes_.size() - pos_; }

  [[nodiscard]] std::unexpected<Error> Bad(uint64_t offset, std::string_view problem,
                                           std::string name = {}) const {
    return BadFile(file_.file_name_, offset, problem, std::move(name));
  }

  template <class T>
  Expected<T> Read(std::string_view field) {
    if (left() < sizeof(T)) {
      return Bad(pos_, fmt::format("{}{} takes {} bytes, {} are left in the file", record_, field, sizeof(T),
                                   left()));
    }
    T value;
    std::memcpy(&value, bytes_.data() + pos_, sizeof(T));
    pos_ += sizeof(T);
    return value;
  }

  // `at` is where a just-read count lies: the 8 bytes before pos_.
  Status CheckCount(uint64_t count, uint64_t min_item_bytes, std::string_view field) const {
    if (count <= left() / min_item_bytes) return {};
    return Bad(pos_ - sizeof(uint64_t), fmt::format("{}{} is {}, at most {} fit in the {} bytes left",
                                                    record_, field, count, left() / min_item_bytes, left()));
  }

  Expected<std::string_view> ReadString(std::string_view field, uint64_t max_bytes) {
    ATTEST_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(field));
    const uint64_t limit = std::min(max_bytes, left());
    if (length > limit) {
      return Bad(pos_ - sizeof(uint64_t),
                 fmt::format("{}{} length is {}, at most {} possible here", record_, field, length, limit));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + pos_, length);
    pos_ += length;
    return text;
  }

  // A name or key: not empty, not longer than `max_bytes`, no control bytes.
  Expected<std::string_view> ReadName(std::string_view field, uint64_t max_bytes) {
    const uint64_t begin = pos_;
    ATTEST_ASSIGN_OR_RETURN(const std::string_view name, ReadString(field, max_bytes));
    if (name.empty()) return Bad(begin, fmt::format("{}{} length is 0, must be at least 1", record_, field));
    if (!IsPrintableName(name)) {
      return Bad(begin, fmt::format("{}{} {} holds a control byte", record_, field, Quoted(name)));
    }
    return name;
  }

  Expected<GgufType> ReadType(std::string_view field) {
    ATTEST_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(field));
    if (type > static_cast<uint32_t>(GgufType::kF64)) {
      return Bad(pos_ - sizeof(uint32_t), fmt::format("{}{} is {}, must be 0 to 12", record_, field, type));
    }
    return static_cast<GgufType>(type);
  }

  Status ParseMagicAndVersion() {
    if (bytes_.size() >= sizeof(uint32_t)) {
      ATTEST_ASSIGN_OR_RETURN(const uint32_t magic, Read<uint32_t>("magic"));
      if (magic != kMagic) {
        return Bad(0, fmt::format("not a GGUF file{}: magic is 0x{:08x}, must be 0x{:08x} (\"GGUF\")",
                                  LooksLikeText(bytes_) ? " (looks like text)" : "", magic, kMagic));
      }
    } else {
      return Bad(0, fmt::format("not a GGUF file: {} bytes long", bytes_.size()));
    }
    ATTEST_ASSIGN_OR_RETURN(file_.version_, Read<uint32_t>("version"));
    if (file_.version_ == 2 || file_.version_ == 3) return {};
    const bool is_swapped = file_.version_ != 0 && (file_.version_ & 0xffffu) == 0;
    return BadFile(ErrorCode::kUnsupported, file_.file_name_, 4,
                   fmt::format("GGUF version is {}, supported are 2 and 3{}", file_.version_,
                               is_swapped ? " in little-endian order (this file is big-endian)" : ""));
  }

  Status ParseEntry(uint64_t index) {
    record_ = fmt::format("metadata {} ", index);
    const uint64_t begin = pos_;
    GgufEntry entry;
    ATTEST_ASSIGN_OR_RETURN(entry.key, ReadName("key", kMaxKeyBytes));
    record_ = fmt::format("metadata {} ", Quoted(entry.key));
    ATTEST_ASSIGN_OR_RETURN(entry.type, ReadType("value type"));
    entry.offset = pos_;
    if (entry.type == GgufType::kArray) {
      ATTEST_ASSIGN_OR_RETURN(entry.item_type, ReadType("item type"));
      ATTEST_ASSIGN_OR_RETURN(entry.count, Read<uint64_t>("item count"));
      entry.offset = pos_;
      ATTEST_RETURN_IF_ERROR(SkipItems(entry.item_type, entry.count, 1));
    } else {
      ATTEST_RETURN_IF_ERROR(SkipItems(entry.type, 1, 0));
    }
    if (!file_.index_.emplace(entry.key, file_.metadata_.size()).second) {
      return Bad(begin, fmt::format("metadata key {} appears twice", Quoted(entry.key)),
                 std::string(entry.key));
    }
    file_.metadata_.push_back(entry);
    record_.clear();
    return {};
  }

  // Checks `count` values of one type and moves past them.
  Status SkipItems(GgufType type, uint64_t count, int depth) {
    const uint64_t item_bytes = MinItemBytes(type);
    if (count > left() / item_bytes) {
      return Bad(pos_, fmt::format("{}claims {} {} item(s), at most {} fit in the {} bytes left", record_,
                                   count, GgufTypeName(type), left() / item_bytes, left()));
    }
    switch (type) {
      case GgufType::kString:
        return SkipStrings(count);
      case GgufType::kArray:
        return SkipArrays(count, depth);
      case GgufType::kBool:
        return SkipBools(count);
      default:
        pos_ += count * item_bytes;  // cannot overflow: compared with left() above
        return {};
    }
  }

  // A vocabulary has up to some 300,000 strings: nothing but the comparison and the step happens per string.
  Status SkipStrings(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t length = 0;
      if (left() < sizeof(length)) {
        return Bad(pos_, fmt::format("{}string {} of {} has no length, {} bytes are left", record_, i, count,
                                     left()));
      }
      std::memcpy(&length, bytes_.data() + pos_, sizeof(length));
      if (length > left() - sizeof(length)) {
        return Bad(pos_, fmt::format("{}string {} length is {}, {} bytes are left", record_, i, length,
                                     left() - sizeof(length)));
      }
      pos_ += sizeof(length) + length;
    }
    return {};
  }

  Status SkipArrays(uint64_t count, int depth) {
    if (depth >= kMaxArrayDepth) {
      return Bad(pos_, fmt::format("{}nests arrays deeper than {}", record_, kMaxArrayDepth));
    }
    for (uint64_t i = 0; i < count; ++i) {
      ATTEST_ASSIGN_OR_RETURN(const GgufType type, ReadType("nested item type"));
      ATTEST_ASSIGN_OR_RETURN(const uint64_t items, Read<uint64_t>("nested item count"));
      ATTEST_RETURN_IF_ERROR(SkipItems(type, items, depth + 1));
    }
    return {};
  }

  Status SkipBools(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i, ++pos_) {
      const auto value = static_cast<uint8_t>(bytes_[pos_]);
      if (value > 1) return Bad(pos_, fmt::format("{}bool {} is {}, must be 0 or 1", record_, i, value));
    }
    return {};
  }

  Status ReadAlignment() {
    const GgufEntry* entry = file_.Find("general.alignment");
    if (entry == nullptr) return {};
    ATTEST_ASSIGN_OR_RETURN(const auto alignment, file_.FindInt("general.alignment"));
    if (*alignment < kMinAlignment || *alignment > kMaxAlignment ||
        !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
      return Bad(entry->offset, fmt::format("general.alignment is {}, must be a power of two from {} to {}",
                                            *alignment, kMinAlignment, kMaxAlignment));
    }
    file_.alignment_ = static_cast<uint32_t>(*alignment);
    return {};
  }

  Status ParseTensor(uint64_t index, std::vector<uint64_t>& offset_places) {
    record_ = fmt::format("tensor {} ", index);
    const uint64_t begin = pos_;
    ATTEST_ASSIGN_OR_RETURN(const std::string_view name, ReadName("name", kMaxTensorNameBytes));
    TensorInfo tensor;
    tensor.name = name;
    tensor.file = file_.file_name_;
    record_ = fmt::format("tensor {} ", Quoted(name));
    if (!names_.insert(name).second) {
      return Bad(begin, fmt::format("tensor {} appears twice", Quoted(name)), tensor.name);
    }
    ATTEST_ASSIGN_OR_RETURN(const uint32_t num_dims, Read<uint32_t>("dimension count"));
    if (num_dims < 1 || num_dims > kMaxDims) {
      return Bad(pos_ - sizeof(uint32_t),
                 fmt::format("{}dimension count is {}, must be 1 to {}", record_, num_dims, kMaxDims),
                 tensor.name);
    }
    const uint64_t dims_place = pos_;
    int64_t elements = 1;
    for (uint32_t d = 0; d < num_dims; ++d) {
      ATTEST_ASSIGN_OR_RETURN(const uint64_t dim, Read<uint64_t>("dimension"));
      if (dim < 1 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
          __builtin_mul_overflow(elements, static_cast<int64_t>(dim), &elements)) {
        return Bad(pos_ - sizeof(uint64_t),
                   fmt::format("{}dimension {} is {}; each must be at least 1 and their product at most {}",
                               record_, d, dim, std::numeric_limits<int64_t>::max()),
                   tensor.name);
      }
      tensor.shape.push_back(static_cast<int64_t>(dim));
    }
    ATTEST_RETURN_IF_ERROR(ReadTensorType(tensor));
    const int64_t row = tensor.shape[0];  // the file lists the fastest dimension first
    const int block = BlockElements(tensor.dtype);
    if (row % block != 0) {
      return Bad(dims_place,
                 fmt::format("{}row length is {}, must be a multiple of {} for type {}", record_, row, block,
                             DTypeName(tensor.dtype)),
                 tensor.name);
    }
    if (__builtin_mul_overflow(elements / block, static_cast<int64_t>(BlockBytes(tensor.dtype)),
                               &tensor.size_bytes)) {
      return Bad(dims_place,
                 fmt::format("{}has {} elements, more than {} bytes", record_, elements,
                             std::numeric_limits<int64_t>::max()),
                 tensor.name);
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    offset_places.push_back(pos_);
    ATTEST_ASSIGN_OR_RETURN(const uint64_t offset, Read<uint64_t>("offset"));
    if (offset % file_.alignment_ != 0 ||
        offset > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Bad(pos_ - sizeof(uint64_t),
                 fmt::format("{}offset is {}, must be a multiple of {} and at most {}", record_, offset,
                             file_.alignment_, std::numeric_limits<int64_t>::max()),
                 tensor.name);
    }
    tensor.file_offset = static_cast<int64_t>(offset);  // relative to the data until PlaceTensors
    file_.tensors_.push_back(std::move(tensor));
    record_.clear();
    return {};
  }

  Status ReadTensorType(TensorInfo& tensor) {
    ATTEST_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>("type"));
    const std::optional<DType> dtype = GgufTensorType(type);
    if (!dtype) {
      return BadFile(ErrorCode::kUnsupported, file_.file_name_, pos_ - sizeof(uint32_t),
                     fmt::format("{}type is {}, supported are {}", record_, DescribeGgufTensorType(type),
                                 SupportedGgufTensorTypes()),
                     tensor.name);
    }
    tensor.dtype = *dtype;
    return {};
  }

  // Turns offsets within the data into places in the file; each tensor must lie inside and alone.
  Status PlaceTensors(const std::vector<uint64_t>& offset_places) {
    const uint64_t alignment = file_.alignment_;
    file_.data_offset_ = (pos_ + alignment - 1) / alignment * alignment;
    std::vector<TensorInfo>& tensors = file_.tensors_;
    const TensorInfo* outside = nullptr;
    int64_t expected_size = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      TensorInfo& tensor = tensors[i];
      int64_t begin = 0;
      int64_t end = 0;
      if (__builtin_add_overflow(tensor.file_offset, static_cast<int64_t>(file_.data_offset_), &begin) ||
          __builtin_add_overflow(begin, tensor.size_bytes, &end)) {
        return Bad(offset_places[i],
                   fmt::format("tensor {} offset is {}, its {} bytes end beyond {}", Quoted(tensor.name),
                               tensor.file_offset, tensor.size_bytes, std::numeric_limits<int64_t>::max()),
                   tensor.name);
      }
      if (outside == nullptr && static_cast<uint64_t>(end) > bytes_.size()) outside = &tensor;
      expected_size = std::max(expected_size, end);
      tensor.file_offset = begin;
    }
    if (outside != nullptr) {
      return Bad(offset_places[static_cast<size_t>(outside - tensors.data())],
                 fmt::format("tensor {} ends at byte {}, the file is {} bytes long and should be at least {} "
                             "(download cut short?)",
                             Quoted(outside->name), outside->file_offset + outside->size_bytes, bytes_.size(),
                             expected_size),
                 outside->name);
    }
    std::vector<size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return tensors[i].file_offset; });
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      const TensorInfo& first = tensors[order[i]];
      const TensorInfo& second = tensors[order[i + 1]];
      if (first.file_offset + first.size_bytes <= second.file_offset) continue;
      return Bad(
          offset_places[order[i + 1]],
          fmt::format("tensor {} begins at byte {}, inside tensor {} which ends at {}", Quoted(second.name),
                      second.file_offset, Quoted(first.name), first.file_offset + first.size_bytes),
          second.name);
    }
    for (TensorInfo& tensor : tensors) tensor.data = bytes_.data() + tensor.file_offset;
    return {};
  }

  std::span<const std::byte> bytes_;
  GgufFile file_;
  uint64_t pos_ = 0;
  std::string record_;  // "metadata 'KEY' " or "tensor 'NAME' ", the start of messages
  std::unordered_set<std::string_view> names_;
};

Expected<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, std::string file_name) {
  return GgufParser(bytes, std::move(file_name)).Run();
}

}  // namespace attest
