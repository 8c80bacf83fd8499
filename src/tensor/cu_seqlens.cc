#include "tensor/cu_seqlens.h"

#include <fmt/format.h>

#include <limits>

namespace attest {

Expected<CuSeqlens> CuSeqlens::FromLengths(std::span<const int32_t> lengths) {
  CuSeqlens result;
  result.offsets_.reserve(lengths.size() + 1);
  int64_t sum = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) {
      return Fail(ErrorCode::kInvalidArgument, fmt::format("q_len[{}] is {}, expected >= 0", i, lengths[i]),
                  "q_len");
    }
    sum += lengths[i];
    if (sum > std::numeric_limits<int32_t>::max()) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("q_len[{}] makes the total {}, limit {}", i, sum, std::numeric_limits<int32_t>::max()),
          "q_len");
    }
    result.offsets_.push_back(static_cast<int32_t>(sum));
  }
  return result;
}

Expected<CuSeqlens> CuSeqlens::FromOffsets(std::span<const int32_t> offsets, int64_t total) {
  if (offsets.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "cu_seqlens has 0 entries, expected num_seqs + 1", "cu_seqlens");
  }
  if (offsets[0] != 0) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("cu_seqlens[0] is {}, expected 0", offsets[0]),
                "cu_seqlens");
  }
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("cu_seqlens[{}] is {}, below cu_seqlens[{}] = {}", i, offsets[i], i - 1,
                              offsets[i - 1]),
                  "cu_seqlens");
    }
  }
  if (offsets.back() != total) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("cu_seqlens[{}] is {}, expected the total {}", offsets.size() - 1, offsets.back(), total),
        "cu_seqlens");
  }
  CuSeqlens result;
  result.offsets_.assign(offsets.begin(), offsets.end());
  return result;
}

}  // namespace attest
