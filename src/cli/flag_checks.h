// Checks of flags' values that CLI11 has not, for command_line.cc.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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

// A word that stands for another value: "half" for "float16".
inline CLI::Validator Meaning(std::map<std::string, std::string> words) {
  return {[words = std::move(words)](std::string& text) {
            if (const auto found = words.find(text); found != words.end()) text = found->second;
            return std::string();
          },
          ""};
}

// vLLM's short numbers: 4k is 4,000 and 4K 4,096; 1.5m is 1,500,000. What is none is left to the next check.
inline CLI::Validator ShortNumber() {
  return {[](std::string& text) {
            constexpr std::string_view kDecimal = "kmgt", kBinary = "KMGT";
            if (text.empty() || text.find_first_not_of("0123456789.") != text.size() - 1)
              return std::string();
            const bool is_binary = kBinary.contains(text.back());
            const size_t power = (is_binary ? kBinary : kDecimal).find(text.back());
            double number = 0;
            if (power == std::string_view::npos ||
                !CLI::detail::lexical_cast(text.substr(0, text.size() - 1), number))
              return std::string();
            for (size_t i = 0; i <= power; ++i) number *= is_binary ? 1024 : 1000;
            if (number == std::trunc(number) && number < 1e15) text = fmt::format("{:.0f}", number);
            return std::string();
          },
          ""};
}

inline CLI::Validator NotEmpty() {
  return {[](std::string& text) { return text.empty() ? "must not be empty" : std::string(); }, ""};
}

// What no client could send as a bearer token is refused, without showing it.
inline CLI::Validator ApiKey() {
  return {[](std::string& text) {
            const bool is_sent = !text.empty() && text.front() != ' ' && text.back() != ' ' &&
                                 std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
            return is_sent
                       ? std::string()
                       : "a key must be one or more printable ASCII characters, with no blank at its ends";
          },
          ""};
}

// The grammar of Prometheus; its library throws on other names.
inline CLI::Validator MetricsPrefix() {
  return {[](std::string& text) {
            const auto is_letter = [](char c) {
              return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
            };
            const bool is_name =
                (text.empty() || is_letter(text.front())) &&
                std::ranges::all_of(text, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
            return is_name ? std::string()
                           : fmt::format("Value {} is not made of letters, digits, '_' and ':'", text);
          },
          ""};
}

}  // namespace attest
