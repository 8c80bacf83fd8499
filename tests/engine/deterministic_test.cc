// --deterministic: the logits of a request are the same bits alone and in any company. Random schedules vary
// everything that a request does not choose: who runs beside it, when it arrives, the token budget, the cap
// on long prefills, the size of blocks, preemption, what the prefix cache has of it, and the number of
// threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "device/cpu.h"
#include "engine/kv_calibration.h"
#include "engine/runner.h"
#include "io/checkpoint.h"
#include "model/model.h"
#include "tests/engine/sequential_engine.h"
#include "tests/support/models.h"
#include "tests/support/sanitizers.h"

namespace attest::testing {
namespace {

struct Loaded {
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Model> model;
  KvScales scales;
};

struct ModelKey {
  int block_size = 16;
  int threads = 1;
  DType kv_dtype = DType::kBF16;
  auto operator<=>(const ModelKey&) const = default;
};

class Models {
 public:
  Models(std::filesystem::path path, bool deterministic)
      : path_(std::move(path)), deterministic_(deterministic) {}
  Loaded& Get(const ModelKey& key) {
    const auto [at, is_new] = loaded_.try_emplace(key);
    if (is_new) Load(key, at->second);
    return at->second;
  }

 private:
  void Load(const ModelKey& key, Loaded& loaded) {
    const auto checkpoint = Checkpoint::Open(path_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    ModelOptions options;
    options.cpu = DetectCpu();
    options.kv_dtype = key.kv_dtype;
    options.block_size = key.block_size;
    options.deterministic = deterministic_;
    loaded.team = std::make_unique<ThreadTeam>(ThreadTeamOptions{.num_threads = key.threads, .pin = false});
    auto model = Model::Load(**checkpoint, options, *loaded.team);
    ASSERT_TRUE(model) << model.error().message;
    loaded.model = std::move(*model);
    if (key.kv_dtype != DType::kI8) return;
    const int32_t tokens[] = {1, 2, 3, 5, 8, 13, 21, 34, 55};
    auto scales = CalibrateKvScales(*loaded.model, tokens, *loaded.team);
    ASSERT_TRUE(scales) << scales.error().message;
    loaded.scales = std::move(*scales);
  }

  std::filesystem::path path_;
  bool deterministic_;
  std::map<ModelKey, Loaded> loaded_;
};

struct Schedule {
  ModelKey model = {};
  int64_t num_blocks = 200;
  int32_t budget = 4096;
  int32_t max_num_seqs = 8;
  int32_t long_prefill = 0;
  bool prefix_caching = false;
  int companions = 0;
  uint32_t seed = 0;  // of arrivals and companions
  bool alone = false;
};

// Of each request: the logits from which each token was chosen, and what it got.
struct Text {
  std::vector<std::vector<float>> rows;
  Outcome outcome;
};

struct Seen {
  int64_t preemptions = 0, hits = 0;
};

std::vector<Text> Serve(Models& models, const std::vector<RequestSpec>& specs, const Schedule& s,
                        Seen& seen) {
  Loaded& loaded = models.Get(s.model);
  if (loaded.model == nullptr) return {};
  const int64_t num_blocks = s.num_blocks * std::ssize(loaded.model->kv_groups());
  auto kv = KvStorage::Allocate(ModelRunner::KvShapeOf(*loaded.model), num_blocks, loaded.scales);
  EXPECT_TRUE(kv) << kv.error().message;
  auto runner = ModelRunner::Create(*loaded.model, std::move(*kv), *loaded.team);
  EXPECT_TRUE(runner) << runner.error().message;
  const int64_t vocab = loaded.model->config().vocab_size;
  SequentialEngine engine({.block_size = s.model.block_size,
                           .num_blocks = num_blocks,
                           .max_model_len = 512,
                           .max_num_seqs = s.max_num_seqs,
                           .max_num_batched_tokens = s.budget,
                           .long_prefill_tokens = s.long_prefill,
                           .vocab_size = vocab,
                           .kv_windows = WindowsOf(loaded.model->kv_groups()),
                           .prefix_caching = s.prefix_caching},
                          **runner);
  engine.checks_invariants = false;  // other tests do, and here they would take nine tenths of the time
  std::mt19937 random(s.seed);
  std::vector<Text> texts(specs.size());
  std::vector<Outcome> outcomes(specs.size());
  std::map<RequestId, size_t> index;
  engine.on_logits = [&](const StepPlan& plan, View<const float, 2> logits) {
    int64_t row = 0;
    for (const ScheduledSeq& share : plan.seqs) {
      if (!share.samples) continue;
      if (const auto at = index.find(share.seq->id); at != index.end()) {
        texts[at->second].rows.emplace_back(logits.At(row), logits.At(row) + vocab);
      }
      ++row;
    }
  };
  // Ours and the companions, in a random order. A companion may begin as one of ours does.
  std::vector<int> order;
  for (size_t i = 0; i < specs.size(); ++i) order.push_back(static_cast<int>(i));
  for (int i = 0; i < s.companions; ++i) order.push_back(-1);
  if (!s.alone) std::shuffle(order.begin(), order.end(), random);
  std::vector<std::unique_ptr<Outcome>> others;
  for (const int which : order) {
    if (which >= 0) {
      const auto at = static_cast<size_t>(which);
      index[engine.Add(specs[at], &outcomes[at])->id] = at;
    } else {
      RequestSpec other;
      if (random() % 2 == 0) other.prompt = specs[random() % specs.size()].prompt;
      const size_t length = other.prompt.size() + 1 + random() % 40;
      while (other.prompt.size() < length) other.prompt.push_back(static_cast<int32_t>(random() % 60));
      other.sampling.max_tokens = 1 + static_cast<int32_t>(random() % 12);
      other.sampling.seed = random();
      others.push_back(std::make_unique<Outcome>());
      engine.Add(other, others.back().get());
    }
    if (s.alone) {
      engine.Finish(1000);
      index.clear();
    } else {
      for (uint32_t wait = random() % 4; wait > 0 && !engine.scheduler().idle(); --wait) engine.Step();
    }
  }
  engine.Finish(5000);
  seen.preemptions += engine.scheduler().num_preemptions();
  seen.hits += engine.scheduler().cache_hits();
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(outcomes[i].reason, FinishReason::kLength) << outcomes[i].error;
    texts[i].outcome = std::move(outcomes[i]);
  }
  return texts;
}

// How many rows of logits differ in any bit.
int64_t RowsThatDiffer(const std::vector<Text>& a, const std::vector<Text>& b) {
  int64_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].rows.size(), b[i].rows.size());
    for (size_t t = 0; t < std::min(a[i].rows.size(), b[i].rows.size()); ++t) {
      const auto& x = a[i].rows[t];
      const auto& y = b[i].rows[t];
      differ += std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0;
    }
  }
  return differ;
}

