// Any bytes as an attention case: an error on one line, or a case that plans or is refused and, when small,
// replays within what the file holds.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "attention/attention.h"
#include "attention/case_file.h"
#include "attention/plan.h"
#include "attention/replay.h"
#include "base/check.h"
#include "base/thread_team.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = attest::ParseCaseFile(std::as_bytes(std::span(data, size)), "fuzz.case");
  if (!parsed) {
    ATTEST_CHECK(parsed.error().message.find('\n') == std::string::npos);
    return 0;
  }
  // What was read is consistent: the plan may refuse it, but indexes nothing it does not have.
  const auto q_begin = attest::CuSeqlens::FromLengths(parsed->q_len);
  ATTEST_CHECK(q_begin.has_value());
  const auto router = attest::AttentionRouter::Create(attest::CpuFeatures{}, "attention_general");
  ATTEST_CHECK(router.has_value());
  // Rows without keys cost no bytes of input; planning millions of them would only be slow.
  const double rows = q_begin->total(),
               keys = std::accumulate(parsed->kv_len.begin(), parsed->kv_len.end(), 0.0);
  if (rows > 4096 || keys > 65536) return 0;
  const attest::AttentionSpec& spec = parsed->spec;
  if (rows * (keys + 1) * spec.q_heads * (spec.head_dim + spec.v_head_dim) < 1e6) {
    static attest::ThreadTeam team(1);
    const auto report = attest::ReplayCase(*parsed, *router, team);
    ATTEST_CHECK(!report || report->rows == q_begin->total() * int64_t{spec.q_heads});
    if (report && !parsed->out.empty())
      ATTEST_CHECK(attest::JudgeRecorded(*parsed, *router, team).has_value());
    return 0;
  }
  const attest::AttentionLengths lengths{
      .q_begin = &*q_begin,
      .kv_len = parsed->kv_len,
      .block_tables = {.ids = parsed->block_tables.data(),
                       .row_stride = parsed->table_width,
                       .num_seqs = static_cast<int>(parsed->q_len.size())}};
  const auto plan = attest::PlanAttention(*router, spec, lengths, 1);
  (void)plan;
  return 0;
}
