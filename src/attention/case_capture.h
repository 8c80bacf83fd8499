// Copies one attention call out of a running engine, as it stands: what it read, what it wrote.
#pragma once

#include <cstdint>

#include "attention/case_file.h"
#include "attention/plan.h"

namespace attest {

// More than this is not copied: a call is then cut down to the sequence at fault, and that one is refused
// when it alone is larger.
inline constexpr int64_t kMaxCaseBytes = int64_t{256} << 20;

// The whole call of `plan`, or only `seq` of it where the whole would pass max_bytes (a sequence's kernel and
// the cut of its work do not depend on its companions). Blocks are copied as they are, slots past kv_len
// included, since a wrong kernel may have read them. kResourceExhausted: `seq` alone passes max_bytes.
// REQUIRES: params as CompleteParams gives them, out written; the plan owns every sequence.
[[nodiscard]] Expected<AttentionCaseFile> CaptureCase(const AttentionPlan& plan,
                                                      const AttentionParams& params, int32_t seq,
                                                      int64_t max_bytes = kMaxCaseBytes);

}  // namespace attest
