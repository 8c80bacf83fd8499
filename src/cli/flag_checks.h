// Checks of flags' values that CLI11 has not, for command_line.cc.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace attest {

// CLI::Range lets a NaN through, which is neither below nor above its bounds.
inline CLI::Validator NumberIn(double low, double high) {
  const CLI::Range range(low, high);
  return {[=](std::string& text) {
            double value = 0;
            const bool is_nan = CLI::detail::lexical_cast(text, value) && value != value;
            return is_nan ? fmt::format("Value {} not in range {} to {}", text, low, high) : range(text);
          },
          range.get_description()};
}

// CLI11 reads -1 as the largest number that has no sign.
inline CLI::Validator NoSign() {
  return {[](std::string& text) {
            return text.contains('-') ? fmt::format("Value {} is negative", text) : std::string();
          },
          ""};
}

}  // namespace attest
