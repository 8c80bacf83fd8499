#include "bindings/tensors.h"

#include <algorithm>
#include <limits>

namespace attest::bindings {
namespace {

std::string Names(std::span<const DType> dtypes) {
  std::string text;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    text += i == 0 ? "" : i + 1 == dtypes.size() ? " or " : ", ";
    text += DTypeName(dtypes[i]);
  }
  return text;
}

// Elements from the first to past the last; nullopt when that many bytes cannot be addressed.
std::optional<int64_t> SpanOf(const attest_tensor& tensor, int first_axis, int64_t element_bytes) {
  int64_t last = 0;
  for (int i = first_axis; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return 0;
    int64_t step = 0;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return std::nullopt;
    }
  }
  if (last >= std::numeric_limits<int64_t>::max() / element_bytes) return std::nullopt;
  return last + 1;
}

// Whether two index tuples may name one element: taken from the smallest stride up, each axis must step over
// what the axes before it cover.
bool MayRepeat(const attest_tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, shape
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return false;  // no element at all
    if (tensor.shape[i] > 1) axes.emplace_back(tensor.stride[i], tensor.shape[i]);
  }
  std::ranges::sort(axes);
  int64_t covered = 1;
  for (const auto& [stride, shape] : axes) {
    if (stride < covered) return true;
    covered += (shape - 1) * stride;
  }
  return false;
}

}  // namespace

std::optional<DType> DTypeOf(int32_t dtype) {
  switch (dtype) {
    case ATTEST_F32:
      return DType::kF32;
    case ATTEST_F16:
      return DType::kF16;
    case ATTEST_BF16:
      return DType::kBF16;
    case ATTEST_F8_E4M3FN:
      return DType::kF8E4M3;
    case ATTEST_F8_E5M2:
      return DType::kF8E5M2;
    case ATTEST_I8:
      return DType::kI8;
    default:
      return std::nullopt;
  }
}

bool CheckTensor(const attest_tensor& tensor, const TensorRule& rule, Reasons& reasons) {
  const size_t before = reasons.list().size() + reasons.left_out();
  const auto field = [&](const char* member) { return fmt::format("{}.{}", rule.name, member); };
  const std::optional<DType> dtype = DTypeOf(tensor.dtype);
  if (!dtype) {
    reasons.Add(field("dtype"), tensor.dtype, Names(rule.dtypes));
  } else if (std::ranges::find(rule.dtypes, *dtype) == rule.dtypes.end()) {
    reasons.Add(field("dtype"), DTypeName(*dtype), Names(rule.dtypes));
  }
  if (tensor.rank != static_cast<int32_t>(rule.shape.size())) {
    reasons.Add(field("rank"), tensor.rank, fmt::format("{}", rule.shape.size()));
    return false;
  }
  bool is_empty = false;
  for (int i = 0; i < tensor.rank; ++i) {
    const Extent& extent = rule.shape[static_cast<size_t>(i)];
    if (extent.at_least ? tensor.shape[i] < extent.size : tensor.shape[i] != extent.size) {
      reasons.Add(fmt::format("{}.shape[{}]", rule.name, i), tensor.shape[i],
                  fmt::format("{}{}", extent.at_least ? ">= " : "", extent.size));
    }
    is_empty = is_empty || tensor.shape[i] == 0;
    if (tensor.stride[i] < 0) {
      reasons.Add(fmt::format("{}.stride[{}]", rule.name, i), tensor.stride[i], ">= 0");
    }
  }
  const int last = tensor.rank - 1;
  if (rule.dense_last && tensor.shape[last] > 1 && tensor.stride[last] != 1) {
    reasons.Add(fmt::format("{}.stride[{}]", rule.name, last), tensor.stride[last], "1");
  }
  if (reasons.list().size() + reasons.left_out() != before)
    return false;  // what follows takes these for granted
  const int64_t bytes = BlockBytes(*dtype);
  const std::optional<int64_t> span = SpanOf(tensor, 0, bytes);
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (!span || static_cast<uintptr_t>(*span * bytes) > std::numeric_limits<uintptr_t>::max() - address) {
    reasons.Add(rule.name, "past the address space", "strides and shape that fit memory");
    return false;
  }
  if (!is_empty && tensor.data == nullptr) reasons.Add(field("data"), "NULL", "an address");
  if (address % static_cast<uintptr_t>(bytes) != 0) {
    reasons.Add(field("data"), fmt::format("{:#x}", address), fmt::format("aligned to {} bytes", bytes));
  }
  if (rule.is_output && MayRepeat(tensor)) {
    std::string strides;
    for (int i = 0; i < tensor.rank; ++i)
      strides += fmt::format("{}{}", i == 0 ? "" : ", ", tensor.stride[i]);
    reasons.Add(field("stride"), fmt::format("[{}]", strides), "strides that never name one element twice");
  }
  return reasons.list().size() + reasons.left_out() == before;
}

