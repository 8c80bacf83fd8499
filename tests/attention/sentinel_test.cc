// The sentinel checks the rows it promises, sees a wrong one where it is, and keeps what is needed to see it
// again. The kernels are right here; a row is made wrong after they have run.
#include "attention/sentinel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "attention/replay.h"
#include "base/log.h"
#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"
#include "tests/support/temp_folder.h"

namespace attest::testing {
namespace {

using ::testing::HasSubstr;

AttentionSpec Spec() {
  AttentionSpec spec = MakeSpec(6, 2, 64);
  spec.wants_lse = false;
  return spec;
}

// Steps of three sequences (a decode, a prefill, an extend) through some layers, as the engine makes them.
class Steps {
 public:
  static constexpr int kLayers = 4;
  static constexpr int64_t kRowsPerLayer = (1 + 12 + 9) * 6;

  explicit Steps(Sentinel& sentinel) : sentinel_(sentinel) {}

  using Spoil = std::function<void(int layer, const AttentionParams& params)>;
  void Run(const Spoil& spoil = {}) {
    const auto router = AttentionRouter::Create(ThisCpu());
    const auto plan = PlanAttention(*router, batch_.spec(), batch_.lengths(), 2);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    const AttentionBatch::Output output = batch_.MakeOutput(kNaN);
    const AttentionParams params = batch_.Tensors(output);
    AttendArgs args{.q = {.data = reinterpret_cast<const float*>(params.q.data),
                          .shape = params.q.shape,
                          .stride = params.q.stride},
                    .out = {.data = reinterpret_cast<float*>(params.out.data),
                            .shape = params.out.shape,
                            .stride = params.out.stride},
                    .kv = params.paged};
    sentinel_.BeginStep();
    for (int layer = 0; layer < kLayers; ++layer) {
      Attend(**plan, args, Team(2));
      if (spoil) spoil(layer, params);
      sentinel_.AfterAttend(layer, **plan, args, Team(2));
    }
  }

