// How many connections this process can hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace attest {

// `wanted` is the flag, 0 for as many as the limit of open files allows, up to 16,384. kInvalidArgument: more
// are wanted than that.
[[nodiscard]] Expected<size_t> ConnectionLimit(int64_t wanted, int64_t descriptors);

}  // namespace attest