bool CheckOptional(const attest_tensor& tensor, bool wanted, const char* flag, const TensorRule& rule,
                   Reasons& reasons) {
  if (!wanted) {
    reasons.Require(tensor.data == nullptr, fmt::format("{}.data", rule.name).c_str(), "given",
                    fmt::format("NULL: the spec's {} is 0", flag));
    return tensor.data == nullptr;
  }
  if (tensor.data == nullptr) {
    reasons.Add(fmt::format("{}.data", rule.name), "NULL",
                fmt::format("an address: the spec's {} is 1", flag));
    return false;
  }
  return CheckTensor(tensor, rule, reasons);
}

Region RegionOf(const char* name, const attest_tensor& tensor) {
  const int64_t bytes = BlockBytes(DTypeOf(tensor.dtype).value_or(DType::kI8));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
  const auto span = static_cast<uintptr_t>(SpanOf(tensor, 0, bytes).value_or(0) * bytes);
  return {.name = name,
          .begin = begin,
          .end = begin + span,
          .row_bytes = tensor.rank > 1 ? tensor.stride[0] * bytes : 0,
          .row_span = tensor.rank > 1 ? SpanOf(tensor, 1, bytes).value_or(0) * bytes : 0};
}

namespace {

bool Overlap(const Region& a, const Region& b) {
  if (a.begin >= a.end || b.begin >= b.end || a.end <= b.begin || b.end <= a.begin) return false;
  if (a.row_bytes > 0 && a.row_bytes == b.row_bytes) {
    const Region& low = a.begin <= b.begin ? a : b;
    const Region& high = a.begin <= b.begin ? b : a;
    const auto offset = static_cast<int64_t>((high.begin - low.begin) % static_cast<uintptr_t>(a.row_bytes));
    if (offset >= low.row_span && offset + high.row_span <= a.row_bytes) return false;
  }
  return true;
}

}  // namespace

void CheckOverlap(std::span<const Region> outputs, std::span<const Region> inputs, Reasons& reasons) {
  const auto check = [&reasons](const Region& out, const Region& other) {
    if (!Overlap(out, other)) return;
    reasons.Add(out.name, fmt::format("bytes [{:#x}, {:#x})", out.begin, out.end),
                fmt::format("no overlap with {} at [{:#x}, {:#x})", other.name, other.begin, other.end));
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const Region& input : inputs) check(outputs[i], input);
    for (size_t j = i + 1; j < outputs.size(); ++j) check(outputs[i], outputs[j]);
  }
}

PagedKv PagesOf(const attest_tensor& k, const attest_tensor& v) {
  const auto pages = [](const attest_tensor& t) {
    return KvPages{
        .data = t.data, .block_stride = t.stride[0], .head_stride = t.stride[1], .slot_stride = t.stride[2]};
  };
  return {.k = pages(k),
          .v = pages(v),
          .dtype = DTypeOf(k.dtype).value_or(DType::kF32),
          .num_blocks = k.shape[0],
          .block_size = static_cast<int>(k.shape[2]),
          .kv_heads = static_cast<int>(k.shape[1]),
          .head_dim = static_cast<int>(k.shape[3]),
          .v_head_dim = static_cast<int>(v.shape[3])};
}

}  // namespace attest::bindings