 private:
  Sentinel& sentinel_;
  AttentionBatch batch_{Spec(), {1, 12, 9}, {40, 12, 70}};
};

float* OutRow(const AttentionParams& params, int64_t token, int64_t head) {
  return reinterpret_cast<float*>(params.OutRow(token, head));
}

int64_t Sum(const SentinelStats& stats, int64_t SentinelCounts::* member) {
  int64_t sum = 0;
  for (const SentinelCounts& counts : stats.counts) sum += counts.*member;
  return sum;
}

TEST(Sentinel, AtRateOneChecksEveryRowOnceAndFindsCorrectKernelsRight) {
  Sentinel sentinel({.rate = 1});
  Steps steps(sentinel);
  for (int i = 0; i < 2; ++i) steps.Run();
  const SentinelStats stats = sentinel.stats();
  EXPECT_EQ(Sum(stats, &SentinelCounts::rows_checked), 2 * Steps::kLayers * Steps::kRowsPerLayer);
  EXPECT_EQ(Sum(stats, &SentinelCounts::mismatches), 0);
  EXPECT_EQ(Sum(stats, &SentinelCounts::unverifiable), 0);
  EXPECT_EQ(stats.counts.size(), 3u);  // decode, prefill, extend
  for (const SentinelCounts& counts : stats.counts) {
    EXPECT_GT(counts.worst_error, 0);
    EXPECT_LT(counts.worst_ratio, 1);
  }
  EXPECT_TRUE(sentinel.TakeMismatches().empty());
}

TEST(Sentinel, ChecksTheFirstRowOfEachKernelAndTheFractionItPromises) {
  for (const double rate : {0.5, 0.3, 0.01}) {
    SCOPED_TRACE(rate);
    Sentinel sentinel({.rate = rate, .seed = 5});
    Steps steps(sentinel);
    steps.Run();
    for (const SentinelCounts& counts : sentinel.stats().counts) EXPECT_GE(counts.rows_checked, 1);
    constexpr int kSteps = 20;
    for (int i = 1; i < kSteps; ++i) steps.Run();
    const double rows = kSteps * Steps::kLayers * Steps::kRowsPerLayer;
    const auto checked = static_cast<double>(Sum(sentinel.stats(), &SentinelCounts::rows_checked));
    // The first windows of each of three kernels are short; the last may not have ended.
    EXPECT_GE(checked, rows * rate - 3);
    EXPECT_LE(checked, rows * rate + 3 * (2 + std::log2(1 / rate)));
  }
}

TEST(Sentinel, SeesAKernelThatTurnsWrongWithinTwoWindows) {
  constexpr double kRate = 0.002;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    Sentinel sentinel({.rate = kRate, .seed = seed});
    Steps steps(sentinel);
    for (int i = 0; i < 30; ++i) steps.Run();
    EXPECT_TRUE(sentinel.TakeMismatches().empty());
    // 9 extend rows of 6 heads in 4 layers of each step.
    const int bound = static_cast<int>(std::ceil(2 / kRate / (9 * 6 * Steps::kLayers)));
    bool seen = false;
    for (int i = 0; i < bound && !seen; ++i) {
      steps.Run([](int, const AttentionParams& params) {
        for (int64_t token = 13; token < 22; ++token) {
          for (int head = 0; head < 6; ++head) OutRow(params, token, head)[63] += 1;
        }
      });
      seen = !sentinel.TakeMismatches().empty();
    }
    EXPECT_TRUE(seen) << "seed " << seed << ", " << bound << " steps";
  }
}

TEST(Sentinel, ChecksTheVeryFirstRowOfEachKernel) {
  Sentinel sentinel({.rate = 1e-4, .seed = 3});
  Steps steps(sentinel);
  steps.Run([](int layer, const AttentionParams& params) {
    if (layer != 0) return;
    for (const int64_t token : {0, 1, 13}) *OutRow(params, token, 0) += 1;  // of each sequence, head 0
  });
  EXPECT_EQ(Sum(sentinel.stats(), &SentinelCounts::mismatches), 3);
}

TEST(Sentinel, LooksAtOtherRowsWhenAWindowIsAsLongAsAStep) {
  // 9 rows of 6 heads in 4 layers are an extend step and a window.
  Sentinel sentinel({.rate = 1.0 / (9 * 6 * Steps::kLayers), .seed = 2});
  Steps steps(sentinel);
  std::map<std::tuple<int, int, int>, int> places;
  for (int i = 0; i < 60; ++i) {
    steps.Run([](int, const AttentionParams& params) {
      for (int64_t token = 13; token < 22; ++token) {
        for (int head = 0; head < 6; ++head) *OutRow(params, token, head) += 1;
      }
    });
    for (const Mismatch& m : sentinel.TakeMismatches()) {
      if (i >= 10) ++places[{m.layer, m.row, m.head}];  // windows have their length by then
    }
  }
  EXPECT_GT(places.size(), 25u);
}

// Sequences of one phase are one group: a row's place in it must lead back to its sequence.
TEST(Sentinel, NamesTheSequenceOfAGroup) {
  Sentinel sentinel({.rate = 1});
  AttentionBatch batch{Spec(), {1, 12, 1, 12, 1}, {40, 12, 9, 12, 70}};
  const auto router = AttentionRouter::Create(ThisCpu());
  const auto plan = PlanAttention(*router, batch.spec(), batch.lengths(), 2);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  const AttentionParams params = batch.Tensors(output);
  const AttendArgs args{.q = {.data = reinterpret_cast<const float*>(params.q.data),
                              .shape = params.q.shape,
                              .stride = params.q.stride},
                        .out = {.data = reinterpret_cast<float*>(params.out.data),
                                .shape = params.out.shape,
                                .stride = params.out.stride},
                        .kv = params.paged};
  sentinel.BeginStep();
  Attend(**plan, args, Team(2));
  const int64_t second_prefill = batch.q_begin().begin(3) + 5, last_decode = batch.q_begin().begin(4);
  OutRow(params, second_prefill, 2)[7] += 1;
  OutRow(params, last_decode, 4)[9] += 1;
  sentinel.AfterAttend(0, **plan, args, Team(2));
  const std::vector<Mismatch> found = sentinel.TakeMismatches();
  ASSERT_EQ(found.size(), 2u);
  for (const Mismatch& m : found) {
    const bool decode = m.phase == AttentionPhase::kDecode;
    EXPECT_EQ(m.seq, decode ? 4 : 3);
    EXPECT_EQ(m.row, decode ? 0 : 5);
    EXPECT_EQ(m.head, decode ? 4 : 2);
    EXPECT_EQ(m.verdict.dim, decode ? 9 : 7);
  }
}

TEST(Sentinel, SpreadsItsRowsOverLayersTokensAndHeads) {
  // Every row is wrong, so that every check tells where it was.
  std::map<int, int> layers, heads, rows;
  Sentinel sentinel({.rate = 0.004, .seed = 9});
  Steps steps(sentinel);
  for (int i = 0; i < 100; ++i) {
    steps.Run([](int, const AttentionParams& params) {
      for (int64_t token = 0; token < params.out.shape[0]; ++token) {
        for (int head = 0; head < 6; ++head) *OutRow(params, token, head) += 1;
      }
    });
    for (const Mismatch& mismatch : sentinel.TakeMismatches()) {
      ++layers[mismatch.layer], ++heads[mismatch.head], ++rows[mismatch.row];
    }
  }
  EXPECT_EQ(layers.size(), 4u);
  EXPECT_EQ(heads.size(), 6u);
  EXPECT_EQ(rows.size(), 12u);
}

TEST(Sentinel, SamplesTheSameRowsForTheSameSeed) {
  const auto trace = [](uint64_t seed) {
    Sentinel sentinel({.rate = 0.02, .seed = seed});
    Steps steps(sentinel);
    std::string text;
    for (int i = 0; i < 10; ++i) {
      steps.Run([](int, const AttentionParams& params) {
        for (int64_t i_row = 0; i_row < params.out.shape[0] * 6; ++i_row)
          *OutRow(params, i_row / 6, i_row % 6) = 9;
      });
      for (const Mismatch& mismatch : sentinel.TakeMismatches()) text += Describe(mismatch) + "\n";
    }
    return text;
  };
  EXPECT_EQ(trace(1), trace(1));
  EXPECT_NE(trace(1), trace(2));
}

TEST(Sentinel, NamesTheRowThatIsWrongAmongAllOfThem) {
  Sentinel sentinel({.rate = 1});
  Steps steps(sentinel);
  steps.Run();
  steps.Run([](int layer, const AttentionParams& params) {
    if (layer == 2) OutRow(params, 1 + 7, 4)[33] *= 1.5f;  // sequence 1, row 7
  });
  const std::vector<Mismatch> mismatches = sentinel.TakeMismatches();
  ASSERT_EQ(mismatches.size(), 1u);
  const Mismatch& mismatch = mismatches.front();
  EXPECT_EQ(mismatch.phase, AttentionPhase::kPrefill);
  EXPECT_EQ(mismatch.step, 2);
  EXPECT_EQ(mismatch.layer, 2);
  EXPECT_EQ(mismatch.seq, 1);
  EXPECT_EQ(mismatch.row, 7);
  EXPECT_EQ(mismatch.head, 4);
  EXPECT_EQ(mismatch.verdict.dim, 33);
  EXPECT_THAT(Describe(mismatch), HasSubstr("prefill: step 2 layer 2 sequence 1 row 7 head 4 dim 33"));
  EXPECT_TRUE(sentinel.TakeMismatches().empty());
  EXPECT_EQ(Sum(sentinel.stats(), &SentinelCounts::mismatches), 1);
}

TEST(Sentinel, SeesAValueThatIsNotFinite) {
  Sentinel sentinel({.rate = 1});
  Steps steps(sentinel);
  steps.Run([](int, const AttentionParams& params) { OutRow(params, 0, 0)[5] = kNaN; });
  ASSERT_EQ(sentinel.TakeMismatches().size(), 1u);
  const SentinelStats stats = sentinel.stats();
  EXPECT_EQ(stats.counts.front().worst_ratio, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(stats.counts.front().worst_error));
}

TEST(Sentinel, KeepsACaseThatShowsTheWrongRowAndReplaysRight) {
  const TempFolder folder;
  Sentinel sentinel({.rate = 1, .case_folder = folder.path() / "cases", .version = "1.2", .model = "tiny"});
  Steps steps(sentinel);
  for (int i = 0; i < 3; ++i) {
    steps.Run([](int layer, const AttentionParams& params) {
      if (layer == 1) OutRow(params, 13 + 5, 2)[9] += 0.5f;  // sequence 2, row 5
    });
  }
  sentinel.FlushCases();
  EXPECT_EQ(sentinel.stats().cases.written, 1);  // one for each kernel and phase
  const std::filesystem::directory_iterator files(folder.path() / "cases");
  const auto read = ReadCaseFile(files->path());
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->notes.at("version"), "1.2");
  EXPECT_EQ(read->notes.at("model"), "tiny");
  EXPECT_EQ(read->notes.at("phase"), "extend");
  EXPECT_EQ(read->notes.at("layer"), "1");
  EXPECT_EQ(read->notes.at("sequence"), "2");
  EXPECT_EQ(read->notes.at("row"), "5");
  EXPECT_EQ(read->notes.at("dim"), "9");
  EXPECT_EQ(read->q_len, (std::vector<int32_t>{1, 12, 9}));

