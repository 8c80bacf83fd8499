// Whether this binary is built with AddressSanitizer or ThreadSanitizer: g++ says so with macros, clang with
// __has_feature.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define ATTEST_TESTS_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define ATTEST_TESTS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTEST_TESTS_ASAN 1
#elif __has_feature(thread_sanitizer)
#define ATTEST_TESTS_TSAN 1
#endif
#endif
#ifndef ATTEST_TESTS_ASAN
#define ATTEST_TESTS_ASAN 0
#endif
#ifndef ATTEST_TESTS_TSAN
#define ATTEST_TESTS_TSAN 0
#endif

namespace attest {
inline constexpr bool kSanitized = ATTEST_TESTS_ASAN || ATTEST_TESTS_TSAN;
}