// Half of them greedy, half drawn with a seed; of a quarter the prompt is scored, and what they say.
std::vector<RequestSpec> Requests(const std::vector<std::vector<int32_t>>& prompts, int32_t max_tokens) {
  std::vector<RequestSpec> specs;
  for (size_t i = 0; i < prompts.size(); ++i) {
    RequestSpec spec{.prompt = prompts[i], .sampling = {}, .eos_ids = {}};
    spec.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    spec.sampling.seed = static_cast<int64_t>(1000 + i);
    spec.sampling.max_tokens = max_tokens;
    if (i % 4 == 3) spec.sampling.prompt_logprobs = spec.sampling.logprobs = 2;
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<std::vector<int32_t>> TinyPrompts() {
  std::vector<std::vector<int32_t>> prompts;
  for (const int32_t length : {1, 5, 16, 33, 70}) {
    prompts.emplace_back();
    for (int32_t i = 0; i < length; ++i) prompts.back().push_back((i * 37 + length * 11) % 60);
  }
  prompts.push_back(prompts[4]);  // shares its first blocks with another
  prompts.back().push_back(7);
  return prompts;
}

Schedule RandomSchedule(uint32_t seed, DType kv_dtype) {
  std::mt19937 random(seed);
  const auto one_of = [&](auto... values) {
    const int all[] = {values...};
    return all[random() % std::size(all)];
  };
  Schedule s;
  s.model = {.block_size = one_of(8, 16, 32), .threads = one_of(1, 1, 1, 2), .kv_dtype = kv_dtype};
  s.num_blocks = random() % 2 == 0 ? 130 / s.model.block_size + 3 : 200;  // few: somebody is preempted
  s.budget = one_of(2, 7, 16, 40, 64, 100, 4096);
  s.max_num_seqs = one_of(2, 4, 8, 16);
  s.long_prefill = one_of(0, 0, 5, 31);
  s.prefix_caching = random() % 2 == 0;
  s.companions = one_of(0, 3, 8);
  s.seed = random();
  return s;
}

std::filesystem::path DataFolder() { return std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/model"; }

// 200 in all; the longer test of a release does more with ATTEST_SCHEDULES.
TEST(Deterministic, LogitsAreTheSameBitsInEverySchedule) {
  const char* const wanted = std::getenv("ATTEST_SCHEDULES");
  const int schedules = wanted != nullptr ? std::atoi(wanted) : kSanitized ? 15 : 200;
  const std::vector<RequestSpec> specs = Requests(TinyPrompts(), 8);
  Seen seen;
  int run = 0;
  for (const auto& [name, kv_dtype] :
       {std::pair("tiny_untied_llama3", DType::kBF16), std::pair("tiny_tied_yarn", DType::kF32),
        std::pair("tiny_untied_llama3", DType::kF8E4M3), std::pair("tiny_tied_yarn", DType::kI8),
        std::pair("tiny_ministral_hybrid", DType::kBF16), std::pair("tiny_ministral_hybrid", DType::kI8),
        std::pair("tiny_untied_llama3", DType::kF8E5M2), std::pair("tiny_tied_yarn", DType::kF16)}) {
    Models models(DataFolder() / name, /*deterministic=*/true);
    const Schedule alone{.model = {.kv_dtype = kv_dtype}, .alone = true};
    const std::vector<Text> reference = Serve(models, specs, alone, seen);
    for (int i = 0; i < schedules / 8; ++i, ++run) {
      const Schedule schedule = RandomSchedule(static_cast<uint32_t>(run), kv_dtype);
      const std::vector<Text> texts = Serve(models, specs, schedule, seen);
      ASSERT_EQ(RowsThatDiffer(reference, texts), 0)
          << name << ", schedule " << run << ": blocks of " << schedule.model.block_size << ", "
          << schedule.model.threads << " threads, budget " << schedule.budget;
      for (size_t r = 0; r < specs.size(); ++r) ASSERT_EQ(texts[r].outcome, reference[r].outcome);
    }
  }
  std::printf("  %d schedules, %lld preemptions, %lld tokens from the prefix cache\n", run,
              static_cast<long long>(seen.preemptions), static_cast<long long>(seen.hits));
  EXPECT_GT(seen.preemptions, 0);
  EXPECT_GT(seen.hits, 0);
}

// Bug case C25: an int8 cache, the prefix cache and a full pool together corrupted documents. Here a block
// has no scales of its own that could be lost on the way: they belong to the layer and its KV head, and are
// fixed before the first request.
TEST(Deterministic, C25AQuantisedCacheWithoutRoomGivesTheBitsOfOneWithRoom) {
  std::vector<RequestSpec> specs;
  for (int32_t i = 0; i < 96; ++i) {
    RequestSpec spec;
    const int32_t document = i % 4, shared = 20 + 12 * document, own = 1 + i % 9;
    for (int32_t t = 0; t < shared; ++t) spec.prompt.push_back((t * 37 + document * 11) % 60);
    for (int32_t t = 0; t < own; ++t) spec.prompt.push_back((t * 13 + i * 7) % 60);
    spec.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    spec.sampling.seed = i;
    spec.sampling.max_tokens = 2 + i % 11;
    specs.push_back(std::move(spec));
  }
  for (const DType kv_dtype : {DType::kI8, DType::kF8E4M3}) {
    Models models(DataFolder() / "tiny_tied_yarn", /*deterministic=*/true);
    const ModelKey model{.block_size = 8, .kv_dtype = kv_dtype};
    Seen none, seen;
    const std::vector<Text> roomy = Serve(models, specs, {.model = model, .alone = true}, none);
    EXPECT_EQ(none.preemptions + none.hits, 0);
    const std::vector<Text> tight =
        Serve(models, specs,
              {.model = model, .num_blocks = 14, .budget = 40, .prefix_caching = true, .seed = 5}, seen);
    EXPECT_EQ(RowsThatDiffer(roomy, tight), 0) << DTypeName(kv_dtype);
    for (size_t r = 0; r < specs.size(); ++r) EXPECT_EQ(tight[r].outcome, roomy[r].outcome) << r;
    EXPECT_GT(seen.preemptions, 0);
    EXPECT_GT(seen.hits, 0);
  }
}

// The tests above would pass on nothing if two schedules always agreed: without the option they do not.
TEST(Deterministic, WithoutItSomeScheduleDiffers) {
  const std::vector<RequestSpec> specs = Requests(TinyPrompts(), 8);
  Models models(DataFolder() / "tiny_untied_llama3", /*deterministic=*/false);
  Seen seen;
  const std::vector<Text> reference = Serve(models, specs, {.alone = true}, seen);
  int64_t differ = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const std::vector<Text> texts = Serve(models, specs, RandomSchedule(i, DType::kBF16), seen);
    for (size_t r = 0; r < specs.size(); ++r) {
      for (size_t t = 0; t < std::min(texts[r].rows.size(), reference[r].rows.size()); ++t) {
        differ += texts[r].rows[t] != reference[r].rows[t];
      }
    }
  }
  EXPECT_GT(differ, 0);
}

TEST(Deterministic, RealModelGivesTheSameBitsInEverySchedule) {
  if (kSanitized) GTEST_SKIP() << "too slow under a sanitizer; the tiny checkpoints cover the code";
  const auto path = FindModel(kSmolLm2File);
  if (!path) GTEST_SKIP() << ModelMissing(kSmolLm2File);
  std::vector<std::vector<int32_t>> prompts = {
      {6403},
      {504, 3575, 282, 4649, 314},
      {12615, 36411, 418, 253, 2779, 282, 216, 33, 32, 32, 5027, 20590, 418}};
  prompts.emplace_back();
  for (int32_t i = 0; i < 90; ++i) prompts.back().push_back(300 + i * 331 % 40000);
  const std::vector<RequestSpec> specs = Requests(prompts, 8);
  Models models(*path, /*deterministic=*/true);
  Seen seen;
  const std::vector<Text> reference = Serve(models, specs, {.alone = true}, seen);
  for (const Schedule& s :
       {Schedule{.budget = 7, .seed = 1},
        Schedule{.num_blocks = 10, .budget = 40, .companions = 3, .seed = 2},
        Schedule{.model = {.threads = 2}, .prefix_caching = true, .companions = 6, .seed = 3},
        Schedule{
            .model = {.block_size = 32}, .budget = 64, .long_prefill = 11, .companions = 2, .seed = 4}}) {
    ASSERT_EQ(RowsThatDiffer(reference, Serve(models, specs, s, seen)), 0) << "budget " << s.budget;
  }
}

}  // namespace
}  // namespace attest::testing
