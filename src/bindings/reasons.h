// What the C interface reports: a list of reasons, collected without stopping at the first.
#pragma once

#include <attest/attention_c.h>
#include <fmt/format.h>

#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "attention/problem.h"
#include "base/error.h"

struct attest_error {
  std::vector<attest::Reason> reasons;
  std::string text;
};

namespace attest::bindings {

class Reasons {
 public:
  template <class T>
  void Add(std::string field, const T& value, std::string expected) {
    Add(Reason{std::move(field), fmt::format("{}", value), std::move(expected)});
  }
  // A batch of a million bad lengths is told by its first ones.
  void Add(Reason reason) {
    if (reasons_.size() < kMost)
      reasons_.push_back(std::move(reason));
    else
      ++left_out_;
  }
  template <class T>
  void Require(bool holds, const char* field, const T& value, std::string expected) {
    if (!holds) Add(field, value, std::move(expected));
  }
  void RequireFlag(const char* field, int32_t value) {
    Require(value == 0 || value == 1, field, value, "0 or 1");
  }
  [[nodiscard]] bool empty() const { return reasons_.empty(); }
  [[nodiscard]] const std::vector<Reason>& list() const { return reasons_; }
  [[nodiscard]] size_t left_out() const { return left_out_; }

 private:
  static constexpr size_t kMost = 64;
  std::vector<Reason> reasons_;
  size_t left_out_ = 0;
};

// Fills *error (when it is not null) and returns the status.
attest_status Report(attest_status status, const Reasons& reasons, attest_error** error);
// An error of the library: one reason, whose text is the message.
attest_status Report(const Error& failure, attest_error** error);

// Runs fn, which returns a status, and turns what it throws (memory, in practice) into a status: no exception
// crosses the C interface.
template <class Fn>
attest_status Guarded(attest_error** error, Fn fn) {
  if (error != nullptr) *error = nullptr;
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Report(Error{ErrorCode::kResourceExhausted, "memory ran out", "memory"}, error);
  } catch (const std::system_error& e) {
    return Report(Error{ErrorCode::kResourceExhausted, e.what(), "threads"}, error);
  } catch (const std::exception& e) {
    return Report(Error{ErrorCode::kInternal, e.what(), ""}, error);
  }
}

// Copies a struct that starts with struct_size and version. Members this library does not know must be 0.
template <class T>
bool ReadStruct(const char* name, const T* from, T* to, Reasons& reasons) {
  if (from == nullptr) {
    reasons.Add(name, "NULL", "a struct");
    return false;
  }
  const uint32_t size = from->struct_size;
  if (size < sizeof(T) || size > 65536) {
    reasons.Add(fmt::format("{}.struct_size", name), size, fmt::format("{} or more", sizeof(T)));
    return false;
  }
  if (from->version < 1 || (from->version > ATTEST_ATTENTION_ABI_VERSION && size == sizeof(T))) {
    reasons.Add(fmt::format("{}.version", name), from->version,
                fmt::format("1 to {}", ATTEST_ATTENTION_ABI_VERSION));
    return false;
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == 0) continue;
    reasons.Add(
        fmt::format("{}.struct_size", name), size,
        fmt::format("{}: this library does not know the members after it, and one is set", sizeof(T)));
    return false;
  }
  std::memcpy(to, from, sizeof(T));
  return true;
}

}  // namespace attest::bindings
