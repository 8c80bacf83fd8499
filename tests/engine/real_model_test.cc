// The invariance of the engine on real weights: what a request gets does not depend on its batch, the token
// budget, the block size, a preemption or what the prefix cache has of it, beyond rounding.
//
// "Beyond rounding" is a number that each run derives. Against the precise mode (every product and every K
// and V element in float32) the request alone is off by at most E on a logit and by e in the root mean square
// (measured over all positions and all ids of the same texts). Another schedule takes other kernels and other
// orders of sums, which round as coarsely: it is off by E and e too, in another direction at worst, so two
// schedules differ by at most 2 E on a logit and 2 e in the root mean square, and choose differently only
// where the two best logits are closer than 4 E. Such near-ties are counted and printed; anything else fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "device/cpu.h"
#include "engine/runner.h"
#include "io/checkpoint.h"
#include "model/model.h"
#include "tests/engine/sequential_engine.h"
#include "tests/support/models.h"
#include "tests/support/sanitizers.h"

namespace attest::testing {
namespace {

struct Setup {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Model> model;
};

// One thread: two of them meet thousands of times a second, which on a machine full of other tests is
// waiting.
Setup LoadModel(const std::filesystem::path& path, int block_size, bool precise) {
  Setup setup;
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  setup.checkpoint = std::move(*checkpoint);
  ModelOptions options;
  options.cpu = DetectCpu();
  options.kv_dtype = precise ? DType::kF32 : DType::kBF16;
  options.compute = precise ? ComputeMode::kPrecise : ComputeMode::kFast;
  options.block_size = block_size;
  setup.team = std::make_unique<ThreadTeam>(ThreadTeamOptions{.num_threads = 1, .pin = false});
  auto model = Model::Load(*setup.checkpoint, options, *setup.team);
  EXPECT_TRUE(model) << model.error().message;
  setup.model = std::move(*model);
  return setup;
}

// How the requests are served.
struct Serving {
  const char* name;
  int block_size = 16;
  int64_t num_blocks = 200;
  int32_t budget = 4096;
  int32_t max_num_seqs = 8;
  bool alone = false;  // one after the other
  bool must_preempt = false;
  bool prefix_caching = false;
};

// Of each request: the logits from which each token was chosen, and the tokens.
struct Text {
  std::vector<std::vector<float>> rows;
  std::vector<int32_t> tokens;
};

std::vector<Text> Serve(Setup& setup, const std::vector<RequestSpec>& specs, const Serving& serving) {
  auto kv = KvStorage::Allocate(ModelRunner::KvShapeOf(*setup.model), serving.num_blocks);
  EXPECT_TRUE(kv) << kv.error().message;
  auto runner = ModelRunner::Create(*setup.model, std::move(*kv), *setup.team);
  EXPECT_TRUE(runner) << runner.error().message;
  SequentialEngine engine({.block_size = serving.block_size,
                           .num_blocks = serving.num_blocks,
                           .max_model_len = 512,
                           .max_num_seqs = serving.max_num_seqs,
                           .max_num_batched_tokens = serving.budget,
                           .vocab_size = setup.model->config().vocab_size,
                           .kv_windows = WindowsOf(setup.model->kv_groups()),
                           .prefix_caching = serving.prefix_caching},
                          **runner);
  std::vector<Text> texts(specs.size());
  std::vector<Outcome> outcomes(specs.size());
  std::map<const Sequence*, size_t> index;
  std::function<void(const StepPlan&, View<const float, 2>)> on_logits = [&](const StepPlan& plan,
                                                                             View<const float, 2> logits) {
    int64_t row = 0;
    for (const ScheduledSeq& share : plan.seqs) {
      if (!share.samples) continue;
      texts[index.at(share.seq)].rows.emplace_back(logits.At(row), logits.At(row) + logits.shape[1]);
      ++row;
    }
  };
  if (serving.prefix_caching) {  // once before, last first, so that the first ones find what they share
    std::vector<Outcome> first(specs.size());
    for (size_t i = specs.size(); i-- > 0;) engine.Add(specs[i], &first[i]);
    engine.Finish(5000);
  }
  engine.on_logits = on_logits;
  for (size_t i = 0; i < specs.size(); ++i) {
    index[engine.Add(specs[i], &outcomes[i])] = i;
    if (serving.alone) {
      engine.Finish(1000);
      index.clear();
    }
  }
  engine.Finish(5000);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(outcomes[i].reason, FinishReason::kLength) << outcomes[i].error;
    texts[i].tokens = outcomes[i].tokens;
  }
  if (serving.prefix_caching) {
    EXPECT_GT(engine.scheduler().cache_hits(), 0) << serving.name;
  }
  if (serving.must_preempt) {
    EXPECT_GT(engine.scheduler().num_preemptions(), 0) << serving.name;
  }
  return texts;
}

struct Difference {
  double max_logit = 0;  // over all ids of all positions with the same history
  double rms_logit = 0;
  std::vector<double> mismatch_gaps;  // best minus second best, where the two runs chose differently
  int positions = 0;
};

double GapOfBest(const std::vector<float>& row) {
  float best = -INFINITY, second = -INFINITY;
  for (const float value : row) {
    if (value > best) {
      second = best;
      best = value;
    } else {
      second = std::max(second, value);
    }
  }
  return double{best} - double{second};
}

Difference Compare(const std::vector<Text>& a, const std::vector<Text>& b) {
  Difference difference;
  double squares = 0;
  int64_t logits = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t t = 0; t < std::min(a[i].rows.size(), b[i].rows.size()); ++t) {
      ++difference.positions;
      for (size_t id = 0; id < a[i].rows[t].size(); ++id) {
        const double distance = std::abs(double{a[i].rows[t][id]} - double{b[i].rows[t][id]});
        difference.max_logit = std::max(difference.max_logit, distance);
        squares += distance * distance;
        ++logits;
      }
      if (a[i].tokens[t] != b[i].tokens[t]) {
        difference.mismatch_gaps.push_back(GapOfBest(a[i].rows[t]));
        break;  // the histories part here
      }
    }
  }
  difference.rms_logit = logits == 0 ? 0 : std::sqrt(squares / static_cast<double>(logits));
  return difference;
}

