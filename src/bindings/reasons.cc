#include "bindings/reasons.h"

namespace attest::bindings {
namespace {

attest_status StatusOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ATTEST_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return ATTEST_UNSUPPORTED;
    case ErrorCode::kNotFound:
      return ATTEST_NOT_FOUND;
    case ErrorCode::kResourceExhausted:
      return ATTEST_RESOURCE_EXHAUSTED;
    default:
      return ATTEST_INTERNAL;
  }
}

void Fill(attest_error** error, std::vector<Reason> reasons, std::string text) {
  if (error == nullptr) return;
  *error = new (std::nothrow) attest_error;
  if (*error == nullptr) return;  // the status still says what happened
  (*error)->reasons = std::move(reasons);
  (*error)->text = std::move(text);
}

}  // namespace

attest_status Report(attest_status status, const Reasons& reasons, attest_error** error) {
  std::string text;
  for (const Reason& reason : reasons.list()) {
    if (!text.empty()) text += '\n';
    text += ToString(reason);
  }
  if (reasons.left_out() > 0) text += fmt::format("\nand {} more", reasons.left_out());
  Fill(error, reasons.list(), std::move(text));
  return status;
}

attest_status Report(const Error& failure, attest_error** error) {
  // Messages of the library end in ", expected LIMIT" where there is one.
  constexpr std::string_view kExpected = ", expected ";
  const size_t at = failure.message.rfind(kExpected);
  Reason reason{failure.field, failure.message.substr(0, at), "a call within the limits of attention_c.h"};
  if (at != std::string::npos) reason.expected = failure.message.substr(at + kExpected.size());
  Fill(error, {std::move(reason)}, failure.message);
  return StatusOf(failure.code);
}

}  // namespace attest::bindings

extern "C" {

const char* attest_error_text(const attest_error* error) {
  return error == nullptr ? "" : error->text.c_str();
}
int32_t attest_error_count(const attest_error* error) {
  return error == nullptr ? 0 : static_cast<int32_t>(error->reasons.size());
}
static const attest::Reason* ReasonAt(const attest_error* error, int32_t index) {
  if (error == nullptr || index < 0 || index >= static_cast<int32_t>(error->reasons.size())) return nullptr;
  return &error->reasons[static_cast<size_t>(index)];
}
const char* attest_error_field(const attest_error* error, int32_t index) {
  const attest::Reason* reason = ReasonAt(error, index);
  return reason == nullptr ? "" : reason->field.c_str();
}
const char* attest_error_value(const attest_error* error, int32_t index) {
  const attest::Reason* reason = ReasonAt(error, index);
  return reason == nullptr ? "" : reason->value.c_str();
}
const char* attest_error_expected(const attest_error* error, int32_t index) {
  const attest::Reason* reason = ReasonAt(error, index);
  return reason == nullptr ? "" : reason->expected.c_str();
}
void attest_error_free(attest_error* error) { delete error; }

}  // extern "C"
