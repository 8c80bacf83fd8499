// Bad input through the C interface: each kind is refused by name and value, and nothing is computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <span>

#include "attest/attention.h"
#include "tests/bindings/calls.h"
#include "tests/support/attention_case_list.h"

namespace attest::testing {
namespace {

using ::testing::HasSubstr;

AttentionSpec FullSpec() {
  AttentionSpec spec = MakeSpec(4, 2, 64);
  spec.kv_dtype = DType::kF8E4M3;
  spec.has_alibi = spec.has_sinks = spec.has_k_descale = spec.has_v_descale = true;
  return spec;
}

class Refusals : public ::testing::Test {
 protected:
  Refusals()
      : batch_(FullSpec(), {2, 3}, {20, 5}, {.seed = 2}),
        output_(batch_.MakeOutput(7.0f)),
        call_(batch_, output_) {}

  void ExpectPlanRefuses(const std::string& text, const std::function<void()>& change) {
    change();
    const std::string refusal = call_.Plan();
    EXPECT_THAT(refusal, HasSubstr(text));
    EXPECT_EQ(call_.status, ATTEST_INVALID_ARGUMENT);
    if (CanBeSaidInCpp()) {
      EXPECT_EQ(InCpp(/*run=*/false), refusal);
    }
    Reset();
  }
  void ExpectRunRefuses(const std::string& text, const std::function<void()>& change) {
    ASSERT_EQ(call_.Plan(), "");
    change();
    const std::string refusal = call_.Run();
    EXPECT_THAT(refusal, HasSubstr(text));
    EXPECT_EQ(call_.status, ATTEST_INVALID_ARGUMENT);
    ASSERT_TRUE(CanBeSaidInCpp());
    EXPECT_EQ(InCpp(/*run=*/true), refusal);
    Reset();
    EXPECT_EQ(batch_.OutElement(output_, 0, 0, 0), 7.0f) << "a refused call wrote";
  }
  // The C++ interface has bools where C has flags, and one length for a span and its count.
  [[nodiscard]] bool CanBeSaidInCpp() const {
    const attest_attention_spec& s = call_.spec;
    for (const int32_t flag : {s.causal, s.has_alibi, s.has_sinks, s.has_k_descale, s.has_v_descale,
                               s.wants_lse, s.precise, call_.options.deterministic}) {
      if (flag != 0 && flag != 1) return false;
    }
    const attest_attention_spec usual = attest_attention_spec_default();
    return s.struct_size == usual.struct_size && s.version == usual.version &&
           call_.batch.version == attest_attention_batch_default().version &&
           call_.batch.num_seqs == call_.batch.kv_lens_count;
  }
  // The refusal of the same call through the C++ interface.
  [[nodiscard]] std::string InCpp(bool run) const {
    namespace api = attest::attention;
    const attest_attention_spec& s = call_.spec;
    const auto limit = [](int32_t x) { return x == ATTEST_NO_LIMIT ? std::nullopt : std::optional(x); };
    const api::Spec spec{.q_heads = s.q_heads,
                         .kv_heads = s.kv_heads,
                         .head_dim = s.head_dim,
                         .v_head_dim = s.v_head_dim,
                         .q_dtype = static_cast<api::DType>(s.q_dtype),
                         .kv_dtype = static_cast<api::DType>(s.kv_dtype),
                         .out_dtype = static_cast<api::DType>(s.out_dtype),
                         .kv_layout = static_cast<api::KvLayout>(s.kv_layout),
                         .block_size = s.block_size,
                         .scale = s.scale,
                         .causal = s.causal != 0,
                         .window_left = limit(s.window_left),
                         .window_right = limit(s.window_right),
                         .chunk = limit(s.chunk),
                         .sink_tokens = s.sink_tokens,
                         .softcap = s.softcap,
                         .has_alibi = s.has_alibi != 0,
                         .has_sinks = s.has_sinks != 0,
                         .has_k_descale = s.has_k_descale != 0,
                         .has_v_descale = s.has_v_descale != 0,
                         .wants_lse = s.wants_lse != 0,
                         .precise = s.precise != 0};
    const auto span = [](const int32_t* data, int64_t count) {
      return std::span<const int32_t>(data, static_cast<size_t>(count));
    };
    const attest_attention_batch& b = call_.batch;
    api::Batch batch{.cu_seqlens_q = span(b.cu_seqlens_q, b.cu_seqlens_q_count),
                     .kv_lens = span(b.kv_lens, b.kv_lens_count),
                     .block_tables = span(b.block_tables, b.block_tables_count),
                     .block_table_stride = b.block_table_stride,
                     .num_blocks = b.num_blocks};
    if (b.kv_begin != nullptr) batch.kv_begin = span(b.kv_begin, b.num_seqs);
    if (b.kv_end != nullptr) batch.kv_end = span(b.kv_end, b.num_seqs);
    if (b.owned_seqs != nullptr) batch.owned_seqs = span(b.owned_seqs, b.owned_seqs_count);
    const auto plan = api::Plan::Create(
        spec, batch,
        {.num_shares = call_.options.num_shares, .deterministic = call_.options.deterministic != 0});
    if (!run || !plan.ok()) return plan.ok() ? "" : plan.error().text;
    const attest_attention_args& a = call_.args;
    const api::Status status =
        plan.value().Run({.q = a.q,
                          .out = a.out,
                          .lse = a.lse,
                          .k = a.k,
                          .v = a.v,
                          .alibi_slopes = a.alibi_slopes,
                          .sinks = a.sinks,
                          .k_descale = a.k_descale,
                          .v_descale = a.v_descale,
                          .workspace = {static_cast<std::byte*>(a.workspace), a.workspace_bytes}});
    return status.ok() ? "" : status.error().text;
  }
  void Reset() {
    CCall fresh(batch_, output_);
    call_.spec = fresh.spec, call_.options = fresh.options;
    call_.starts = fresh.starts, call_.kv_lens = fresh.kv_lens;
    call_.batch = fresh.batch;
    call_.batch.cu_seqlens_q = call_.starts.data(), call_.batch.kv_lens = call_.kv_lens.data();
    call_.args = fresh.args;
  }

