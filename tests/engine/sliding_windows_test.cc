// Layers with sliding windows: blocks behind a window go back to the pool while the sequence runs, groups of
// layers share one pool, and what was given back is never read again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "device/cpu.h"
#include "engine/kv_calibration.h"
#include "engine/runner.h"
#include "io/checkpoint.h"
#include "model/model.h"
#include "tests/engine/sequential_engine.h"
#include "tests/support/toy_runner.h"

namespace attest::testing {
namespace {

EngineOptions WindowOptions(const std::vector<KvWindow>& windows, int64_t num_blocks) {
  return {.block_size = 4,
          .num_blocks = num_blocks,
          .max_model_len = 400,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 8,
          .vocab_size = kToyVocab,
          .kv_windows = windows,
          .prefix_caching = false};
}

// A generation far longer than the pool: 300 tokens through seven blocks of 4, with a window of 9.
TEST(SlidingWindows, BlocksBehindTheWindowAreReallyGivenBack) {
  const std::vector<KvWindow> windows{9};
  const EngineOptions options = WindowOptions(windows, 8);
  ToyRunner runner(SizesOf(options));
  SequentialEngine engine(options, runner);
  const RequestSpec spec = Spec(Prompt(50, 3), 250);
  Outcome outcome;
  Sequence* const seq = engine.Add(spec, &outcome);
  int64_t most = 0;
  while (!outcome.reason) {
    engine.Step();
    if (!outcome.reason) most = std::max(most, engine.pool().num_used());
    ASSERT_FALSE(HasFatalFailure());
    // Nine keys touch at most three blocks of four, and those of a step of eight with the eight before it
    // five.
    if (!outcome.reason) {
      ASSERT_LE(engine.pool().num_used(), seq->computed > 50 ? 3 : 5);
    }
  }
  EXPECT_LE(most, PeakBlocks({.windows = windows, .block_size = 4, .max_step_tokens = 8}, 300));
  EXPECT_EQ(outcome, RunAlone(spec, windows));
  EXPECT_EQ(outcome.tokens.size(), 250u);
}

// A full layer and one that sees nine tokens draw from one pool: the second takes no more than its window and
// the step, however long the sequence grows.
TEST(SlidingWindows, OfTwoGroupsOnlyTheFullOneGrows) {
  const std::vector<KvWindow> windows{std::nullopt, 9};
  const EngineOptions options = WindowOptions(windows, 82);
  ToyRunner runner(SizesOf(options));
  SequentialEngine engine(options, runner);
  const RequestSpec spec = Spec(Prompt(50, 3), 250);
  Outcome outcome;
  Sequence* const seq = engine.Add(spec, &outcome);
  while (!outcome.reason) {
    engine.Step();
    ASSERT_FALSE(HasFatalFailure());
    if (outcome.reason) break;
    const auto held = [&](size_t group) {
      const std::vector<int32_t>& blocks = seq->tables[group].blocks;
      return std::ssize(blocks) - std::ranges::count(blocks, kNullBlock);
    };
    ASSERT_EQ(held(0), (seq->computed + 3) / 4);
    ASSERT_LE(held(1), seq->computed > 50 ? 3 : 5);
    ASSERT_EQ(engine.pool().num_used(), held(0) + held(1));
  }
  EXPECT_EQ(engine.pool().num_free(), engine.pool().num_usable());
  EXPECT_EQ(outcome, RunAlone(spec, windows));
}

// A pool of which one request needs every block: two groups of each of eight requests draw from it, and every
// request ends with its own text.
TEST(SlidingWindows, GroupsThatExhaustOnePoolPreemptAndNobodyStarves) {
  for (const std::vector<KvWindow>& windows :
       {std::vector<KvWindow>{std::nullopt, 9}, {20, 9}, {std::nullopt, 1}}) {
    EngineOptions options = WindowOptions(windows, 0);
    options.max_model_len = 120;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 16;
    options.prefix_caching = true;
    options.num_blocks =
        1 + PeakBlocks({.windows = windows, .block_size = 4, .max_step_tokens = 16}, options.max_model_len);
    ToyRunner runner(SizesOf(options));
    SequentialEngine engine(options, runner);
    std::vector<RequestSpec> specs;
    std::vector<Outcome> outcomes(8);
    for (uint32_t i = 0; i < 8; ++i) {
      specs.push_back(Spec(Prompt(10 + static_cast<int32_t>(i), i), 100));
      engine.Add(specs.back(), &outcomes[i]);
    }
    engine.Finish(20000);
    EXPECT_GT(engine.scheduler().num_preemptions(), 0);
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(outcomes[i], RunAlone(specs[i], windows)) << i;
  }
}

// The blocks at the beginning of a prompt leave the cache first. What is left of it still serves a prompt
// that goes on behind it, as far as every group has what the next row sees.
TEST(SlidingWindows, APrefixHitNeedsOnlyWhatTheWindowSees) {
  const std::vector<KvWindow> windows{9};
  EngineOptions options = WindowOptions(windows, 18);
  options.max_num_seqs = 1;
  options.prefix_caching = true;
  ToyRunner runner(SizesOf(options));
  SequentialEngine engine(options, runner);
  const RequestSpec spec = Spec(Prompt(49, 3), 4);
  Outcome first, other, again;
  engine.Add(spec, &first);
  engine.Finish(100);
  // Another prompt takes the blocks that are unused for longest: those that the first one's window passed
  // first.
  engine.Add(Spec(Prompt(20, 4), 1), &other);
  engine.Finish(100);
  Sequence* const seq = engine.Add(spec, &again);
  engine.Step();
  EXPECT_EQ(seq->cached, 48);
  EXPECT_EQ(seq->tables[0].blocks[0], kNullBlock);
  engine.Finish(100);
  EXPECT_EQ(again, first);
  EXPECT_EQ(again, RunAlone(spec, windows));
}

// A prompt of which only the beginning is shared needs that beginning's window from every group. It is there
// at first; once another prompt has taken those blocks, what the full group has of it is no hit.
TEST(SlidingWindows, APrefixHitNeedsTheWindowOfEveryGroup) {
  const std::vector<KvWindow> windows{std::nullopt, 9};
  EngineOptions options = WindowOptions(windows, 34);
  options.max_num_seqs = 1;
  options.prefix_caching = true;
  const RequestSpec whole = Spec(Prompt(60, 3), 1), other = Spec(Prompt(20, 4), 1);
  RequestSpec beginning = whole;
  beginning.prompt.resize(25);
  const auto cached_of = [&](SequentialEngine& engine, const RequestSpec& spec) {
    Outcome outcome;
    engine.Add(spec, &outcome);
    const int64_t before = engine.scheduler().cache_hits();
    engine.Finish(100);
    EXPECT_EQ(outcome, RunAlone(spec, windows));
    return engine.scheduler().cache_hits() - before;
  };
  {
    ToyRunner runner(SizesOf(options));
    SequentialEngine engine(options, runner);
    EXPECT_EQ(cached_of(engine, whole), 0);
    EXPECT_EQ(cached_of(engine, beginning), 24);
  }
  ToyRunner runner(SizesOf(options));
  SequentialEngine engine(options, runner);
  EXPECT_EQ(cached_of(engine, whole), 0);   // 15 blocks of each group are kept, three of the pool are empty
  EXPECT_EQ(cached_of(engine, other), 0);   // five of each: takes the first seven that the window passed
  EXPECT_EQ(cached_of(engine, whole), 56);  // its last window is still there
  EXPECT_EQ(cached_of(engine, beginning), 0);
}

// ---- The real runner -------------------------------------------------------------------------------------

struct WindowedModel {
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Model> model;
  KvScales scales;
};

WindowedModel LoadWindowed(const char* name, DType kv_dtype, bool deterministic) {
  WindowedModel loaded;
  const auto checkpoint =
      Checkpoint::Open(std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/model" / name);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  ModelOptions options;
  options.cpu = DetectCpu();
  options.kv_dtype = kv_dtype;
  options.block_size = 8;
  options.deterministic = deterministic;
  loaded.team = std::make_unique<ThreadTeam>(ThreadTeamOptions{.num_threads = 1, .pin = false});
  auto model = Model::Load(**checkpoint, options, *loaded.team);
  EXPECT_TRUE(model) << model.error().message;
  loaded.model = std::move(*model);
  if (kv_dtype == DType::kI8) {
    const int32_t tokens[] = {1, 2, 3, 5, 8, 13, 21, 34, 55};
    auto scales = CalibrateKvScales(*loaded.model, tokens, *loaded.team);
    EXPECT_TRUE(scales) << scales.error().message;
    loaded.scales = std::move(*scales);
  }
  return loaded;
}

// Before each step it fills every block that nobody owns and no cache keeps, and the null block that stands
// for passed ones, with NaN (int8: with its largest number).
class PoisoningRunner final : public StepRunner {
 public:
  PoisoningRunner(std::unique_ptr<ModelRunner> runner, std::vector<PagedKv> layers)
      : runner_(std::move(runner)), layers_(std::move(layers)) {}
  void Watch(const BlockPool& pool) { pool_ = &pool; }
  Status Run(const StepBatch& batch, View<float, 2> logits) override {
    if (pool_ != nullptr) {
      Poison(kNullBlock);
      for (const int32_t block : pool_->FreeList()) {
        if (!pool_->is_kept(block)) Poison(block);
      }
    }
    return runner_->Run(batch, logits);
  }

 private:
  void Poison(int32_t block) {
    for (const PagedKv& layer : layers_) {
      for (const KvPages& pages : {layer.k, layer.v}) {
        const auto bytes = static_cast<size_t>(RowBytes(layer.dtype, pages.block_stride));
        std::memset(static_cast<std::byte*>(pages.data) + static_cast<size_t>(block) * bytes,
                    layer.dtype == DType::kI8 ? 0x7F : 0xFF, bytes);
      }
    }
  }

  std::unique_ptr<ModelRunner> runner_;
  std::vector<PagedKv> layers_;
  const BlockPool* pool_ = nullptr;
};

struct WindowedServing {
  int64_t blocks_per_group = 60;
  int32_t budget = 20;
  bool alone = false, gives_back = true, poisons = false, prefix_caching = false;
};

struct WindowedTexts {
  std::vector<std::vector<std::vector<float>>> rows;  // [request, token, id]
  std::vector<Outcome> outcomes;
  int64_t preemptions = 0, hits = 0;
};

WindowedTexts ServeWindowed(WindowedModel& loaded, const std::vector<RequestSpec>& specs,
                            const WindowedServing& serving, Sentinel* sentinel = nullptr) {
  std::vector<KvWindow> windows = WindowsOf(loaded.model->kv_groups());
  const int64_t num_blocks = 1 + serving.blocks_per_group * std::ssize(windows);
  if (!serving.gives_back) windows.assign(windows.size(), std::nullopt);
  auto kv = KvStorage::Allocate(ModelRunner::KvShapeOf(*loaded.model), num_blocks, loaded.scales);
  EXPECT_TRUE(kv) << kv.error().message;
  const std::vector<PagedKv> layers = kv->layers();
  auto inner = ModelRunner::Create(*loaded.model, std::move(*kv), *loaded.team, sentinel);
  EXPECT_TRUE(inner) << inner.error().message;
  PoisoningRunner runner(std::move(*inner), layers);
  SequentialEngine engine({.block_size = 8,
                           .num_blocks = num_blocks,
                           .max_model_len = 512,
                           .max_num_seqs = 8,
                           .max_num_batched_tokens = serving.budget,
                           .vocab_size = loaded.model->config().vocab_size,
                           .kv_windows = windows,
                           .prefix_caching = serving.prefix_caching},
                          runner);
  if (serving.poisons) runner.Watch(engine.pool());
  WindowedTexts texts{.rows = std::vector<std::vector<std::vector<float>>>(specs.size()),
                      .outcomes = std::vector<Outcome>(specs.size())};
  std::map<const Sequence*, size_t> index;
  engine.on_logits = [&](const StepPlan& plan, View<const float, 2> logits) {
    int64_t row = 0;
    for (const ScheduledSeq& share : plan.seqs) {
      if (!share.samples) continue;
      texts.rows[index.at(share.seq)].emplace_back(logits.At(row), logits.At(row) + logits.shape[1]);
      ++row;
    }
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    index[engine.Add(specs[i], &texts.outcomes[i])] = i;
    if (serving.alone) {
      engine.Finish(1000);
      index.clear();
    }
  }
  engine.Finish(5000);
  texts.preemptions = engine.scheduler().num_preemptions();
  texts.hits = engine.scheduler().cache_hits();
  return texts;
}

// The second half of the prompts begins as the first half does.
std::vector<RequestSpec> WindowedRequests() {
  std::vector<RequestSpec> specs;
  for (const int32_t length : {5, 33, 70, 40, 64, 90}) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < length; ++i) {
      prompt.push_back((i * 37 + (i < 32 ? 0 : length * 11)) % 250);
    }
    specs.push_back(Spec(std::move(prompt), 40));
  }
  return specs;
}

void ExpectEveryRowChecked(const Sentinel& sentinel) {
  int64_t checked = 0;
  for (const SentinelCounts& counts : sentinel.stats().counts) {
    checked += counts.rows_checked;
    EXPECT_EQ(counts.mismatches, 0) << counts.kernel;
    EXPECT_EQ(counts.unverifiable, 0) << counts.kernel << ": the oracle read a block that is nobody's";
  }
  EXPECT_GT(checked, 1000);
}

// With --deterministic a row's bits depend on its sequence alone, so they can be compared across schedules:
// alone with every block kept, and in a crowd that takes each block as soon as a window has passed it.
TEST(SlidingWindows, BlocksGivenBackMayBecomeNansAndNoBitChanges) {
  const std::vector<RequestSpec> specs = WindowedRequests();
  for (const char* name : {"tiny_mistral_window", "tiny_ministral_hybrid"}) {
    for (const DType kv_dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kI8}) {
      SCOPED_TRACE(::testing::Message() << name << " with KV in " << DTypeName(kv_dtype));
      WindowedModel loaded = LoadWindowed(name, kv_dtype, /*deterministic=*/true);
      const WindowedTexts want = ServeWindowed(loaded, specs, {.alone = true, .gives_back = false});
      for (const bool prefix_caching : {false, true}) {
        Sentinel sentinel({.rate = 1, .on_mismatch = OnMismatch::kLog});
        const WindowedTexts got = ServeWindowed(
            loaded, specs, {.blocks_per_group = 17, .poisons = true, .prefix_caching = prefix_caching},
            &sentinel);
        EXPECT_EQ(got.rows == want.rows, true);
        EXPECT_EQ(got.outcomes, want.outcomes);
        EXPECT_GT(got.preemptions, 0);
        if (prefix_caching) {
          EXPECT_GT(got.hits, 0);
        }
        ExpectEveryRowChecked(sentinel);
      }
    }
  }
}

