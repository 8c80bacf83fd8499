// What the user probably meant.
#pragma once

#include <string>
#include <vector>

namespace attest {

// The known name closest to `word`, if it is close enough to be a slip of the finger; else "".
[[nodiscard]] std::string Nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace attest