  AttentionBatch batch_;
  AttentionBatch::Output output_;
  CCall call_;
};

TEST_F(Refusals, OfSpecsNameEveryFieldAtOnce) {
  auto& s = call_.spec;
  ExpectPlanRefuses("q_heads is 5, expected a multiple of kv_heads = 2", [&] { s.q_heads = 5; });
  ExpectPlanRefuses("head_dim is 4097, expected <= 4096", [&] { s.head_dim = 4097; });
  ExpectPlanRefuses("v_head_dim is 0, expected >= 1", [&] { s.v_head_dim = 0; });
  ExpectPlanRefuses("q_dtype is fp8_e4m3, expected f32, f16 or bf16", [&] { s.q_dtype = ATTEST_F8_E4M3FN; });
  ExpectPlanRefuses("kv_dtype is 17, expected a value of enum attest_dtype", [&] { s.kv_dtype = 17; });
  ExpectPlanRefuses("kv_layout is 0, expected ATTEST_KV_CONTIGUOUS", [&] { s.kv_layout = 0; });
  ExpectPlanRefuses("block_size is -1, expected >= 1 token", [&] { s.block_size = -1; });
  ExpectPlanRefuses("scale is nan, expected a finite number", [&] { s.scale = kNaN; });
  ExpectPlanRefuses("window_left is -2, expected >= 0, or ATTEST_NO_LIMIT (-1)", [&] { s.window_left = -2; });
  ExpectPlanRefuses("chunk is 0, expected >= 1", [&] { s.chunk = 0; });
  ExpectPlanRefuses("sink_tokens is -3, expected >= 0", [&] { s.sink_tokens = -3; });
  ExpectPlanRefuses("softcap is -1, expected 0 (off) or a positive number", [&] { s.softcap = -1.0f; });
  ExpectPlanRefuses("causal is 2, expected 0 or 1", [&] { s.causal = 2; });
  // Three mistakes, three reasons, in one answer.
  s.kv_heads = 0, s.head_dim = -7, s.wants_lse = 3;
  attest_error* error = nullptr;
  ASSERT_EQ(attest_attention_plan_create(&s, &call_.batch, nullptr, &call_.plan, &error),
            ATTEST_INVALID_ARGUMENT);
  ASSERT_EQ(attest_error_count(error), 3);
  EXPECT_STREQ(attest_error_field(error, 1), "kv_heads");
  EXPECT_STREQ(attest_error_value(error, 2), "-7");
  EXPECT_STREQ(attest_error_field(error, 3), "");
  attest_error_free(error);
}

TEST_F(Refusals, OfBatchesNameTheEntry) {
  auto& b = call_.batch;
  ExpectPlanRefuses("num_seqs is -1, expected 0 to", [&] { b.num_seqs = -1; });
  ExpectPlanRefuses("cu_seqlens_q is NULL, expected 3 entries", [&] { b.cu_seqlens_q = nullptr; });
  ExpectPlanRefuses("cu_seqlens_q_count is 2, expected 3",
                    [&] { b.cu_seqlens_q_count = 2; });  // vLLM PR 34570
  ExpectPlanRefuses("cu_seqlens_q[0] is 1, expected 0", [&] { call_.starts[0] = 1; });
  ExpectPlanRefuses("cu_seqlens_q[2] is 1, expected >= 2, the entry before", [&] { call_.starts[2] = 1; });
  ExpectPlanRefuses("cu_seqlens_q[2] is 16777217, expected <= 16777216 rows",
                    [&] { call_.starts[2] = (1 << 24) + 1; });
  ExpectPlanRefuses("kv_lens[1] is -5, expected >= 0", [&] { call_.kv_lens[1] = -5; });
  ExpectPlanRefuses("kv_lens[1] is 1073741825, expected <= 1073741824",
                    [&] { call_.kv_lens[1] = (1 << 30) + 1; });
  ExpectPlanRefuses("kv_lens is NULL, expected 2 entries", [&] { b.kv_lens = nullptr; });
  ExpectPlanRefuses("block_tables is NULL, expected", [&] { b.block_tables = nullptr; });
  ExpectPlanRefuses("block_table_stride is 1, expected >= 2: kv_lens[0] is 20",
                    [&] { b.block_table_stride = 1; });
  ExpectPlanRefuses("block_tables_count is 3, expected >= 4 for sequence 1",
                    [&] { b.block_tables_count = 3; });
  ExpectPlanRefuses("expected a block id below 1", [&] { b.num_blocks = 1; });
  const int32_t begin[] = {3, 6}, end[] = {21, 5}, owned[] = {1, 1};
  ExpectPlanRefuses("kv_begin[1] is 6, expected 0 to kv_end[1] = 5", [&] { b.kv_begin = begin; });
  ExpectPlanRefuses("kv_end[0] is 21, expected <= kv_lens[0] = 20", [&] { b.kv_end = end; });
  ExpectPlanRefuses("owned_seqs[1] is 1, expected above 1",
                    [&] { b.owned_seqs = owned, b.owned_seqs_count = 2; });
  ExpectPlanRefuses("num_shares is 0, expected 1 to", [&] { call_.options.num_shares = 0; });
  ExpectPlanRefuses("deterministic is 2, expected 0 or 1", [&] { call_.options.deterministic = 2; });
  // A block id that is no block, in an entry that is read; entries past the last key may hold anything.
  const int32_t id = batch_.block_ids(0)[1];
  batch_.block_ids(0)[1] = -4;
  EXPECT_THAT(call_.Plan(), HasSubstr("sequence 0: block table entry 1 is -4, expected a block id"));
  batch_.block_ids(0)[1] = id;
  EXPECT_EQ(call_.Plan(), "");
}

TEST_F(Refusals, OfKernelsListEveryReason) {
  call_.options.kernels = "no_such_kernel";
  EXPECT_THAT(call_.Plan(), HasSubstr("attention kernel 'no_such_kernel' does not exist, known: "));
  EXPECT_EQ(call_.status, ATTEST_NOT_FOUND);
#if defined(__x86_64__)
  if (!HasIsa(DetectCpu(), CpuIsa::kAvx2)) GTEST_SKIP() << "needs AVX2";
  call_.options.kernels = "decode=attention_decode_avx2,uniform_decode=attention_decode_avx2";
  call_.spec.q_dtype = ATTEST_BF16;
  call_.spec.out_dtype = ATTEST_BF16;
  call_.spec.sink_tokens = 4;
  const std::string text = call_.Plan();
  EXPECT_EQ(call_.status, ATTEST_UNSUPPORTED);
  EXPECT_THAT(text, HasSubstr("attention_decode_avx2.q_dtype is bf16, expected f32"));
  EXPECT_THAT(text, HasSubstr("out_dtype is bf16, expected f32"));
  EXPECT_THAT(text, HasSubstr("sink_tokens is 4, expected 0"));
#endif
}

TEST_F(Refusals, OfTensorsNameShapeStrideTypeAndAddress) {
  auto& a = call_.args;
  ExpectRunRefuses("q.data is NULL, expected an address", [&] { a.q.data = nullptr; });
  ExpectRunRefuses("q.rank is 2, expected 3", [&] { a.q.rank = 2; });
  ExpectRunRefuses("q.shape[0] is 4, expected >= 5", [&] { a.q.shape[0] = 4; });
  ExpectRunRefuses("q.shape[1] is 3, expected 4", [&] { a.q.shape[1] = 3; });
  ExpectRunRefuses("q.dtype is bf16, expected f32", [&] { a.q.dtype = ATTEST_BF16; });
  ExpectRunRefuses("q.stride[2] is 2, expected 1", [&] { a.q.stride[2] = 2; });
  ExpectRunRefuses("q.stride[0] is -256, expected >= 0", [&] { a.q.stride[0] = -256; });
  ExpectRunRefuses("expected aligned to 4 bytes", [&] { a.q.data = static_cast<char*>(a.q.data) + 1; });
  ExpectRunRefuses("q is past the address space", [&] { a.q.stride[0] = INT64_MAX / 3; });
  ExpectRunRefuses("out.shape[2] is 63, expected 64", [&] { a.out.shape[2] = 63; });
  ExpectRunRefuses("out.stride is [0, 64, 1], expected strides that never name one element twice",
                   [&] { a.out.stride[0] = 0; });
  ExpectRunRefuses("lse.data is NULL, expected an address: the spec's wants_lse is 1",
                   [&] { a.lse.data = nullptr; });
  ExpectRunRefuses("lse.shape[1] is 4, expected >= 5", [&] { a.lse.shape[1] = 4; });
  ExpectRunRefuses("k.shape[0] is 1, expected >= ", [&] { a.k.shape[0] = 1; });
  ExpectRunRefuses("v.shape[2] is 8, expected 16", [&] { a.v.shape[2] = 8; });
  ExpectRunRefuses("k.dtype is fp8_e5m2, expected fp8_e4m3", [&] { a.k.dtype = ATTEST_F8_E5M2; });
  ExpectRunRefuses("sinks.data is NULL", [&] { a.sinks.data = nullptr; });
  ExpectRunRefuses("alibi_slopes.shape[0] is 3, expected 4", [&] { a.alibi_slopes.shape[0] = 3; });
  ExpectRunRefuses("k_descale.shape[0] is 1, expected >= 2", [&] { a.k_descale.shape[0] = 1; });
  ExpectRunRefuses("v_descale.shape[1] is 1, expected 2", [&] { a.v_descale.shape[1] = 1; });
  ExpectRunRefuses("workspace is NULL", [&] { a.workspace = nullptr; });
  ExpectRunRefuses("workspace_bytes is 64, expected >= ", [&] { a.workspace_bytes = 64; });
  ExpectRunRefuses("expected aligned to 64 bytes",
                   [&] { a.workspace = static_cast<char*>(a.workspace) + 8; });
}

TEST_F(Refusals, OfOverlapsNameBothTensors) {
  auto& a = call_.args;
  ExpectRunRefuses("expected no overlap with q at", [&] { a.out.data = a.q.data; });
  ExpectRunRefuses("expected no overlap with q at",
                   [&] { a.out.data = static_cast<float*>(a.q.data) + 128; });
  ExpectRunRefuses("out is bytes [", [&] { a.out.data = a.q.data; });
  ExpectRunRefuses("expected no overlap with lse at", [&] { a.lse.data = a.out.data; });
  ExpectRunRefuses("workspace is bytes [", [&] { a.q.data = a.workspace; });
  // Rows of q and out that alternate in one buffer share no byte.
  AttentionSpec spec = MakeSpec(2, 1, 32);
  spec.wants_lse = false;
  AttentionBatch batch(spec, {3}, {3});
  const AttentionBatch::Output output = batch.MakeOutput(0.0f);
  CCall call(batch, output);
  ASSERT_EQ(call.Plan(), "");
  std::vector<float> fused(3 * 128, 1.0f);
  call.args.q.data = fused.data(), call.args.out.data = fused.data() + 64;
  call.args.q.stride[0] = call.args.out.stride[0] = 128;
  EXPECT_EQ(call.Run(), "");
  call.args.out.data = fused.data() + 63;
  EXPECT_THAT(call.Run(), HasSubstr("no overlap with q"));
}

TEST_F(Refusals, OfStructsNameSizeAndVersion) {
  ExpectPlanRefuses("spec.struct_size is 12, expected", [&] { call_.spec.struct_size = 12; });
  ExpectPlanRefuses("spec.version is 0, expected 1 to 1", [&] { call_.spec.version = 0; });
  ExpectPlanRefuses("batch.version is 9, expected 1 to 1", [&] { call_.batch.version = 9; });
  EXPECT_EQ(attest_attention_plan_create(nullptr, nullptr, nullptr, nullptr, nullptr),
            ATTEST_INVALID_ARGUMENT);
  EXPECT_EQ(attest_attention_run(nullptr, &call_.args, nullptr), ATTEST_INVALID_ARGUMENT);
  // A struct of a later version: accepted while what this library does not know is 0.
  struct Later {
    attest_attention_spec spec;
    int32_t news[4];
  } later{call_.spec, {0, 0, 0, 0}};
  later.spec.struct_size = sizeof later;
  later.spec.version = 2;
  attest_attention_plan* plan = nullptr;
  attest_error* error = nullptr;
  EXPECT_EQ(attest_attention_plan_create(&later.spec, &call_.batch, nullptr, &plan, &error), ATTEST_OK)
      << CCall::Take(error);
  attest_attention_plan_free(plan);
  later.news[2] = 1;
  EXPECT_EQ(attest_attention_plan_create(&later.spec, &call_.batch, nullptr, &plan, &error),
            ATTEST_INVALID_ARGUMENT);
  EXPECT_THAT(CCall::Take(error), HasSubstr("does not know the members after it"));
}

TEST_F(Refusals, ReachTheCppInterfaceWithEveryReason) {
  namespace api = attest::attention;
  const std::vector<int32_t> starts{0, 2, 1}, lens{20, -5};
  const api::Spec spec{.q_heads = 4, .kv_heads = 2, .head_dim = 64, .v_head_dim = 64, .window_left = -1};
  const auto plan = api::Plan::Create(spec, {.cu_seqlens_q = starts, .kv_lens = lens});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, api::Code::kInvalidArgument);
  ASSERT_EQ(plan.error().reasons.size(), 1u);  // a wrong spec comes first: lengths are judged by a sound one
  EXPECT_EQ(plan.error().reasons[0].field, "window_left");
  api::Spec good = spec;
  good.window_left = {};
  const auto lengths = api::Plan::Create(good, {.cu_seqlens_q = starts, .kv_lens = lens});
  ASSERT_FALSE(lengths.ok());
  EXPECT_THAT(lengths.error().text, HasSubstr("cu_seqlens_q[2] is 1, expected >= 2"));
  EXPECT_THAT(lengths.error().text, HasSubstr("kv_lens[1] is -5, expected >= 0"));
}

TEST(PageCalls, AppendCopyAndMergeRefuseByNameAndWork) {
  namespace api = attest::attention;
  constexpr int64_t kBlocks = 4, kHeads = 2, kSize = 8, kDim = 16;
  std::vector<uint8_t> k(kBlocks * kHeads * kSize * kDim, 0xaa), v = k;
  std::vector<float> rows(3 * kHeads * kDim, 2.0f), scale{0.5f, 4.0f};
  std::vector<int64_t> slots{0, -1, 31};
  const auto k_pages = api::PagesNhd(k.data(), api::DType::kF8E4M3, kBlocks, kHeads, kSize, kDim);
  const auto v_pages = api::PagesNhd(v.data(), api::DType::kF8E4M3, kBlocks, kHeads, kSize, kDim);
  api::AppendKvArgs args{.k = api::Dense(rows.data(), {3, kHeads, kDim}),
                         .v = api::Dense(rows.data(), {3, kHeads, kDim}),
                         .slots = slots,
                         .k_pages = k_pages,
                         .v_pages = v_pages,
                         .k_scale = api::Strided(scale.data(), api::DType::kF32, {1, kHeads}, {0, 1})};
  const auto refused = [](const api::Status& status) {
    return status.ok() ? "accepted" : status.error().text;
  };
  ASSERT_EQ(refused(api::AppendKv(args)), "accepted");
  EXPECT_EQ(k[0], 0x48);                                // 2 / 0.5 = 4 in e4m3fn
  EXPECT_EQ(k[kDim], 0x30);                             // head 1: 2 / 4 = 0.5
  EXPECT_EQ(v[0], 0x40);                                // no scale: 2
  EXPECT_EQ(k[(3 * kSize + 7) * kHeads * kDim], 0x48);  // slot 31
  EXPECT_EQ(k[1 * kHeads * kDim], 0xaa);                // slot 1 is nobody's
  const auto with = [&](auto change) {
    api::AppendKvArgs changed = args;
    change(changed);
    return refused(api::AppendKv(changed));
  };
  slots[2] = 32;
  EXPECT_THAT(with([](auto&) {}), HasSubstr("slots[2] is 32, expected < num_blocks * block_size = 32"));
  slots[2] = 0;
  EXPECT_THAT(with([](auto&) {}), HasSubstr("slots is 0, expected no slot twice"));
  slots[2] = 31;
  EXPECT_THAT(with([](auto& a) { a.slots = a.slots.first(2); }), HasSubstr("slots_count is 2, expected 3"));
  EXPECT_THAT(with([](auto& a) { a.k.shape[2] = 15; }), HasSubstr("k.shape[2] is 15, expected 16"));
  EXPECT_THAT(with([](auto& a) { a.v_pages.dtype = ATTEST_I8; }),
              HasSubstr("v_pages.dtype is int8, expected fp8_e4m3"));
  EXPECT_THAT(with([](auto& a) { a.v_pages.data = a.k_pages.data; }),
              HasSubstr("v_pages.data is that of k_pages"));
  EXPECT_THAT(with([](auto& a) { a.k_scale.shape[1] = 1; }), HasSubstr("k_scale.shape[1] is 1, expected 2"));
  scale[1] = 0.0f;
  EXPECT_THAT(with([](auto&) {}), HasSubstr("k_scale[0, 1] is 0, expected finite and > 0"));
  scale[1] = 4.0f;
  const std::vector<int32_t> seqs{0, 1, 1};
  EXPECT_THAT(with([&](auto& a) { a.token_seqs = seqs; }), HasSubstr("k_scale.shape[0] is 1, expected >= 2"));
  rows[3] = kNaN;
  EXPECT_EQ(with([](auto&) {}), "accepted");  // fp8 keeps it
  EXPECT_THAT(with([&](auto& a) { a.k_pages.dtype = a.v_pages.dtype = ATTEST_I8; }),
              HasSubstr("k and v is 2 NaN, expected none"));

  const std::vector<uint8_t> before = k;
  const std::vector<api::BlockCopy> copies{{0, 2}};
  ASSERT_EQ(refused(api::CopyBlocks(k_pages, v_pages, copies)), "accepted");
  const size_t block = kHeads * kSize * kDim;
  EXPECT_TRUE(std::equal(k.begin() + 2 * block, k.begin() + 3 * block, before.begin()));
  EXPECT_TRUE(std::equal(k.begin() + 3 * block, k.end(), before.begin() + 3 * block));
  EXPECT_THAT(refused(api::CopyBlocks(k_pages, v_pages, std::vector<api::BlockCopy>{{0, 4}})),
              HasSubstr("pairs[1] is 4, expected 0 to 3"));
  EXPECT_THAT(refused(api::CopyBlocks(k_pages, v_pages, std::vector<api::BlockCopy>{{0, 1}, {2, 1}})),
              HasSubstr("pairs is 1, expected no block written twice"));
  EXPECT_THAT(refused(api::CopyBlocks(k_pages, v_pages, std::vector<api::BlockCopy>{{0, 1}, {1, 2}})),
              HasSubstr("pairs is 1, expected no block that is written is read"));

  std::vector<float> out_a(4, 1.0f), out_b(4, 3.0f), lse_a{0.0f}, lse_b{0.0f}, merged(4), lse{0.0f};
  const api::Tensor outs[] = {api::Dense(out_a.data(), {1, 1, 4}), api::Dense(out_b.data(), {1, 1, 4})};
  const api::Tensor lses[] = {api::Dense(lse_a.data(), {1, 1}), api::Dense(lse_b.data(), {1, 1})};
  api::MergeArgs merge{.state_out = outs,
                       .state_lse = lses,
                       .out = api::Dense(merged.data(), {1, 1, 4}),
                       .lse = api::Dense(lse.data(), {1, 1})};
  ASSERT_EQ(refused(api::MergeStates(merge)), "accepted");
  EXPECT_FLOAT_EQ(merged[3], 2.0f);
  EXPECT_FLOAT_EQ(lse[0], std::log(2.0f));
  merge.out = outs[0];  // in place
  EXPECT_EQ(refused(api::MergeStates(merge)), "accepted");
  EXPECT_FLOAT_EQ(out_a[0], 2.0f);
  merge.out.data = out_a.data() + 1;
  EXPECT_THAT(refused(api::MergeStates(merge)), HasSubstr("no overlap with a state_out"));
  merge.out = api::Dense(merged.data(), {1, 1, 4});
  merge.lse.data = lse_b.data();
  EXPECT_THAT(refused(api::MergeStates(merge)), HasSubstr("no overlap with a state_lse"));
  merge.state_lse = std::span(lses).first(1);
  EXPECT_THAT(refused(api::MergeStates(merge)), HasSubstr("state_lse is 1 tensors, expected 2"));
}

TEST(Bindings, VersionsAgree) {
  EXPECT_EQ(attest_attention_abi_version(), ATTEST_ATTENTION_ABI_VERSION);
  EXPECT_STREQ(attest_version(), ATTEST_PROJECT_VERSION);
  EXPECT_EQ(ATTEST_SOVERSION, ATTEST_ATTENTION_ABI_VERSION);
}

}  // namespace
}  // namespace attest::testing
