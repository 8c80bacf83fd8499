// The error object every failed request gets: {"error":{"message","type","param","code"}}, code = HTTP
// status.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace attest {

// 400 for what the client can mend, 404, 503 for what may work later, else 500.
[[nodiscard]] int HttpStatusOf(ErrorCode code);
// "BadRequestError" for 400, and so on.
[[nodiscard]] std::string_view ErrorTypeOf(int status);
// `param` empty: null.
[[nodiscard]] std::string ErrorBody(int status, std::string_view message, std::string_view param = {});

}  // namespace attest
