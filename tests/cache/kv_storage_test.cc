#include "cache/kv_storage.h"

#include <gtest/gtest.h>

#include <set>

#include "cache/kv_sizing.h"

namespace attest {
namespace {

constexpr KvShape kShape{
    .num_layers = 3, .kv_heads = 2, .head_dim = 8, .v_head_dim = 4, .dtype = DType::kF32, .block_size = 8};

TEST(KvStorage, GivesEveryElementItsOwnAddressInsideItsLayer) {
  const auto storage = KvStorage::Allocate(kShape, 5);
  ASSERT_TRUE(storage) << storage.error().message;
  ASSERT_EQ(storage->layers().size(), 3u);
  std::set<const float*> seen;
  for (const PagedKv& layer : storage->layers()) {
    for (const auto& [pages, dim] : {std::pair{layer.k, 8}, std::pair{layer.v, 4}}) {
      for (int64_t block = 0; block < 5; ++block) {
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t slot = 0; slot < 8; ++slot) {
            for (int64_t d = 0; d < dim; ++d) {
              float* at = static_cast<float*>(pages.data) + block * pages.block_stride +
                          head * pages.head_stride + slot * pages.slot_stride + d;
              EXPECT_EQ(*at, 0.0f);
              EXPECT_TRUE(seen.insert(at).second);
            }
          }
        }
      }
    }
    EXPECT_EQ(layer.num_blocks, 5);
    EXPECT_EQ(layer.block_size, 8);
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size() * sizeof(float)), storage->size_bytes());
  EXPECT_EQ(storage->size_bytes(), 5 * KvBytesPerBlock(kShape));
}

TEST(KvStorage, StartsEachLayerOnA2MiBPage) {
  const auto storage = KvStorage::Allocate(kShape, 5);
  ASSERT_TRUE(storage);
  for (const PagedKv& layer : storage->layers()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.k.data) % (2u << 20), 0u);
  }
}

TEST(KvStorage, KeepsItsLayersWhenMoved) {
  auto storage = KvStorage::Allocate(kShape, 5);
  ASSERT_TRUE(storage);
  *static_cast<float*>(storage->layers()[1].k.data) = 3.0f;
  const KvStorage moved = std::move(*storage);
  EXPECT_EQ(*static_cast<float*>(moved.layers()[1].k.data), 3.0f);
}

TEST(KvStorage, RefusesAShapeItCannotHoldAndNamesTheField) {
  const auto field_of = [](KvShape shape) {
    const Status status = CheckKvShape(shape);
    return status ? std::string() : status.error().field;
  };
  KvShape shape = kShape;
  EXPECT_EQ(field_of(shape), "");
  for (const int size : {8, 16, 32, 64, 128}) {
    shape.block_size = size;
    EXPECT_EQ(field_of(shape), "");
  }
  for (const int size : {-16, 0, 1, 4, 12, 24, 256}) {
    shape.block_size = size;
    EXPECT_EQ(field_of(shape), "block_size") << size;
  }
  shape = kShape;
  shape.dtype = DType::kQ8_0;
  EXPECT_EQ(field_of(shape), "kv_cache_dtype");
  shape = kShape;
  shape.num_layers = 0;
  EXPECT_EQ(field_of(shape), "num_layers");
  shape = kShape;
  shape.kv_heads = -1;
  EXPECT_EQ(field_of(shape), "kv_heads");
  EXPECT_FALSE(KvStorage::Allocate(kShape, 1));
  EXPECT_FALSE(KvStorage::Allocate(kShape, int64_t{1} << 40));
}

TEST(KvStorage, ReportsMemoryTheSystemRefuses) {
  KvShape shape = kShape;
  shape.kv_heads = 1 << 20;
  shape.head_dim = 1 << 12;
  const auto storage = KvStorage::Allocate(shape, 1 << 10);  // 2^47 bytes a layer
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error().code, ErrorCode::kResourceExhausted);
}

// SmolLM2-135M: 30 layers, 3 kv heads of 64, bf16, 16 tokens a block = 368,640 bytes a block.
KvSizingInput SmolInput() {
  return {.shape = {.num_layers = 30,
                    .kv_heads = 3,
                    .head_dim = 64,
                    .v_head_dim = 64,
                    .dtype = DType::kBF16,
                    .block_size = 16},
          .available_bytes = int64_t{4} << 30,
          .fraction = 0.9,
          .reserve_bytes = 0,
          .max_model_len = 8192,
          .max_num_seqs = 64,
          .min_context_tokens = std::nullopt,
          .num_blocks = std::nullopt};
}

TEST(KvSizing, FillsTheMemoryItMayUseAndNoMore) {
  const KvSizingInput input = SmolInput();
  EXPECT_EQ(KvBytesPerBlock(input.shape), 368640);
  const auto sizing = SizeKvCache(input);
  ASSERT_TRUE(sizing) << sizing.error().message;
  const auto budget = static_cast<int64_t>(0.9 * static_cast<double>(int64_t{4} << 30));
  EXPECT_LE(sizing->kv_bytes, budget);
  // Less than one 2 MiB page of each layer is left over.
  EXPECT_GT(sizing->kv_bytes, budget - 30 * (int64_t{2} << 20));
  EXPECT_EQ(sizing->longest_context_tokens, 8192);
  EXPECT_NEAR(sizing->full_length_seqs, static_cast<double>(sizing->num_blocks - 1) / 512, 1e-9);
  EXPECT_NE(sizing->words.find("one sequence of up to 8,192 tokens"), std::string::npos) << sizing->words;
  const auto storage = KvStorage::Allocate(input.shape, sizing->num_blocks);
  ASSERT_TRUE(storage);
  EXPECT_LE(storage->size_bytes(), sizing->kv_bytes);
}

