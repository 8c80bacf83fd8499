// Foreign kernels: the five broken ones of examples/conform are found and shrunk to the right smallest case,
// the naive one passes, and what crashes, hangs or lies fails its own trial and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "conform/case_io.h"
#include "conform/library_subject.h"
#include "conform/report.h"

namespace attest::conform {
namespace {

using ::testing::HasSubstr;

std::string Example(const std::string& name) {
  return std::string(ATTEST_BUILD_DIR) + "/tests/examples/conform/" + name + ".so";
}
std::string TestLibrary(const std::string& name) {
  return std::string(ATTEST_BUILD_DIR) + "/tests/" + name + ".so";
}

SuiteResult RunTrial(const std::string& file, SuiteOptions options) {
  auto subjects = LibrarySubjects(file);
  EXPECT_TRUE(subjects) << (subjects ? "" : subjects.error().message);
  auto result = RunSuite(std::move(*subjects), options, nullptr);
  EXPECT_TRUE(result) << (result ? "" : result.error().message);
  return std::move(*result);
}

struct Broken {
  const char* name;
  const char* capability;  // where the failure shows
  const char* smallest;    // as DescribeCase prints it
  const char* why;
};

class BrokenKernel : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenKernel, IsFoundAndShrunkToTheRightSmallestCase) {
  const Broken& broken = GetParam();
  const auto folder = std::filesystem::path(::testing::TempDir()) / (std::string("conform_") + broken.name);
  const SuiteResult result = RunTrial(Example(broken.name), {.invariances = false,
                                                             .bugs = false,
                                                             .random = false,
                                                             .quick = true,
                                                             .filter = broken.capability,
                                                             .failures_folder = folder});
  ASSERT_FALSE(result.failures.empty());
  const Failure& failure = result.failures.front();
  EXPECT_EQ(failure.smallest.substr(0, failure.smallest.find(" (seed")), broken.smallest);
  EXPECT_THAT(failure.smallest_why, HasSubstr(broken.why));
  EXPECT_THAT(TextReport(result, false), HasSubstr(std::string("smallest failing case")));
  for (const Failure& other : result.failures) {  // equal ones are joined
    if (&other != &failure) {
      EXPECT_NE(other.smallest, failure.smallest);
    }
  }

