#include "model/tensor_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace attest {
namespace {

// Row `from` of a head in interleaved order -> its row in half-split order: 2 i + j -> j * head_dim / 2 + i.
int64_t HalfSplitRow(int64_t from, int64_t head_dim) { return from % 2 * (head_dim / 2) + from / 2; }

template <class T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, f16>) return ToF16(value);
  if constexpr (std::is_same_v<T, bf16>) return ToBf16(value);
  if constexpr (std::is_same_v<T, float>) return value;
}

template <class From, class To>
void ConvertElements(const std::byte* from, std::vector<std::byte>& to) {
  const size_t count = to.size() / sizeof(To);
  for (size_t i = 0; i < count; ++i) {
    From value;  // unaligned, as in Widen
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const To converted = FromFloat<To>(ToFloat(value));
    std::memcpy(to.data() + i * sizeof(To), &converted, sizeof(To));
  }
}

template <class From>
void ConvertFrom(const std::byte* from, DType to_dtype, std::vector<std::byte>& to) {
  switch (to_dtype) {
    case DType::kF32:
      return ConvertElements<From, float>(from, to);
    case DType::kF16:
      return ConvertElements<From, f16>(from, to);
    case DType::kBF16:
      return ConvertElements<From, bf16>(from, to);
    default:
      ATTEST_CHECK(false);
  }
}

template <class T>
void Widen(const TensorInfo& tensor, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;  // a file may place a tensor at any byte, so no aligned load
    std::memcpy(&value, tensor.data + i * sizeof(T), sizeof(T));
    out[i] = ToFloat(value);
  }
}

}  // namespace

TensorSource::TensorSource(const Checkpoint& checkpoint, std::optional<DType> plain_dtype,
                           const Progress& progress)
    : checkpoint_(checkpoint), plain_dtype_(plain_dtype), progress_(progress) {
  for (const TensorInfo& tensor : checkpoint.tensors()) total_bytes_ += tensor.size_bytes;
}

Expected<const TensorInfo*> TensorSource::Take(const std::string& name, const std::vector<int64_t>& shape) {
  const TensorInfo* tensor = checkpoint_.FindTensor(name);
  if (tensor == nullptr) {
    return Fail(
        ErrorCode::kNotFound,
        fmt::format("tensor {} [{}] is not in {}", name, fmt::join(shape, ", "), checkpoint_.path().string()),
        name);
  }
  const int64_t cols = shape.back();
  if (tensor->shape != shape) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("tensor {} is {} [{}], expected [{}] from the config", name,
                            DTypeName(tensor->dtype), fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")),
                name);
  }
  if (cols % BlockElements(tensor->dtype) != 0) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("tensor {} has rows of {} elements, not a multiple of the {} of a {} block", name,
                            cols, BlockElements(tensor->dtype), DTypeName(tensor->dtype)),
                name);
  }
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  const int64_t expected_bytes = rows * RowBytes(tensor->dtype, cols);
  if (tensor->size_bytes != expected_bytes) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("tensor {} has {} bytes, expected {} for {} [{}]", name, tensor->size_bytes,
                            expected_bytes, DTypeName(tensor->dtype), fmt::join(shape, ", ")),
                name);
  }
  taken_.insert(name);
  in_use_.push_back(tensor);
  return tensor;
}

Expected<StoredMatrix> TensorSource::Matrix(const std::string& name, int64_t rows, int64_t cols) {
  ATTEST_ASSIGN_OR_RETURN(const TensorInfo* tensor, Take(name, {rows, cols}));
  StoredMatrix matrix{.data = tensor->data, .dtype = tensor->dtype, .rows = rows, .cols = cols};
  const bool is_plain =
      matrix.dtype == DType::kF32 || matrix.dtype == DType::kF16 || matrix.dtype == DType::kBF16;
  if (!is_plain || !plain_dtype_ || *plain_dtype_ == matrix.dtype) return matrix;
  std::vector<std::byte>& copy =
      copies_.emplace_back(static_cast<size_t>(rows * RowBytes(*plain_dtype_, cols)));
  switch (matrix.dtype) {
    case DType::kF32:
      ConvertFrom<float>(matrix.data, *plain_dtype_, copy);
      break;
    case DType::kF16:
      ConvertFrom<f16>(matrix.data, *plain_dtype_, copy);
      break;
    default:
      ConvertFrom<bf16>(matrix.data, *plain_dtype_, copy);
      break;
  }
  matrix.data = copy.data();
  matrix.dtype = *plain_dtype_;
  return matrix;
}

