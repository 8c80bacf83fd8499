// Counts this binary's heap allocations while a step runs. Sanitizers need operator new for themselves, so
// there the test skips.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/model/checkpoint_copy.h"
#include "tests/support/model_driver.h"
#include "tests/support/sanitizers.h"

namespace {
std::atomic<int64_t> allocations{0};
}

#if !ATTEST_TESTS_ASAN && !ATTEST_TESTS_TSAN
// Not inlined: the compiler would see free() of what operator new returned and call it a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace attest {
namespace {

// A plan is made outside; Attend keeps its own books (two small vectors at most), which are not counted here.
TEST(Forward, AllocatesNothingOfItsOwnOnceReserved) {
  if (kSanitized) GTEST_SKIP() << "operator new belongs to the sanitizer";
  for (const ComputeMode compute : {ComputeMode::kFast, ComputeMode::kPrecise}) {
    ThreadTeam team(2);
    auto model = LoadModel(ModelDataFolder() / "tiny_untied_llama3", compute, team).value();
    ModelDriver driver(*model, team, 2, 64);
    ASSERT_TRUE(model->Reserve(40, 40, team).has_value());
    const std::vector<int32_t> tokens(40, 17);
    const std::span<const int32_t> t(tokens);
    const StepPiece prompt[] = {{.seq = 0, .tokens = t.first(30)}, {.seq = 1, .tokens = t.first(10)}};
    const StepPiece decode[] = {{.seq = 0, .tokens = t.first(1)}, {.seq = 1, .tokens = t.first(1)}};
    std::vector<float> logits(40u * 256);
    std::vector<float> attention(40u * 320);
    std::vector<float> attended(40u * 320);
    for (const auto& pieces : {std::span<const StepPiece>(prompt), std::span<const StepPiece>(decode)}) {
      const StepBatch batch = driver.MakeBatch(pieces, false);
      const auto plan = PlanAttention(model->attention_router(), model->attention_spec(),
                                      {.q_begin = &batch.q_begin,
                                       .kv_len = batch.kv_len,
                                       .block_tables = batch.block_tables(),
                                       .owned = std::nullopt},
                                      team.size());
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      const auto view = View<float, 2>::Dense(logits.data(), {batch.num_tokens(), 256});
      const auto heads = View<float, 3>::Dense(attention.data(), {batch.num_tokens(), 10, 32});
      const int64_t before_forward = allocations.load();
      model->Forward(batch, **plan, driver.kv().layers(), view, team);
      const int64_t before_attend = allocations.load();
      for (const PagedKv& layer : driver.kv().layers()) {
        AttendArgs args;
        args.q = args.out = heads;
        args.out.data = attended.data();
        args.kv = &layer;
        Attend(**plan, args, team);
      }
      const int64_t of_attend = allocations.load() - before_attend;
      EXPECT_EQ(before_attend - before_forward, of_attend) << batch.num_tokens() << " tokens";
      EXPECT_LE(of_attend, 2 * model->config().num_layers);
    }
  }
}

}  // namespace
}  // namespace attest