  // The file holds the same call.
  ASSERT_FALSE(failure.file.empty()) << failure.file_error;
  const auto file = ReadCaseFile(failure.file);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->kernel, std::string(broken.name));
  EXPECT_EQ(file->notes.at("smallest"), failure.smallest);
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenKernel,
    ::testing::Values(
        Broken{"broken_skip_threshold", "plain", "q_len [1] kv_len [1]", "was not written"},
        Broken{"broken_loop_count", "head_dim", "q_len [1] kv_len [1] head_dim 8", "was not written"},
        Broken{"broken_cu_seqlens_short", "plain", "q_len [1] kv_len [1]", "was not written"},
        Broken{"broken_descale_row_short", "descales", "q_len [1] kv_len [1] v_descale", "expected"},
        Broken{"broken_window_off_by_one", "window", "q_len [1] kv_len [2] window_left 0", "expected"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(LibraryKernel, TheNaiveKernelPassesEveryKindOfTrial) {
  const SuiteResult result = RunTrial(Example("naive"), {.quick = true, .random_cases = 10});
  EXPECT_EQ(result.num_failures, 0) << TextReport(result, true);
  for (const MatrixRow& row : MatrixOf(result, false)) EXPECT_GT(row.cells[0].passed, 0) << row.capability;
}

TEST(LibraryKernel, TheTemplatePassesWhatItDeclaresAndRefusesTheRestByField) {
  const SuiteResult result = RunTrial(Example("template"), {.quick = true, .random_cases = 10});
  EXPECT_EQ(result.num_failures, 0) << TextReport(result, true);
  int64_t passed = 0, refused = 0;
  for (const MatrixRow& row : MatrixOf(result, false)) {
    passed += row.cells[0].passed;
    refused += row.cells[0].refused;
  }
  EXPECT_GT(passed, 0);
  EXPECT_GT(refused, 0);
}

// Every broken kernel is found by the public bug it reproduces, too.
TEST(LibraryKernel, ThePublicBugsFindTheBrokenKernels) {
  for (const auto& [name, bug] : {std::pair{"broken_skip_threshold", "A01"},
                                  {"broken_loop_count", "A02"},
                                  {"broken_cu_seqlens_short", "A22"},
                                  {"broken_descale_row_short", "A35"},
                                  {"broken_window_off_by_one", "A03"}}) {
    const SuiteResult result =
        RunTrial(Example(name), {.cases = false, .invariances = false, .random = false, .filter = bug});
    EXPECT_EQ(result.num_failures, std::ssize(result.trials)) << name;
  }
}

TEST(LibraryKernel, AWrongNumberOfSplitsIsFoundByAskingForIt) {
  const SuiteResult result = RunTrial(TestLibrary("conform_splits_kernel"),
                                      {.bugs = false, .random = false, .quick = true, .filter = "split"});
  ASSERT_EQ(result.num_failures, 1) << TextReport(result, true);
  EXPECT_THAT(result.failures.front().why, HasSubstr("asked for 7 splits of 100 keys"));
}

// A failure of a public bug's probe is shrunk like any other, and its file is the smallest call.
TEST(LibraryKernel, AFailureOfAProbeIsShrunkToACallThatFailsByItself) {
  for (const auto& [name, bug, smallest] :
       {std::tuple{"broken_skip_threshold", "A01", "q_len [1] kv_len [1]"},
        {"broken_window_off_by_one", "A03", "q_len [1] kv_len [2] window_left 0"},
        {"broken_skip_threshold", "PaddingInvariance", "q_len [1] kv_len [1]"}}) {
    SCOPED_TRACE(std::string(name) + " on " + bug);
    const auto folder = std::filesystem::path(::testing::TempDir()) / (std::string("conform_probe_") + name);
    const SuiteResult result =
        RunTrial(Example(name), {.cases = false, .random = false, .filter = bug, .failures_folder = folder});
    ASSERT_FALSE(result.failures.empty());
    const Failure& failure = result.failures.front();
    EXPECT_EQ(failure.smallest, std::string(smallest) + " (numbers of the failing call)");
    ASSERT_FALSE(failure.file.empty()) << failure.file_error;
    const auto file = ReadCaseFile(failure.file);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->q_len, std::vector<int32_t>{1});
    EXPECT_EQ(file->notes.at("smallest"), failure.smallest);

    // On trial again it fails as it did, and a right kernel passes it.
    const SuiteOptions again{.time_limit_s = 10, .recorded = {RecordedCase(*file, "again")}};
    EXPECT_EQ(RunTrial(Example(name), again).num_failures, 1);
    const SuiteResult right = RunTrial(Example("naive"), again);
    EXPECT_EQ(right.num_failures, 0) << TextReport(right, true);
    EXPECT_EQ(right.trials.size(), 1u);
    std::filesystem::remove_all(folder);
  }
}

// The numbers of a call survive the way through a file, whatever its layout.
TEST(RecordedCase, HoldsTheNumbersOfTheCallItWasMadeFrom) {
  for (const KvLayout layout : {KvLayout::kPagedHnd, KvLayout::kPagedNhd, KvLayout::kContiguous}) {
    AttentionSpec spec = MakeSpec(4, 2, 16);
    spec.v_head_dim = 24;
    spec.layout = layout;
    spec.block_size = 4;
    spec.has_sinks = spec.has_alibi = spec.has_k_descale = spec.has_v_descale = true;
    AttentionBatch batch(spec, {3, 1}, {5, 9}, {.seed = 4});
    const AttentionBatch::Output none = batch.MakeOutput(0.0f);
    const AttentionCase c = RecordedCase(CaseFileOf(spec, batch.lengths(), batch.Tensors(none)), "recorded");
    AttentionBatch again(c.spec, c.q_len, c.kv_len, c.options);
    EXPECT_EQ(RunOracle(again), RunOracle(batch)) << KvLayoutName(layout);
    // The second sequence cut to its first four keys holds those of the recording.
    AttentionCase cut = c;
    cut.q_len = {1};
    cut.kv_len = {4};
    cut.options.seq_ids = {1};
    AttentionBatch shorter(cut.spec, cut.q_len, cut.kv_len, cut.options);
    for (const bool value : {false, true}) {
      std::vector<float> whole = batch.Decoded(value, 1, 1);
      whole.resize(4 * (value ? 24 : 16));
      EXPECT_EQ(shorter.Decoded(value, 0, 1), whole);
    }
  }
}

TEST(HostileLibrary, WhatCrashesHangsOrLiesFailsItsOwnTrialAndNoOther) {
  const SuiteResult result = RunTrial(TestLibrary("conform_hostile_kernels"), {.invariances = false,
                                                                               .bugs = false,
                                                                               .random = false,
                                                                               .quick = true,
                                                                               .filter = "lengths_one",
                                                                               .time_limit_s = 1.0});
  ASSERT_EQ(result.trials.size(), 2u);
  ASSERT_EQ(result.subjects.size(), 8u);
  const auto why = [&](int subject) { return result.records[0][static_cast<size_t>(subject)].why; };
  for (const std::vector<Record>& records : result.records) {
    for (const Record& record : records) EXPECT_TRUE(record.ran);
  }
  EXPECT_THAT(why(0), HasSubstr("crashed"));
  EXPECT_THAT(why(1), HasSubstr("did not return within 1 s"));
  EXPECT_THAT(why(2), HasSubstr("ended the process with status 3 (giving up)"));
  EXPECT_THAT(why(3), HasSubstr("run failed on a call that check accepted: no device"));
  EXPECT_THAT(why(4), HasSubstr("token 0 head 0 dim 0 was not written"));
  EXPECT_THAT(why(5), HasSubstr("wrote outside its outputs"));
  EXPECT_THAT(why(6), HasSubstr("refused without a reason"));
  EXPECT_EQ(result.records[0][7].verdict, Verdict::kRefused);
  EXPECT_EQ(result.num_failures, 14);
}

TEST(HostileLibrary, AFileThatIsNoLibraryOrAnotherVersionIsRefusedByName) {
  const auto message = [](const std::string& file) {
    const auto subjects = LibrarySubjects(file);
    return subjects ? std::string("accepted") : subjects.error().message;
  };
  EXPECT_THAT(message("/nowhere/kernel.so"), HasSubstr("/nowhere/kernel.so: cannot be loaded"));
  EXPECT_THAT(message(std::string(ATTEST_SOURCE_DIR) + "/README.md"), HasSubstr("cannot be loaded"));
  EXPECT_THAT(message("libm.so.6"), HasSubstr("cannot be loaded"));  // names are not searched for
  EXPECT_THAT(message(TestLibrary("conform_old_kernel")), HasSubstr("abi_version is 2, expected 1"));
}

}  // namespace
}  // namespace attest::conform