  const auto router = AttentionRouter::Create(ThisCpu(), read->kernel);
  ASSERT_TRUE(router.has_value()) << router.error().message;
  const auto recorded = JudgeRecorded(*read, *router, Team(2));
  ASSERT_TRUE(recorded.has_value());
  EXPECT_EQ(recorded->rows, Steps::kRowsPerLayer);
  EXPECT_EQ(recorded->wrong_rows, 1);
  ASSERT_TRUE(recorded->first.has_value());
  EXPECT_EQ(recorded->first->seq, 2);
  EXPECT_EQ(recorded->first->row, 5);
  EXPECT_EQ(recorded->first->head, 2);
  EXPECT_EQ(recorded->first->dim, 9);
  const auto replayed = ReplayCase(*read, *router, Team(2));
  ASSERT_TRUE(replayed.has_value()) << replayed.error().message;
  EXPECT_FALSE(replayed->first.has_value());
  EXPECT_EQ(replayed->wrong_rows, 0);
  for (const PlannedRoute& route : replayed->routes) {
    EXPECT_THAT(read->kernel,
                HasSubstr(std::string(AttentionPhaseName(route.phase)) + "=" + std::string(route.kernel)));
  }
}

TEST(Sentinel, LogsTheFirstTheTenthAndTheHundredthWrongRowOfAKernel) {
  SetLogLevel(LogLevel::kInfo);
  Sentinel sentinel({.rate = 1});
  Steps steps(sentinel);
  ::testing::internal::CaptureStderr();
  // Every row of the prefill, 12 rows of 6 heads in 4 layers.
  steps.Run([](int, const AttentionParams& params) {
    for (int64_t token = 1; token < 13; ++token) {
      for (int head = 0; head < 6; ++head) *OutRow(params, token, head) += 1;
    }
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Sum(sentinel.stats(), &SentinelCounts::mismatches), 12 * 6 * 4);
  for (const char* line : {"(mismatch 1 of", "(mismatch 10 of", "(mismatch 100 of"})
    EXPECT_THAT(log, HasSubstr(line));
  EXPECT_EQ(std::ranges::count(log, '\n'), 3) << log;
}

// A call that is too large for a case is cut down to the sequence at fault, which is then the only one.
TEST(Sentinel, NumbersTheWrongSequenceAsTheCaseThatHoldsItAlone) {
  const TempFolder folder;
  Sentinel sentinel({.rate = 1, .case_folder = folder.path(), .max_case_bytes = 100'000});
  Steps steps(sentinel);
  steps.Run([](int layer, const AttentionParams& params) {
    if (layer == 1) OutRow(params, 13 + 5, 2)[9] += 0.5f;  // sequence 2, row 5
  });
  sentinel.FlushCases();
  const std::filesystem::directory_iterator files(folder.path());
  ASSERT_NE(files, std::filesystem::directory_iterator());
  const auto read = ReadCaseFile(files->path());
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->q_len, std::vector<int32_t>{9});
  EXPECT_EQ(read->notes.at("sequence"), "0");
  EXPECT_EQ(read->notes.at("row"), "5");
  EXPECT_THAT(read->notes.at("what"), HasSubstr("sequence 2 row 5"));
}

}  // namespace
}  // namespace attest::testing