void ExpectTheSameTextsHoweverServed(const std::filesystem::path& path, const std::vector<RequestSpec>& specs,
                                     const std::vector<Serving>& servings) {
  Setup setup = LoadModel(path, 16, /*precise=*/true);
  const std::vector<Text> precise = Serve(setup, specs, {.name = "alone, precise", .alone = true});
  setup = LoadModel(path, 16, /*precise=*/false);
  const std::vector<Text> alone = Serve(setup, specs, {.name = "alone", .alone = true});
  const Difference rounding = Compare(alone, precise);
  const double bound = 2 * rounding.max_logit, rms_bound = 2 * rounding.rms_logit;
  std::printf("  bounds from the precise mode: %.3g on a logit, %.3g on a gap, rms %.3g\n", bound, 2 * bound,
              rms_bound);
  ASSERT_GT(bound, 0);

  int positions = 0, near_ties = 0;
  for (const Serving& serving : servings) {
    if (setup.model->attention_spec().block_size != serving.block_size) {
      setup = LoadModel(path, serving.block_size, /*precise=*/false);
    }
    const std::vector<Text> texts = Serve(setup, specs, serving);
    const Difference difference = Compare(alone, texts);
    std::printf("  %-28s %3d positions, largest logit difference %.3g, rms %.3g, %zu near-ties\n",
                serving.name, difference.positions, difference.max_logit, difference.rms_logit,
                difference.mismatch_gaps.size());
    EXPECT_LE(difference.max_logit, bound) << serving.name;
    EXPECT_LE(difference.rms_logit, rms_bound) << serving.name;
    for (const double gap : difference.mismatch_gaps) {
      EXPECT_LE(gap, 2 * bound) << serving.name << ": another token where the choice was clear";
      std::printf("    near-tie: gap %.3g\n", gap);
    }
    positions += difference.positions;
    near_ties += static_cast<int>(difference.mismatch_gaps.size());
  }
  std::printf("  in all: %d positions, %d near-ties\n", positions, near_ties);
}

std::vector<RequestSpec> Greedy(const std::vector<std::vector<int32_t>>& prompts, int32_t max_tokens) {
  std::vector<RequestSpec> specs;
  for (const auto& prompt : prompts) {
    RequestSpec spec{.prompt = prompt, .sampling = {}, .eos_ids = {}};
    spec.sampling.temperature = 0;
    spec.sampling.max_tokens = max_tokens;
    specs.push_back(std::move(spec));
  }
  return specs;
}

