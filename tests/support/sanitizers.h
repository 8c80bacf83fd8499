// Whether this binary is built with AddressSanitizer or ThreadSanitizer: g++ says so with macros, clang with
// __has_feature.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTEST_TESTS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTEST_TESTS_SANITIZED 1
#endif
#endif
#ifndef ATTEST_TESTS_SANITIZED
#define ATTEST_TESTS_SANITIZED 0
#endif

namespace attest {
inline constexpr bool kSanitized = ATTEST_TESTS_SANITIZED != 0;
}
