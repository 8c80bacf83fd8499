#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "io/file_error.h"
#include "io/json_events.h"

namespace attest {
namespace {

constexpr uint64_t kPrefixBytes = 8;               // the header's length
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxShapeDims = 8;
constexpr uint64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

std::optional<DType> WeightDType(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return std::nullopt;
}

// What a header holds, before anybody asks for the types of its tensors.
struct Header {
  std::vector<TensorInfo> tensors;  // dtype is set for weights only
  std::vector<std::string> dtypes;  // of each tensor, as in the file
  std::map<std::string, std::string> metadata;
};
enum class Accepts { kWeights, kAnyType };

// {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"K": "V"}}
class HeaderReader : public JsonEvents {
 public:
  HeaderReader(const std::string& file, Accepts accepts, Header& header)
      : file_(file), accepts_(accepts), header_(header) {}

  Status BeginObject(size_t offset) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kHeader;
        return {};
      case State::kTensorValue:
        state_ = State::kTensor;
        return {};
      case State::kMetadataValue:
        state_ = State::kMetadata;
        return {};
      default:
        return Unexpected("an object", offset);
    }
  }

  Status EndObject(size_t offset) override {
    switch (state_) {
      case State::kHeader:
        state_ = State::kEnd;
        return {};
      case State::kMetadata:
        state_ = State::kHeader;
        return {};
      case State::kTensor:
        state_ = State::kHeader;
        return FinishTensor(offset);
      default:
        return Unexpected("the end of an object", offset);
    }
  }

  Status BeginArray(size_t offset) override {
    if (state_ == State::kShapeValue) {
      state_ = State::kShape;
    } else if (state_ == State::kOffsetsValue) {
      state_ = State::kOffsets;
    } else {
      return Unexpected("an array", offset);
    }
    return {};
  }

  Status EndArray(size_t offset) override {
    if (state_ == State::kOffsets && offsets_.size() != 2) {
      return Bad(offset,
                 fmt::format("{}data_offsets holds {} number(s), must hold 2", Record(), offsets_.size()));
    }
    state_ = State::kTensor;
    return {};
  }

  Status Key(std::string_view key, size_t offset) override {
    switch (state_) {
      case State::kHeader:
        return BeginEntry(key, offset);
      case State::kMetadata:
        state_ = State::kMetadataItem;
        metadata_key_ = key;
        return {};
      default:
        return BeginField(key, offset);
    }
  }

  Status String(std::string_view value, size_t offset) override {
    if (state_ == State::kMetadataItem) {
      state_ = State::kMetadata;
      if (accepts_ == Accepts::kAnyType && !header_.metadata.emplace(metadata_key_, value).second) {
        return Bad(offset, fmt::format("__metadata__ has {} twice", Quoted(metadata_key_)));
      }
      return {};
    }
    if (state_ != State::kDType) return Unexpected(Quoted(value), offset);
    state_ = State::kTensor;
    return TakeDType(value, offset);
  }

  Status Unsigned(uint64_t value, size_t offset) override {
    if (state_ == State::kShape) {
      if (current_.shape.size() == kMaxShapeDims || value > kMaxInt64) {
        return Bad(offset, fmt::format("{}shape has {} as dimension {}; at most {} dimensions of at most {}",
                                       Record(), value, current_.shape.size(), kMaxShapeDims, kMaxInt64));
      }
      current_.shape.push_back(static_cast<int64_t>(value));
      return {};
    }
    if (state_ == State::kOffsets) {
      if (offsets_.size() == 2) {
        return Bad(offset, fmt::format("{}data_offsets holds more than 2 numbers", Record()));
      }
      offsets_.push_back(value);
      return {};
    }
    return Unexpected(fmt::format("{}", value), offset);
  }

  Status Other(std::string_view text, size_t offset) override {
    if (state_ == State::kOffsets || state_ == State::kShape) {
      return Bad(offset, fmt::format("{}{} holds {}, must be a whole number of at least 0", Record(),
                                     state_ == State::kShape ? "shape" : "data_offsets", text.substr(0, 32)));
    }
    return Unexpected(text.substr(0, 32), offset);
  }

  // For each tensor its data_offsets, relative to the data section.
  struct Range {
    uint64_t begin, end;
    uint64_t place;  // where the tensor's description ends in the file, for messages
  };
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  // What may come next: *Value states wait for the named value, the others are inside it.
  enum class State {
    kStart,
    kHeader,
    kMetadataValue,
    kMetadata,
    kMetadataItem,
    kTensorValue,
    kTensor,
    kDType,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd,
  };

