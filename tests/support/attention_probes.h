// GoogleTest's view of the probes with exact answers (conform/probe.h).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conform/probe.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {

// Every dim of a row is `expected` (plus dim / 1024 with `d_probe`), to float32 rounding.
inline void ExpectRow(const AttentionResult& result, const AttentionSpec& spec, int token, int head,
                      double expected, bool d_probe = false) {
  for (int d = 0; d < spec.v_head_dim; ++d) {
    const double want = expected + (d_probe ? d / 1024.0 : 0.0);
    const double got = result.out[static_cast<size_t>((token * spec.q_heads + head) * spec.v_head_dim + d)];
    ASSERT_NEAR(got, want, 2e-6 * std::max(1.0, std::abs(want)))
        << "token " << token << " head " << head << " dim " << d;
  }
}

}  // namespace attest::testing
