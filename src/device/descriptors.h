// How many files and sockets this process may have open.
#pragma once

#include <cstdint>

namespace attest {

// Raises the soft limit to the hard one, which needs no privilege, and returns what then holds.
[[nodiscard]] int64_t RaiseDescriptorLimit();

}  // namespace attest
