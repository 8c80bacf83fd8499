// Errors as values. Anything that comes from outside (a file, a client, the machine, memory) and is wrong is
// returned as an `Error`; a bug of ours stops the process through ATTEST_CHECK (base/check.h).
//
// An error's message is one line that names the field, the offending value and the limit. No exception
// crosses a folder.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace attest {

enum class ErrorCode {
  kInvalidArgument,    // the caller's value is wrong (HTTP 400)
  kNotFound,           // a named thing does not exist (HTTP 404)
  kUnsupported,        // well-formed, but this build or machine cannot do it
  kCorruptFile,        // a file contradicts itself or its format
  kResourceExhausted,  // memory, blocks or queue slots ran out
  kUnavailable,        // draining, loading, or stopped; retry later (HTTP 503)
  kIo,                 // the operating system refused
  kInternal,           // should not happen; reported rather than hidden
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one line: what, which value, which limit
  std::string field;    // the parameter at fault ("max_tokens", "blk.0.attn_q.weight"), or empty
};

template <class T>
using Expected = std::expected<T, Error>;
using Status = std::expected<void, Error>;

// Returns the error ready to be returned from a function of type Expected<T> or Status.
[[nodiscard]] inline std::unexpected<Error> Fail(ErrorCode code, std::string message,
                                                 std::string field = {}) {
  return std::unexpected<Error>(Error{code, std::move(message), std::move(field)});
}

}  // namespace attest

#define ATTEST_CONCAT_INNER(a, b) a##b
#define ATTEST_CONCAT(a, b) ATTEST_CONCAT_INNER(a, b)

// ATTEST_RETURN_IF_ERROR(status_expression);
#define ATTEST_RETURN_IF_ERROR(expr)                                             \
  do {                                                                           \
    if (auto attest_status = (expr); !attest_status) {                           \
      return std::unexpected<::attest::Error>(std::move(attest_status).error()); \
    }                                                                            \
  } while (false)

// ATTEST_ASSIGN_OR_RETURN(auto file, OpenFile(path));
#define ATTEST_ASSIGN_OR_RETURN(lhs, expr) \
  ATTEST_ASSIGN_OR_RETURN_IMPL(ATTEST_CONCAT(attest_expected_, __LINE__), lhs, expr)
#define ATTEST_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr)                         \
  auto tmp = (expr);                                                         \
  if (!tmp) return std::unexpected<::attest::Error>(std::move(tmp).error()); \
  lhs = std::move(*tmp)
