#include "io/file_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace attest {
namespace {

bool IsControl(unsigned char byte) { return byte < 0x20 || byte == 0x7f; }

}  // namespace

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 96;
  std::string out = "'";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsControl(byte) || byte >= 0x80 || c == '\'' || c == '\\') {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += text.size() > kMaxBytes ? "...'" : "'";
  return out;
}

std::unexpected<Error> FailOnOneLine(ErrorCode code, std::string message, std::string field) {
  std::ranges::replace_if(message, [](char c) { return IsControl(static_cast<unsigned char>(c)); }, '?');
  return Fail(code, std::move(message), std::move(field));
}

std::unexpected<Error> BadFile(ErrorCode code, std::string_view file, uint64_t offset,
                               std::string_view problem, std::string field) {
  return FailOnOneLine(code, fmt::format("{}: byte {}: {}", file, offset, problem), std::move(field));
}

std::unexpected<Error> BadFile(std::string_view file, uint64_t offset, std::string_view problem,
                               std::string field) {
  return BadFile(ErrorCode::kCorruptFile, file, offset, problem, std::move(field));
}

bool LooksLikeText(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  return std::ranges::all_of(bytes.first(std::min<size_t>(bytes.size(), 8)), [](std::byte value) {
    const auto byte = static_cast<unsigned char>(value);
    return byte == '\t' || byte == '\n' || byte == '\r' || (byte < 0x80 && !IsControl(byte));
  });
}

bool IsPrintableName(std::string_view name) {
  return std::ranges::none_of(name, [](char c) { return IsControl(static_cast<unsigned char>(c)); });
}

}  // namespace attest
