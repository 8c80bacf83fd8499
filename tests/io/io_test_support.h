// Helpers of the io tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace attest {

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A one-line error whose message holds `part`.
template <class T>
void ExpectError(const Expected<T>& result, std::string_view part) {
  ASSERT_FALSE(result.has_value()) << "expected an error with: " << part;
  const std::string& message = result.error().message;
  EXPECT_NE(message.find(part), std::string::npos) << "message: " << message << "\nwanted: " << part;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000u) << message;
}

}  // namespace attest