TEST(KvSizing, AllocatesNoBlocksThatTheRunningSequencesCannotFill) {
  KvSizingInput input = SmolInput();
  input.max_num_seqs = 2;
  input.max_model_len = 100;
  const auto sizing = SizeKvCache(input);
  ASSERT_TRUE(sizing);
  EXPECT_EQ(sizing->num_blocks, 2 * 7 + 1);
  EXPECT_DOUBLE_EQ(sizing->full_length_seqs, 2.0);
}

TEST(KvSizing, SaysWhatOneSequenceNeedsWhenItDoesNotFit) {
  KvSizingInput input = SmolInput();
  input.available_bytes = int64_t{100} << 20;
  const auto sizing = SizeKvCache(input);
  ASSERT_FALSE(sizing);
  EXPECT_EQ(sizing.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(sizing.error().message,
            "the KV cache needs 240.0 MiB for one sequence of 8,192 tokens, 90.0 MiB available; lower "
            "max_model_len or free memory");
  // The same memory serves a caller who can live with less.
  input.min_context_tokens = 512;
  const auto smaller = SizeKvCache(input);
  ASSERT_TRUE(smaller);
  EXPECT_GE(smaller->longest_context_tokens, 512);
  EXPECT_LT(smaller->longest_context_tokens, 8192);
  EXPECT_EQ(smaller->longest_context_tokens % 16, 0);
}

TEST(KvSizing, ChecksABlockCountTheUserChose) {
  KvSizingInput input = SmolInput();
  input.num_blocks = 513;
  const auto exact = SizeKvCache(input);
  ASSERT_TRUE(exact) << exact.error().message;
  EXPECT_EQ(exact->num_blocks, 513);
  EXPECT_EQ(exact->longest_context_tokens, 8192);
  input.num_blocks = 512;  // one short for 8192 tokens: block 0 is reserved
  EXPECT_EQ(SizeKvCache(input).error().field, "num_blocks");
  input.num_blocks = 1 << 20;
  EXPECT_EQ(SizeKvCache(input).error().code, ErrorCode::kResourceExhausted);
}

// 30 layers in five full and 25 sliding: six groups of five, in five buffers.
TEST(KvSizing, CountsAWindowOnceAndAFullGroupForItsLength) {
  KvSizingInput input = SmolInput();
  std::vector<KvWindow> layers(30, 1000);
  for (size_t layer = 0; layer < 30; layer += 6) layers[layer] = std::nullopt;
  const auto groups = MakeKvGroups(layers);
  ASSERT_EQ(groups.size(), 6u);
  const int64_t whole = KvBytesPerBlock(input.shape);
  for (const KvPlace& place : PlacesOf(groups, 30)) input.shape.buffers.push_back(place.buffer);
  EXPECT_EQ(KvBytesPerBlock(input.shape), whole / 6);
  input.windows = WindowsOf(groups);
  input.max_step_tokens = 512;
  // 8,192 tokens: 512 blocks of the full group; of each other those of 999 + 512 tokens, and one for the
  // edge.
  const int64_t one = 512 + 5 * (95 + 1);
  input.num_blocks = one + 1;
  const auto exact = SizeKvCache(input);
  ASSERT_TRUE(exact) << exact.error().message;
  EXPECT_EQ(exact->longest_context_tokens, 8192);
  EXPECT_DOUBLE_EQ(exact->full_length_seqs, 1.0);
  input.num_blocks = one;
  EXPECT_EQ(SizeKvCache(input).error().field, "num_blocks");
  input.min_context_tokens = 8000;
  const auto shorter = SizeKvCache(input);
  ASSERT_TRUE(shorter) << shorter.error().message;
  EXPECT_EQ(shorter->longest_context_tokens, 8192 - 16);
}

TEST(KvSizing, NamesAFieldOutOfRange) {
  const auto field_of = [](auto change) {
    KvSizingInput input = SmolInput();
    change(input);
    const auto sizing = SizeKvCache(input);
    return sizing ? std::string("none") : sizing.error().field;
  };
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.windows.clear(); }), "windows");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.fraction = 0; }), "fraction");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.fraction = 1.01; }), "fraction");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.fraction = std::numeric_limits<double>::quiet_NaN(); }),
            "fraction");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.max_model_len = 0; }), "max_model_len");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.max_num_seqs = 0; }), "max_num_seqs");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.min_context_tokens = 0; }), "min_context_tokens");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.num_blocks = 1; }), "num_blocks");
  EXPECT_EQ(field_of([](KvSizingInput& i) { i.shape.block_size = 3; }), "block_size");
}

}  // namespace
}  // namespace attest
