#include "attention/alibi_slopes.h"

#include <bit>
#include <cmath>

#include "base/check.h"

namespace attest {

std::vector<float> AlibiSlopes(int q_heads) {
  ATTEST_CHECK_GE(q_heads, 1);
  const int n = static_cast<int>(std::bit_floor(static_cast<unsigned>(q_heads)));
  std::vector<float> slopes;
  for (int k = 1; k <= n; ++k) slopes.push_back(static_cast<float>(std::exp2(-8.0 * k / n)));
  for (int k = 1; n + (k + 1) / 2 <= q_heads; k += 2) {
    slopes.push_back(static_cast<float>(std::exp2(-4.0 * k / n)));
  }
  ATTEST_CHECK_EQ(static_cast<int>(slopes.size()), q_heads);
  return slopes;
}

}  // namespace attest
