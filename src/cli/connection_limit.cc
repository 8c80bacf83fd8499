#include "cli/connection_limit.h"

#include <fmt/format.h>

#include <algorithm>

namespace attest {
namespace {

constexpr int64_t kDefault = 16384;
// Spare connections (server/http_server.h), the model's files, the log, case files, what libraries open.
constexpr int64_t kOtherDescriptors = 128;

}  // namespace

Expected<size_t> ConnectionLimit(int64_t wanted, int64_t descriptors) {
  const int64_t most = descriptors - kOtherDescriptors;
  if (most < 1 || wanted > most) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "--max-connections is {}; the limit of open files is {} (ulimit -Hn), and {} of them are needed "
            "otherwise",
            wanted, descriptors, kOtherDescriptors),
        "max-connections");
  }
  return static_cast<size_t>(wanted > 0 ? wanted : std::min(kDefault, most));
}

}  // namespace attest
