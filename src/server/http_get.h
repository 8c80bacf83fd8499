// One GET over clear-text HTTP/1.1, for commands that ask a running server. Blocks; any thread.
#pragma once

#include <chrono>
#include <string>

#include "base/error.h"

namespace attest {

struct HttpReplyText {
  int status = 0;
  std::string body;
};

// `url` is http://HOST[:PORT][/PATH]. kInvalidArgument: not such a URL; kUnavailable: no connection, or no
// whole answer of at most 1 MiB in time. Any status of the server is an answer.
[[nodiscard]] Expected<HttpReplyText> HttpGet(const std::string& url,
                                              std::chrono::milliseconds timeout = std::chrono::seconds(5));

}  // namespace attest