// The default kernels, whose bits depend on the schedule, in the same schedule with and without giving back.
TEST(SlidingWindows, TheFastKernelsReadNothingThatWasGivenBack) {
  const std::vector<RequestSpec> specs = WindowedRequests();
  for (const char* name : {"tiny_mistral_window", "tiny_ministral_hybrid"}) {
    for (const DType kv_dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kI8}) {
      SCOPED_TRACE(::testing::Message() << name << " with KV in " << DTypeName(kv_dtype));
      WindowedModel loaded = LoadWindowed(name, kv_dtype, /*deterministic=*/false);
      for (const int32_t budget : {7, 20, 400}) {
        const WindowedTexts want =
            ServeWindowed(loaded, specs, {.blocks_per_group = 200, .budget = budget, .gives_back = false});
        Sentinel sentinel({.rate = 1, .on_mismatch = OnMismatch::kLog});
        const WindowedTexts got = ServeWindowed(
            loaded, specs, {.blocks_per_group = 200, .budget = budget, .poisons = true}, &sentinel);
        EXPECT_EQ(got.preemptions, 0);
        EXPECT_EQ(got.rows == want.rows, true) << "budget " << budget;
        EXPECT_EQ(got.outcomes, want.outcomes);
        ExpectEveryRowChecked(sentinel);
      }
    }
  }
}

}  // namespace
}  // namespace attest::testing
