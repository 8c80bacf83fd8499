// The smallest case that still fails: sequences are dropped, lengths cut, features switched off and
// dimensions set to the plain call's, one at a time, as long as the case fails.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "conform/case_list.h"

namespace attest::conform {

struct Shrunk {
  AttentionCase smallest = {};
  std::string why = {};  // what is wrong with the smallest
  int attempts = 0;      // cases tried
};

// `failure` says what is wrong with a case, or nullopt when it passes or is refused. REQUIRES: it says
// something of `failing`. Stops after `max_attempts` or `max_seconds`.
[[nodiscard]] Shrunk Shrink(const AttentionCase& failing, const std::string& why,
                            const std::function<std::optional<std::string>(const AttentionCase&)>& failure,
                            int max_attempts, double max_seconds);

}  // namespace attest::conform
