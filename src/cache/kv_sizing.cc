#include "cache/kv_sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tensor/paged_kv.h"

namespace attest {
namespace {

constexpr int64_t kPageBytes = int64_t{2} << 20;  // each layer's buffer is rounded up to this

std::string Megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

// 1234567 -> "1,234,567".
std::string Grouped(int64_t value) {
  const std::string plain = fmt::format("{}", value);
  std::string digits;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (i > 0 && (plain.size() - i) % 3 == 0) digits += ',';
    digits += plain[i];
  }
  return digits;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t AllocatedBytes(const KvShape& shape, int64_t num_blocks) {
  const int64_t buffer = KvBytesPerBlock(shape) / shape.num_buffers() * num_blocks;
  return shape.num_buffers() * CeilDiv(buffer, kPageBytes) * kPageBytes;
}

Status CheckInput(const KvSizingInput& input) {
  ATTEST_RETURN_IF_ERROR(CheckKvShape(input.shape));
  if (!(input.fraction > 0.0 && input.fraction <= 1.0)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("kv memory fraction {} is out of range (0, 1]", input.fraction), "fraction");
  }
  if (input.max_model_len < 1) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("max_model_len {} is out of range: at least 1", input.max_model_len),
                "max_model_len");
  }
  if (input.windows.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "windows is empty: at least one KV group", "windows");
  }
  if (input.max_num_seqs < 1) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("max_num_seqs {} is out of range: at least 1", input.max_num_seqs),
                "max_num_seqs");
  }
  if (input.min_context_tokens && *input.min_context_tokens < 1) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("min_context_tokens {} is out of range: at least 1", *input.min_context_tokens),
                "min_context_tokens");
  }
  if (input.num_blocks &&
      (*input.num_blocks < 2 || *input.num_blocks > std::numeric_limits<int32_t>::max())) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("num_blocks {} is out of range: at least 2 (block 0 is reserved), at most {}",
                            *input.num_blocks, std::numeric_limits<int32_t>::max()),
                "num_blocks");
  }
  return {};
}

}  // namespace

Expected<KvSizing> SizeKvCache(const KvSizingInput& input) {
  ATTEST_RETURN_IF_ERROR(CheckInput(input));
  const KvShape& shape = input.shape;
  const int64_t block_size = shape.block_size;
  const int64_t budget_bytes =
      std::max<int64_t>(0, static_cast<int64_t>(static_cast<double>(input.available_bytes) * input.fraction) -
                               input.reserve_bytes);
  const KvNeed need{
      .windows = input.windows, .block_size = shape.block_size, .max_step_tokens = input.max_step_tokens};
  // Whole 2 MiB pages of each buffer; block 0 is reserved and holds no token.
  const int64_t buffer_pages = budget_bytes / (kPageBytes * shape.num_buffers());
  const int64_t block_buffer_bytes = KvBytesPerBlock(shape) / shape.num_buffers();
  const int64_t affordable =
      std::min<int64_t>(buffer_pages * kPageBytes / block_buffer_bytes, std::numeric_limits<int32_t>::max());
  const int64_t useful = std::min<int64_t>(input.max_num_seqs * PeakBlocks(need, input.max_model_len) + 1,
                                           std::numeric_limits<int32_t>::max());

  if (input.num_blocks && *input.num_blocks > affordable) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("num_blocks {} needs {}, {} available for the KV cache", *input.num_blocks,
                            Megabytes(AllocatedBytes(shape, *input.num_blocks)), Megabytes(budget_bytes)),
                "num_blocks");
  }
  const int64_t num_blocks = input.num_blocks.value_or(std::min(affordable, useful));
  const int32_t min_tokens =
      std::min(input.min_context_tokens.value_or(input.max_model_len), input.max_model_len);
  const int64_t min_blocks = PeakBlocks(need, min_tokens) + 1;
  if (num_blocks < min_blocks) {
    const std::string needs = fmt::format("the KV cache needs {} for one sequence of {} tokens",
                                          Megabytes(AllocatedBytes(shape, min_blocks)), Grouped(min_tokens));
    if (input.num_blocks) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{} ({} blocks of {}), num_blocks is {}", needs, min_blocks, block_size, num_blocks),
          "num_blocks");
    }
    return Fail(
        ErrorCode::kResourceExhausted,
        fmt::format("{}, {} available; lower max_model_len or free memory", needs, Megabytes(budget_bytes)),
        "max_model_len");
  }

  KvSizing sizing{.num_blocks = num_blocks, .kv_bytes = AllocatedBytes(shape, num_blocks), .words = {}};
  sizing.longest_context_tokens = static_cast<int32_t>(MostTokens(need, num_blocks - 1, input.max_model_len));
  sizing.full_length_seqs = static_cast<double>(num_blocks - 1) /
                            static_cast<double>(PeakBlocks(need, sizing.longest_context_tokens));
  sizing.words = fmt::format(
      "KV cache: {} blocks of {} tokens ({}), {}: one sequence of up to {} tokens, or {:.1f} of that length "
      "at once",
      Grouped(num_blocks), block_size, DTypeName(shape.dtype), Megabytes(sizing.kv_bytes),
      Grouped(sizing.longest_context_tokens), sizing.full_length_seqs);
  return sizing;
}

}  // namespace attest
