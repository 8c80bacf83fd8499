#include <fmt/format.h>

#include <cmath>

#include "text/jinja/builtins.h"

namespace attest::jinja {

Value Arithmetic(const std::string& op, const Value& left, const Value& right, int line) {
  if (op == "/" || op == "//" || op == "%") {
    if (right.number() == 0) throw RenderError(line, "division by zero");
  }
  if (left.is_integer() && right.is_integer() && op != "/") {
    const int64_t a = left.integer(), b = right.integer();
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (op == "**") {
      const double power = std::pow(static_cast<double>(a), static_cast<double>(b));
      if (b < 0) return power;
      overflow = !(std::fabs(power) < 9e15);
      result = overflow ? 0 : std::llround(power);
    } else if (b == -1) {  // INT64_MIN / -1
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {  // floor, as in Python
      const int64_t remainder = a % b;
      const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
      result = op == "//" ? a / b - (adjust ? 1 : 0) : remainder + (adjust ? b : 0);
    }
    if (overflow) throw RenderError(line, fmt::format("integer overflow in {} {} {}", a, op, b));
    return result;
  }
  const double a = left.number(), b = right.number();
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return a / b;
  if (op == "**") return std::pow(a, b);
  if (op == "//") return std::floor(a / b);
  return a - b * std::floor(a / b);
}

}  // namespace attest::jinja
