// What is copied out of a call holds what the call read and nothing twice, replays as it ran, and reaches the
// disk or is counted.
#include "attention/case_capture.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "attention/case_writer.h"
#include "attention/replay.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"
#include "tests/support/temp_folder.h"

namespace attest::testing {
namespace {

AttentionSpec CaptureSpec() {
  AttentionSpec spec = MakeSpec(6, 2, 64);
  spec.wants_lse = false;
  return spec;
}

// A call that has run, with the router that planned it.
struct RanCall {
  explicit RanCall(AttentionBatch& batch)
      : router(AttentionRouter::Create(ThisCpu()).value()),
        plan(PlanAttention(router, batch.spec(), batch.lengths(), 2).value()),
        output(batch.MakeOutput(kNaN)),
        params(CompleteParams(*plan, batch.Tensors(output))) {
    AttendParams(*plan, batch.Tensors(output), Team(2), false);
  }
  AttentionRouter router;
  AttentionPlanPtr plan;
  AttentionBatch::Output output;
  AttentionParams params;
};

// Replays what was captured bit for bit, also where only one sequence was taken.
TEST(CaptureCase, HoldsExactlyWhatTheCallReadAndWrote) {
  for (const AttentionCase& item : AttentionCases()) {
    SCOPED_TRACE(item.name);
    AttentionBatch batch(item.spec, item.q_len, item.kv_len);
    const auto router = AttentionRouter::Create(ThisCpu());
    const auto plan = PlanAttention(*router, batch.spec(), batch.lengths(), 2);
    const AttentionBatch::Output output = batch.MakeOutput(kNaN);
    const AttentionParams tensors = batch.Tensors(output);
    AttendParams(**plan, tensors, Team(2), false);
    const AttentionParams params = CompleteParams(**plan, tensors);
    const int32_t last = batch.num_seqs() - 1;
    const auto whole = CaptureCase(**plan, params, last);
    ASSERT_TRUE(whole.has_value());
    const auto whole_report = ReplayCase(*whole, *router, Team(2));
    ASSERT_TRUE(whole_report.has_value()) << whole_report.error().message;
    EXPECT_EQ(whole_report->wrong_rows, 0);
    EXPECT_EQ(whole_report->rows, int64_t{batch.num_tokens()} * item.spec.q_heads);
    const auto recorded = JudgeRecorded(*whole, *router, Team(2));
    ASSERT_TRUE(recorded.has_value());
    EXPECT_EQ(recorded->wrong_rows, 0);
    if (batch.num_seqs() == 1) continue;
    // Just too small for all of it: the last sequence alone.
    const auto bytes =
        static_cast<int64_t>(whole->q.size() + whole->out.size() + whole->k.size() + whole->v.size());
    const auto one = CaptureCase(**plan, params, last, bytes - 1);
    ASSERT_TRUE(one.has_value());
    ASSERT_EQ(one->q_len.size(), 1u);
    EXPECT_EQ(one->kv_len.front(), item.kv_len.back());
    EXPECT_TRUE(std::equal(one->out.rbegin(), one->out.rend(), whole->out.rbegin()));
    const auto one_recorded = JudgeRecorded(*one, *router, Team(2));
    ASSERT_TRUE(one_recorded.has_value());
    EXPECT_EQ(one_recorded->wrong_rows, 0);
    const auto none = CaptureCase(**plan, params, last, 1);
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
  }
}

TEST(CaptureCase, HoldsABlockOfTwoSequencesOnce) {
  AttentionBatch batch(CaptureSpec(), {1, 5}, {70, 70});
  // A shared prefix of two blocks.
  for (int entry = 0; entry < 2; ++entry) batch.block_ids(1)[entry] = batch.block_ids(0)[entry];
  const RanCall call(batch);
  const auto captured = CaptureCase(*call.plan, call.params, 0);
  ASSERT_TRUE(captured.has_value()) << captured.error().message;
  const auto of_each = static_cast<int32_t>((70 + batch.spec().block_size - 1) / batch.spec().block_size);
  EXPECT_EQ(captured->num_blocks, 2 * of_each - 2);
  EXPECT_EQ(captured->block_tables[0], captured->block_tables[static_cast<size_t>(of_each)]);
  EXPECT_EQ(std::ranges::max(captured->block_tables), captured->num_blocks - 1);
  const auto replayed = ReplayCase(*captured, call.router, Team(2));
  ASSERT_TRUE(replayed.has_value()) << replayed.error().message;
  EXPECT_EQ(replayed->wrong_rows, 0);
}

// Rows before the first key look at nothing, and the chunks of those behind them begin at key 0.
TEST(CaptureCase, HoldsTheKeysOfRowsBehindRowsThatSeeNone) {
  AttentionSpec spec = CaptureSpec();
  spec.causal = false;
  spec.chunk = 16;
  AttentionBatch batch(spec, {20}, {9});
  const RanCall call(batch);
  const auto captured = CaptureCase(*call.plan, call.params, 0);
  ASSERT_TRUE(captured.has_value()) << captured.error().message;
  EXPECT_GE(captured->num_blocks, 1);
  const auto replayed = ReplayCase(*captured, call.router, Team(2));
  ASSERT_TRUE(replayed.has_value()) << replayed.error().message;
  EXPECT_EQ(replayed->wrong_rows, 0);
  EXPECT_EQ(JudgeRecorded(*captured, call.router, Team(2))->wrong_rows, 0);
}

TEST(Replay, ShowsTheFirstOfTheWrongRowsAndTheWorstRatioOfAll) {
  AttentionBatch batch(CaptureSpec(), {1, 12, 9}, {40, 12, 70});
  const RanCall call(batch);
  auto captured = CaptureCase(*call.plan, call.params, 0);
  ASSERT_TRUE(captured.has_value()) << captured.error().message;
  auto* out = reinterpret_cast<float*>(captured->out.data());
  out[((1 + 7) * 6 + 4) * 64 + 33] += 100;   // sequence 1, row 7: the worst
  out[((13 + 5) * 6 + 2) * 64 + 9] += 0.5f;  // sequence 2, row 5
  const auto report = JudgeRecorded(*captured, call.router, Team(2));
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_EQ(report->wrong_rows, 2);
  ASSERT_TRUE(report->first.has_value());
  EXPECT_EQ(report->first->seq, 1);
  EXPECT_EQ(report->first->row, 7);
  EXPECT_EQ(report->first->head, 4);
  EXPECT_EQ(report->first->dim, 33);
  EXPECT_GT(report->worst_ratio, 1);
  EXPECT_EQ(report->worst_ratio, report->first->verdict.ratio);
}

AttentionCaseFile EmptyCase() {
  AttentionCaseFile c;
  c.spec = CaptureSpec();
  c.spec.layout = KvLayout::kContiguous;
  c.q_len = c.kv_len = {0};
  return c;
}

TEST(CaseWriter, KeepsItsLimitOverProcessesAndCountsTheRest) {
  const TempFolder folder;
  const AttentionCaseFile c = EmptyCase();
  for (int process = 0; process < 3; ++process) {
    CaseWriter writer(folder.path(), 4);
    for (int i = 0; i < 3; ++i) {
      writer.Add(c);
      writer.Flush();
    }
    const CaseWriterStats stats = writer.stats();
    EXPECT_EQ(stats.written, process == 0 ? 3 : process == 1 ? 1 : 0);
    EXPECT_EQ(stats.skipped, 3 - stats.written);
    EXPECT_EQ(stats.failed, 0);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 4);
}

// Who looks for the case of a mismatch must learn why there is none.
TEST(CaseWriter, SaysOnceThatItsFolderIsFull) {
  const TempFolder folder;
  CaseWriter writer(folder.path(), 1);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    writer.Add(EmptyCase());
    writer.Flush();
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line =
      "attention case not written: " + folder.path().string() + " holds 1 and may hold 1";
  EXPECT_NE(log.find(line), std::string::npos) << log;
  EXPECT_EQ(log.find(line), log.rfind("attention case not written"));
  EXPECT_EQ(writer.stats().skipped, 2);
}

TEST(CaseWriter, AFolderThatCannotBeMadeIsCountedAndHurtsNobody) {
  const TempFolder folder;
  const auto file = folder.Write("file", "in the way");
  CaseWriter writer(file / "cases", 4);
  for (int i = 0; i < 3; ++i) {
    writer.Add(EmptyCase());
    writer.Flush();
  }
  EXPECT_EQ(writer.stats().failed, 3);
  EXPECT_EQ(writer.stats().written, 0);
}

TEST(CaseWriter, WithoutAFolderEveryCaseIsSkipped) {
  CaseWriter writer({}, 4);
  writer.Add({});
  writer.Flush();
  EXPECT_EQ(writer.stats().skipped, 1);
}

// A case holds the keys and values of requests.
TEST(CaseWriter, MakesAFolderForItsOwnerAlone) {
  const TempFolder folder;
  CaseWriter writer(folder.path() / "deep" / "cases", 4);
  writer.Add(EmptyCase());
  writer.Flush();
  EXPECT_EQ(writer.stats().written, 1);
  struct stat info{};
  ASSERT_EQ(::stat((folder.path() / "deep" / "cases").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST(CaseWriter, CountsAFileThatCouldNotBeWrittenAsFailed) {
  const TempFolder folder;
  AttentionCaseFile c;
  c.spec = CaptureSpec();
  c.spec.layout = KvLayout::kContiguous;
  c.q_len = c.kv_len = {1};  // and no tensor of that row: refused when it is written
  CaseWriter writer(folder.path(), 4);
  writer.Add(c);
  writer.Flush();
  EXPECT_EQ(writer.stats().failed, 1);
  EXPECT_EQ(writer.stats().written, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace attest::testing