TEST(RealModel, TinyCheckpointsGiveTheSameTextsHoweverServed) {
  std::vector<std::vector<int32_t>> prompts;
  for (const int32_t length : {1, 2, 5, 16, 17, 33, 48}) {
    prompts.emplace_back();
    for (int32_t i = 0; i < length; ++i) prompts.back().push_back((i * 37 + length * 11) % 60);
  }
  for (const char* name : {"tiny_untied_llama3", "tiny_tied_yarn"}) {
    std::printf("%s\n", name);
    ExpectTheSameTextsHoweverServed(std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/model" / name,
                                    Greedy(prompts, 20),
                                    {{.name = "together"},
                                     {.name = "together, budget 1", .budget = 1},
                                     {.name = "together, budget 7", .budget = 7},
                                     {.name = "two at a time, budget 16", .budget = 16, .max_num_seqs = 2},
                                     {.name = "preempted", .num_blocks = 12, .must_preempt = true},
                                     {.name = "blocks of 8, preempted",
                                      .block_size = 8,
                                      .num_blocks = 20,
                                      .budget = 40,
                                      .must_preempt = true},
                                     {.name = "prefix cache", .prefix_caching = true},
                                     {.name = "prefix cache, preempted, blocks of 8",
                                      .block_size = 8,
                                      .num_blocks = 20,
                                      .budget = 7,
                                      .must_preempt = true,
                                      .prefix_caching = true},
                                     {.name = "blocks of 32", .block_size = 32},
                                     {.name = "blocks of 64", .block_size = 64, .budget = 33},
                                     {.name = "blocks of 128", .block_size = 128}});
  }
}

// The same with windows of 21 and 18 tokens, in one and in three KV groups: most of the prompt is behind the
// window of the last rows, and its blocks are given back while the request runs.
TEST(RealModel, TinyCheckpointsWithWindowsGiveTheSameTextsHoweverServed) {
  std::vector<std::vector<int32_t>> prompts;
  for (const int32_t length : {1, 5, 17, 33, 70}) {
    prompts.emplace_back();
    for (int32_t i = 0; i < length; ++i) prompts.back().push_back((i * 37 + (i < 16 ? 0 : length * 11)) % 60);
  }
  for (const auto& [name, groups] :
       {std::pair("tiny_mistral_window", 1), std::pair("tiny_ministral_hybrid", 3)}) {
    std::printf("%s\n", name);
    ExpectTheSameTextsHoweverServed(
        std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/model" / name, Greedy(prompts, 30),
        {{.name = "together"},
         {.name = "together, budget 7", .budget = 7},
         {.name = "preempted", .num_blocks = 4 + 7 * groups, .budget = 16, .must_preempt = true},
         {.name = "prefix cache", .prefix_caching = true},
         {.name = "prefix cache, preempted, blocks of 8",
          .block_size = 8,
          .num_blocks = 4 + 13 * groups,
          .budget = 7,
          .must_preempt = true,
          .prefix_caching = true},
         {.name = "blocks of 64", .block_size = 64, .budget = 33}});
  }
}

// SmolLM2's ids of: "Once"; "The capital of France is"; the start of a Fibonacci function; "Water boils at a
// temperature of 100 degrees Celsius at sea level. At higher altitudes, the"; a chat about the sea.
const std::vector<std::vector<int32_t>> kSmolPrompts = {
    {6403},
    {504, 3575, 282, 4649, 314},
    {1604, 3987, 46477, 24, 94, 727, 472, 585, 304, 2067, 216, 34, 42, 448, 1003, 304, 472, 1003},
    {12615, 36411, 418,  253,  2779, 282,  216,  33,    32, 32, 5027,
     20590, 418,   3426, 1106, 30,   1814, 2061, 29326, 28, 260},
    {1,    9690, 198,   2683, 359, 253,  5356, 5646, 11173, 3365,  3511, 308,  34519, 28,   7018,
     411,  407,  19712, 8182, 2,   198,  1,    4093, 198,   19161, 1296, 1890, 8545,  563,  260,
     3426, 284,  260,   701,  617, 2330, 411,  357,  30,    2,     198,  1,    520,   9531, 198}};

TEST(RealModel, SmolLm2GivesTheSameTextsHoweverServed) {
  if (kSanitized) GTEST_SKIP() << "too slow under a sanitizer; the tiny checkpoints cover the code";
  const auto path = FindModel(kSmolLm2File);
  if (!path) GTEST_SKIP() << ModelMissing(kSmolLm2File);
  ExpectTheSameTextsHoweverServed(*path, Greedy(kSmolPrompts, 16),
                                  {{.name = "together"},
                                   {.name = "together, budget 7", .budget = 7},
                                   {.name = "two at a time, budget 32", .budget = 32, .max_num_seqs = 2},
                                   {.name = "preempted", .num_blocks = 8, .must_preempt = true},
                                   {.name = "prefix cache", .prefix_caching = true},
                                   {.name = "prefix cache, blocks of 8, preempted",
                                    .block_size = 8,
                                    .num_blocks = 14,
                                    .budget = 20,
                                    .must_preempt = true,
                                    .prefix_caching = true},
                                   {.name = "blocks of 8", .block_size = 8, .budget = 50},
                                   {.name = "blocks of 128", .block_size = 128}});
}

}  // namespace
}  // namespace attest::testing
