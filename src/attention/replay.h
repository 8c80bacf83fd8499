// Computes a recorded attention call again, on any kernels, and says where the result first differs from the
// oracle by more than the budget of the row (attention/row_check.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "attention/case_file.h"
#include "attention/row_check.h"
#include "base/error.h"
#include "base/thread_team.h"

namespace attest {

struct ReplayDifference {
  std::string_view kernel;
  AttentionPhase phase = AttentionPhase::kDecode;
  int32_t seq = 0, row = 0;  // of the case, of the sequence
  int head = 0;
  std::optional<int> dim;  // the first over its budget; absent: the LSE
  RowVerdict verdict;      // its numbers are those of the worst dim
};

struct ReplayReport {
  std::vector<PlannedRoute> routes;  // what ran
  int64_t rows = 0;                  // rows times heads, all of them judged
  int64_t wrong_rows = 0;
  int64_t unverifiable_rows = 0;          // the oracle's own row is not finite
  double worst_ratio = 0;                 // error / budget over all rows
  std::optional<ReplayDifference> first;  // in the order sequence, row, head; absent: no difference
};

// Plans the case with `router` and runs it. Errors: a table that names no block, an output of more than 1 GiB
// that the case does not hold, or one that PlanAttention gives.
[[nodiscard]] Expected<ReplayReport> ReplayCase(const AttentionCaseFile& attention_case,
                                                const AttentionRouter& router, ThreadTeam& team);
// Judges the output that the case recorded instead, for the arithmetic of the kernels it names where this
// build has them. kNotFound: the case has no output.
[[nodiscard]] Expected<ReplayReport> JudgeRecorded(const AttentionCaseFile& attention_case,
                                                   const AttentionRouter& router, ThreadTeam& team);

}  // namespace attest