  [[nodiscard]] std::string Record() const { return fmt::format("tensor {} ", Quoted(current_.name)); }
  [[nodiscard]] std::unexpected<Error> Bad(size_t offset, std::string_view problem) const {
    return BadFile(file_, kPrefixBytes + offset, problem, current_.name);
  }
  [[nodiscard]] std::unexpected<Error> Unexpected(std::string_view what, size_t offset) const {
    switch (state_) {
      case State::kStart:
        return Bad(offset, fmt::format("header is {}, must be an object", what));
      case State::kMetadataValue:
      case State::kMetadataItem:
        return Bad(offset, fmt::format("__metadata__ holds {}, must be an object of strings", what));
      case State::kTensorValue:
        return Bad(offset, fmt::format("{}is {}, must be an object", Record(), what));
      case State::kDType:
        return Bad(offset, fmt::format("{}dtype is {}, must be a string", Record(), what));
      case State::kShapeValue:
      case State::kOffsetsValue:
        return Bad(offset, fmt::format("{}{} is {}, must be an array of whole numbers", Record(),
                                       state_ == State::kShapeValue ? "shape" : "data_offsets", what));
      default:
        return Bad(offset, fmt::format("{}holds {} where a whole number belongs", Record(), what));
    }
  }

  Status BeginEntry(std::string_view key, size_t offset) {
    current_ = TensorInfo{};
    current_.name = key;
    current_.file = file_;
    if (!names_.emplace(key).second) {
      return Bad(offset, fmt::format("tensor {} appears twice", Quoted(key)));
    }
    if (key == "__metadata__") {
      state_ = State::kMetadataValue;
      return {};
    }
    if (key.empty() || !IsPrintableName(key)) {
      return Bad(offset, fmt::format("tensor name {} is empty or holds a control byte", Quoted(key)));
    }
    offsets_.clear();
    has_dtype_ = has_shape_ = has_offsets_ = false;
    state_ = State::kTensorValue;
    return {};
  }

  Status BeginField(std::string_view key, size_t offset) {
    bool* seen = nullptr;
    if (key == "dtype") {
      seen = &has_dtype_;
      state_ = State::kDType;
    } else if (key == "shape") {
      seen = &has_shape_;
      state_ = State::kShapeValue;
    } else if (key == "data_offsets") {
      seen = &has_offsets_;
      state_ = State::kOffsetsValue;
    } else {
      return Bad(offset, fmt::format("{}has a field {}, known are dtype, shape and data_offsets", Record(),
                                     Quoted(key)));
    }
    if (*seen) return Bad(offset, fmt::format("{}has {} twice", Record(), key));
    *seen = true;
    return {};
  }

  Status TakeDType(std::string_view name, size_t offset) {
    const std::optional<DType> weight = WeightDType(name);
    element_bytes_ = SafetensorsElementBytes(name);
    if (accepts_ == Accepts::kWeights ? !weight : element_bytes_ == 0) {
      return BadFile(ErrorCode::kUnsupported, file_, kPrefixBytes + offset,
                     fmt::format("{}dtype is {}, supported are {}", Record(), Quoted(name),
                                 accepts_ == Accepts::kWeights ? "F32, F16 and BF16"
                                                               : "the types of 1, 2, 4 and 8 bytes"),
                     current_.name);
    }
    dtype_name_ = name;
    if (weight) current_.dtype = *weight;
    return {};
  }

  Status FinishTensor(size_t offset) {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return Bad(offset, fmt::format("{}has no {}", Record(),
                                     !has_dtype_   ? "dtype"
                                     : !has_shape_ ? "shape"
                                                   : "data_offsets"));
    }
    current_.size_bytes = element_bytes_;
    for (const int64_t dim : current_.shape) {
      if (__builtin_mul_overflow(current_.size_bytes, dim, &current_.size_bytes)) {
        return Bad(offset, fmt::format("{}shape has dimension {}: more than {} bytes in all", Record(), dim,
                                       kMaxInt64));
      }
    }
    ranges_.push_back({offsets_[0], offsets_[1], kPrefixBytes + offset});
    header_.tensors.push_back(std::move(current_));
    header_.dtypes.push_back(std::move(dtype_name_));
    current_ = TensorInfo{};
    return {};
  }

  const std::string& file_;
  const Accepts accepts_;
  Header& header_;
  std::vector<Range> ranges_;
  std::unordered_set<std::string> names_;
  State state_ = State::kStart;
  std::string metadata_key_;
  TensorInfo current_;
  std::string dtype_name_;
  int element_bytes_ = 0;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

