// Any bytes as an attention case: an error on one line, or a case that can be planned and, when small,
// written and read back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>

#include "attention/attention.h"
#include "attention/case_file.h"
#include "attention/plan.h"
#include "base/check.h"

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
  if (q_begin->total() > 4096 || std::accumulate(parsed->kv_len.begin(), parsed->kv_len.end(), 0.0) > 65536) {
    return 0;
  }
  const attest::AttentionLengths lengths{
      .q_begin = &*q_begin,
      .kv_len = parsed->kv_len,
      .block_tables = {.ids = parsed->block_tables.data(),
                       .row_stride = parsed->table_width,
                       .num_seqs = static_cast<int>(parsed->q_len.size())}};
  const auto plan = attest::PlanAttention(*router, parsed->spec, lengths, 1);
  (void)plan;
  return 0;
}
