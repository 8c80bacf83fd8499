// The parts of the suite: data that follow the sequence, shrinking, isolation, controls and reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "conform/isolate.h"
#include "conform/report.h"
#include "conform/shrink.h"

namespace attest::conform {
namespace {

using ::testing::HasSubstr;

TEST(ConformBatch, ASequenceHoldsTheSameNumbersAtAnyPlaceAndInAnyChunk) {
  const AttentionSpec spec = MakeSpec(2, 1, 16);
  AttentionBatch whole(spec, {3, 9}, {5, 20}, {.seed = 4}),
      chunk(spec, {4}, {20}, {.seed = 4, .seq_ids = {1}});
  EXPECT_EQ(whole.Decoded(false, 1, 0), chunk.Decoded(false, 0, 0));
  EXPECT_EQ(whole.Decoded(true, 1, 0), chunk.Decoded(true, 0, 0));
  const AttentionBatch::Output a = whole.MakeOutput(0), b = chunk.MakeOutput(0);
  const AttentionParams in_whole = whole.Params(a), in_chunk = chunk.Params(b);
  for (int row = 0; row < 4; ++row) {  // the chunk holds the last 4 of the 9 rows
    for (int d = 0; d < 16; ++d) {
      EXPECT_EQ(ReferenceElement(in_whole.QRow(3 + 5 + row, 1), spec.q_dtype, d),
                ReferenceElement(in_chunk.QRow(row, 1), spec.q_dtype, d));
    }
  }
  AttentionBatch other(spec, {3, 9}, {5, 20}, {.seed = 5});
  EXPECT_NE(whole.Decoded(false, 1, 0), other.Decoded(false, 1, 0));
}

TEST(ConformJudge, ATooGenerousBudgetLetsAControlPassAndIsReported) {
  Truth truth(AttentionCases().front());
  const double largest = 10;
  EXPECT_EQ(PassingControl(truth.batch(), truth.oracle(), truth.budget(AttentionArithmetic::kF32)),
            std::nullopt);
  const auto passing = PassingControl(truth.batch(), truth.oracle(), {.out = largest, .lse = largest});
  ASSERT_TRUE(passing);
  EXPECT_THAT(*passing, HasSubstr("a zeroed row passes"));
  AttentionCase decode = AttentionCases().front();
  decode.q_len = {1};
  decode.kv_len = {400};
  Truth long_decode(decode);
  const auto short_mask =
      PassingControl(long_decode.batch(), long_decode.oracle(), {.out = 0.05, .lse = largest});
  ASSERT_TRUE(short_mask) << "a budget of 0.05 hides one key of 400";
}

TEST(ConformShrink, FindsTheSmallestCaseOfAFailureThatNeedsTwoThings) {
  AttentionCase big = RandomCase(3, 1);
  big.spec.window_left = 40;
  big.spec.has_sinks = true;
  big.q_len = {5, 1, 30};
  big.kv_len = {50, 20, 90};
  const auto failure = [](const AttentionCase& c) -> std::optional<std::string> {
    for (const int32_t kv_len : c.kv_len) {
      if (c.spec.has_sinks && c.spec.window_left && kv_len > 7) return "wrong";
    }
    return std::nullopt;
  };
  const Shrunk shrunk = Shrink(big, "wrong", failure, 1000, 60);
  EXPECT_EQ(shrunk.smallest.q_len.size(), 1u);
  EXPECT_EQ(shrunk.smallest.kv_len, std::vector<int32_t>{8});
  EXPECT_EQ(shrunk.smallest.q_len, std::vector<int32_t>{1});
  EXPECT_EQ(shrunk.smallest.spec.window_left, 0);
  EXPECT_THAT(DescribeCase(shrunk.smallest), HasSubstr("q_len [1] kv_len [8] window_left 0 sinks (seed"));
}

TEST(ConformIsolation, EveryUnitIsReportedOnceThoughChildrenDie) {
  std::multiset<std::pair<int64_t, int>> seen;
  int failures = 0;
  const auto unit = [](int64_t task, int subject) -> std::string {
    if (task == 3 && subject == 1) _exit(9);
    if (task == 5 && subject == 0) sleep(60);
    return std::to_string(task * 10 + subject);
  };
  const auto done = [&](int64_t task, int subject, Expected<std::string> payload) {
    seen.emplace(task, subject);
    if (!payload) {
      ++failures;
    } else {
      EXPECT_EQ(*payload, std::to_string(task * 10 + subject));
    }
  };
  ASSERT_TRUE(RunIsolated(20, 3, unit, done, {.workers = 2, .time_limit_s = 0.5}));
  EXPECT_EQ(seen.size(), 60u);
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 60u);
  EXPECT_EQ(failures, 2);
}

TEST(ConformCases, NamesAreUniqueAndEveryHeadSizePageSizeAndGroupIsThere) {
  std::set<std::string> names;
  std::set<int> dims, blocks, groups;
  for (const bool sweep : {false, true}) {
    for (const AttentionCase& c : sweep ? SweepCases(false) : AttentionCases()) {
      EXPECT_TRUE(ValidateSpec(c.spec)) << c.name;
      EXPECT_EQ(c.q_len.size(), c.kv_len.size()) << c.name;
      EXPECT_FALSE(c.capability.empty()) << c.name;
      if (sweep) {
        EXPECT_TRUE(names.insert(c.name).second) << c.name << " is there twice";
      }
      dims.insert(c.spec.head_dim);
      blocks.insert(c.spec.block_size);
      groups.insert(c.spec.q_heads / c.spec.kv_heads);
    }
  }
  for (int dim = 8; dim <= 256; dim += 8) EXPECT_TRUE(dims.contains(dim)) << dim;
  for (int size = 1; size <= 256; ++size) EXPECT_TRUE(blocks.contains(size)) << size;
  for (int group = 1; group <= 16; ++group) EXPECT_TRUE(groups.contains(group)) << group;
}

TEST(ConformCases, ARandomCaseDependsOnSeedAndIndexAlone) {
  for (uint64_t i = 0; i < 50; ++i) {
    const AttentionCase a = RandomCase(7, i), b = RandomCase(7, i);
    EXPECT_EQ(DescribeCase(a), DescribeCase(b));
    EXPECT_TRUE(ValidateSpec(a.spec)) << DescribeCase(a);
  }
  EXPECT_NE(DescribeCase(RandomCase(7, 0)), DescribeCase(RandomCase(8, 0)));
}

SuiteResult SmallRun() {
  auto subjects = KernelSubjects({"attention_general", "reference"});
  EXPECT_TRUE(subjects);
  auto result = RunSuite(std::move(*subjects), {.quick = true, .filter = "softcap"}, nullptr);
  EXPECT_TRUE(result);
  return std::move(*result);
}

TEST(ConformReport, EveryFormatHoldsEveryOutcome) {
  const SuiteResult result = SmallRun();
  EXPECT_EQ(result.num_failures, 0) << TextReport(result, false);
  const auto json = nlohmann::json::parse(JsonReport(result));
  EXPECT_EQ(json["trials"].size(), result.trials.size());
  EXPECT_EQ(json["trials"][0]["outcomes"]["attention_general"]["verdict"], "pass");
  const std::string junit = JunitReport(result);
  EXPECT_THAT(junit, HasSubstr("tests=\"" + std::to_string(result.trials.size() * 2) + "\" failures=\"0\""));
  const std::string html = HtmlReport(result);
  EXPECT_THAT(html, HasSubstr("No failure"));
  EXPECT_THAT(html, ::testing::Not(HasSubstr("http://")));  // stands alone
  EXPECT_THAT(html, ::testing::Not(HasSubstr("<script")));
}

TEST(ConformReport, AFailureIsRedInEveryFormatAndForeignTextIsEscaped) {
  SuiteResult result = SmallRun();
  result.records[0][0].verdict = Verdict::kFail;
  result.records[0][0].why = "<b>\x01 & \"wrong\"";
  result.num_failures = 1;
  result.failures.push_back(
      {.trial = 0, .subject = 0, .why = result.records[0][0].why, .smallest = "q_len [1]"});
  EXPECT_THAT(TextReport(result, false), HasSubstr("FAIL 1"));
  EXPECT_THAT(HtmlReport(result), HasSubstr("1 failed"));
  EXPECT_THAT(HtmlReport(result), ::testing::Not(HasSubstr("<b>\x01")));
  EXPECT_THAT(JunitReport(result), HasSubstr("<failure message=\"&lt;b&gt;? &amp; &#34;wrong&#34;\">"));
  EXPECT_EQ(nlohmann::json::parse(JsonReport(result))["num_failures"], 1);
}

TEST(ConformSuite, AnUnknownKernelAndAFilterThatLeavesNothingAreErrors) {
  const auto unknown = KernelSubjects({"attention_genral"});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("'attention_genral' does not exist, known: "));
  const auto nothing = RunSuite(KernelSubjects({"reference"}).value(), {.filter = "no such thing"}, nullptr);
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("no such thing"));
}

}  // namespace
}  // namespace attest::conform
