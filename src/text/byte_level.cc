#include "text/byte_level.h"

#include <cstdint>

#include "text/unicode.h"

namespace attest {
namespace {

constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

const std::array<char32_t, 256>& ByteLevelAlphabet() {
  static const std::array<char32_t, 256> kAlphabet = [] {
    std::array<char32_t, 256> alphabet{};
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      alphabet[static_cast<size_t>(byte)] = IsPrintable(byte) ? static_cast<char32_t>(byte) : next++;
    }
    return alphabet;
  }();
  return kAlphabet;
}

std::optional<std::string> ByteLevelToBytes(std::string_view token) {
  static const std::array<int16_t, 324> kByteOf = [] {
    std::array<int16_t, 324> byte_of{};
    byte_of.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      byte_of[ByteLevelAlphabet()[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
    }
    return byte_of;
  }();
  std::string bytes;
  const char* p = token.data();
  const char* end = p + token.size();
  while (p < end) {
    const Utf8Step step = StepUtf8(p, end);
    if (step.kind != Utf8Step::kValid || step.code_point >= kByteOf.size()) return std::nullopt;
    const int16_t byte = kByteOf[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    p += step.length;
  }
  return bytes;
}

}  // namespace attest