Expected<StoredMatrix> TensorSource::HeadMatrix(const std::string& name, int64_t rows, int64_t cols,
                                                int heads, HeadRowOrder order) {
  ATTEST_ASSIGN_OR_RETURN(StoredMatrix matrix, Matrix(name, rows, cols));
  if (order == HeadRowOrder::kHalfSplit) return matrix;
  ATTEST_CHECK_EQ(rows % heads, 0);
  const int64_t head_dim = rows / heads;
  ATTEST_CHECK_EQ(head_dim % 2, 0);
  const int64_t row_bytes = RowBytes(matrix.dtype, cols);
  std::vector<std::byte>& copy = copies_.emplace_back(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t to = row / head_dim * head_dim + HalfSplitRow(row % head_dim, head_dim);
    std::memcpy(copy.data() + to * row_bytes, matrix.data + row * row_bytes, static_cast<size_t>(row_bytes));
  }
  matrix.data = copy.data();
  return matrix;
}

Expected<std::vector<float>> TensorSource::Vector(const std::string& name, int64_t size) {
  ATTEST_ASSIGN_OR_RETURN(const TensorInfo* tensor, Take(name, {size}));
  std::vector<float> values(static_cast<size_t>(size));
  switch (tensor->dtype) {
    case DType::kF32:
      Widen<float>(*tensor, values);
      break;
    case DType::kF16:
      Widen<f16>(*tensor, values);
      break;
    case DType::kBF16:
      Widen<bf16>(*tensor, values);
      break;
    default:
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("tensor {} is {}, expected f32, f16 or bf16", name, DTypeName(tensor->dtype)),
                  name);
  }
  return values;
}

Expected<std::vector<float>> TensorSource::HeadVector(const std::string& name, int64_t size, int heads,
                                                      HeadRowOrder order) {
  ATTEST_ASSIGN_OR_RETURN(std::vector<float> stored, Vector(name, size));
  if (order == HeadRowOrder::kHalfSplit) return stored;
  const int64_t head_dim = size / heads;
  std::vector<float> values(stored.size());
  for (int64_t row = 0; row < size; ++row) {
    const int64_t to = row / head_dim * head_dim + HalfSplitRow(row % head_dim, head_dim);
    values[static_cast<size_t>(to)] = stored[static_cast<size_t>(row)];
  }
  return values;
}

void TensorSource::Release() {
  for (const TensorInfo* tensor : in_use_) {
    checkpoint_.DropPages(*tensor);
    done_bytes_ += tensor->size_bytes;
  }
  done_bytes_ = std::min(done_bytes_, total_bytes_);  // a tensor may be taken twice
  in_use_.clear();
  copies_.clear();
  if (progress_) progress_(done_bytes_, total_bytes_);
}

Status TensorSource::CheckAllTaken(std::initializer_list<std::string_view> ignored_suffixes) const {
  const TensorInfo* first = nullptr;
  int64_t count = 0;
  for (const TensorInfo& tensor : checkpoint_.tensors()) {
    if (taken_.contains(tensor.name)) continue;
    if (std::ranges::any_of(ignored_suffixes,
                            [&](std::string_view suffix) { return tensor.name.ends_with(suffix); })) {
      continue;
    }
    if (first == nullptr) first = &tensor;
    ++count;
  }
  if (first == nullptr) return {};
  return Fail(ErrorCode::kUnsupported,
              fmt::format("tensor {} ({} [{}]) is in the checkpoint but this decoder does not use it{}; the "
                          "model would compute something else without it",
                          first->name, DTypeName(first->dtype), fmt::join(first->shape, ", "),
                          count > 1 ? fmt::format(", nor {} more", count - 1) : ""),
              first->name);
}

}  // namespace attest