// The header's text, or why this is no safetensors file.
Expected<std::string_view> FindHeader(std::span<const std::byte> bytes, const std::string& file) {
  if (LooksLikeText(bytes)) return BadFile(file, 0, "not a safetensors file (looks like text)");
  if (bytes.size() < kPrefixBytes) {
    return BadFile(
        file, 0,
        fmt::format("header length takes {} bytes, the file is {} bytes long", kPrefixBytes, bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const uint64_t limit = std::min<uint64_t>(bytes.size() - kPrefixBytes, kMaxHeaderBytes);
  if (length < 2 || length > limit) {
    return BadFile(file, 0,
                   fmt::format("header length is {}, must be 2 to {} (the file is {} bytes long)", length,
                               limit, bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kPrefixBytes, length);
  if (text[0] != '{') {
    return BadFile(file, kPrefixBytes,
                   fmt::format("header begins with {}, must begin with '{{'", Quoted(text.substr(0, 1))));
  }
  return text;
}

Expected<Header> ReadHeader(std::span<const std::byte> bytes, const std::string& file_name, Accepts accepts) {
  ATTEST_ASSIGN_OR_RETURN(const std::string_view text, FindHeader(bytes, file_name));
  Header header;
  std::vector<TensorInfo>& tensors = header.tensors;
  HeaderReader reader(file_name, accepts, header);
  ATTEST_RETURN_IF_ERROR(ReadJson(text, file_name, kPrefixBytes, reader));

  const uint64_t data_offset = kPrefixBytes + text.size();
  const uint64_t data_bytes = bytes.size() - data_offset;
  const auto& ranges = reader.ranges();
  uint64_t expected_bytes = 0;
  std::string_view last;  // the tensor that ends there
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorInfo& tensor = tensors[i];
    const auto& range = ranges[i];
    const std::string name = Quoted(tensor.name);
    if (range.begin > range.end || range.end > kMaxInt64 - data_offset) {
      return BadFile(file_name, range.place,
                     fmt::format("tensor {} data_offsets are [{}, {}], must ascend and end at most at {}",
                                 name, range.begin, range.end, kMaxInt64 - data_offset),
                     tensor.name);
    }
    if (range.end - range.begin != static_cast<uint64_t>(tensor.size_bytes)) {
      return BadFile(file_name, range.place,
                     fmt::format("tensor {} data_offsets are [{}, {}], {} bytes, but dtype and shape need {}",
                                 name, range.begin, range.end, range.end - range.begin, tensor.size_bytes),
                     tensor.name);
    }
    if (range.end > expected_bytes) {
      expected_bytes = range.end;
      last = tensor.name;
    }
    tensor.file_offset = static_cast<int64_t>(data_offset + range.begin);
  }
  // One comparison for all: a shard cut short and one with bytes nobody describes.
  if (expected_bytes != data_bytes) {
    return BadFile(file_name, data_offset,
                   fmt::format("the tensors up to {} need a file of {} bytes, it is {} bytes long{}",
                               Quoted(last), data_offset + expected_bytes, bytes.size(),
                               expected_bytes > data_bytes ? " (download cut short?)" : ""),
                   std::string(last));
  }
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(ranges[i].begin, ranges[i].end); });
  uint64_t next = 0;
  for (const size_t i : order) {
    if (ranges[i].begin != next) {
      return BadFile(
          file_name, ranges[i].place,
          fmt::format(
              "tensor {} data begins at {}, {} {}", Quoted(tensors[i].name), ranges[i].begin,
              ranges[i].begin < next ? "inside the tensor before it, which ends at" : "leaving a hole after",
              next),
          tensors[i].name);
    }
    next = ranges[i].end;
  }
  for (TensorInfo& tensor : tensors) tensor.data = bytes.data() + tensor.file_offset;
  return header;
}

}  // namespace

int SafetensorsElementBytes(std::string_view dtype) {
  struct Type {
    std::string_view name;
    int bytes;
  };
  constexpr Type kTypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                             {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                             {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  const auto* found = std::ranges::find(kTypes, dtype, &Type::name);
  return found == std::end(kTypes) ? 0 : found->bytes;
}

Expected<std::vector<TensorInfo>> ParseSafetensors(std::span<const std::byte> bytes,
                                                   const std::string& file_name) {
  ATTEST_ASSIGN_OR_RETURN(Header header, ReadHeader(bytes, file_name, Accepts::kWeights));
  return std::move(header.tensors);
}

Expected<SafetensorsFile> ParseSafetensorsFile(std::span<const std::byte> bytes,
                                               const std::string& file_name) {
  ATTEST_ASSIGN_OR_RETURN(Header header, ReadHeader(bytes, file_name, Accepts::kAnyType));
  SafetensorsFile file{.entries = {}, .metadata = std::move(header.metadata)};
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    TensorInfo& tensor = header.tensors[i];
    file.entries.push_back({.name = std::move(tensor.name),
                            .dtype = std::move(header.dtypes[i]),
                            .shape = std::move(tensor.shape),
                            .data = {tensor.data, static_cast<size_t>(tensor.size_bytes)}});
  }
  return file;
}

}  // namespace attest
