// Checks for bugs of ours: both values are printed, then the process stops. Always on: a wrong number that is
// served is worse than a process that stops. Values from outside are never checked here (see base/error.h).
#pragma once

#include <functional>
#include <sstream>
#include <string>

namespace attest {

[[noreturn]] void CheckFailed(const char* file, int line, const std::string& what);

// What the thread whose check failed, or whose exception nobody caught, does before the process ends; a
// second failure meanwhile ends it at once. An empty function takes the last one back. Set while no check can
// fail.
void SetLastWords(std::function<void(const std::string& what)> last_words);

namespace internal {
template <class A, class B>
std::string DescribeCheck(const char* text, const A& a, const B& b) {
  std::ostringstream out;
  out << text << " (" << a << " vs " << b << ")";
  return out.str();
}
}  // namespace internal

}  // namespace attest

#define ATTEST_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::attest::CheckFailed(__FILE__, __LINE__, #condition))
#define ATTEST_CHECK_OP(a, op, b)                                                                      \
  do {                                                                                                 \
    const auto& attest_a = (a);                                                                        \
    const auto& attest_b = (b);                                                                        \
    if (!(attest_a op attest_b)) {                                                                     \
      ::attest::CheckFailed(__FILE__, __LINE__,                                                        \
                            ::attest::internal::DescribeCheck(#a " " #op " " #b, attest_a, attest_b)); \
    }                                                                                                  \
  } while (false)
#define ATTEST_CHECK_EQ(a, b) ATTEST_CHECK_OP(a, ==, b)
#define ATTEST_CHECK_LE(a, b) ATTEST_CHECK_OP(a, <=, b)
#define ATTEST_CHECK_LT(a, b) ATTEST_CHECK_OP(a, <, b)
#define ATTEST_CHECK_GE(a, b) ATTEST_CHECK_OP(a, >=, b)
#define ATTEST_CHECK_GT(a, b) ATTEST_CHECK_OP(a, >, b)
