// Any spec, batch and options through the C interface: a refusal with reasons, or a plan that owns exactly
// the rows it should and that runs, when it is small, inside buffers of exactly the stated sizes.
#include <attest/attention_c.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"

namespace {

constexpr int32_t kExtremes[] = {INT32_MIN, -2, -1, 0, 1, 4096, 4097, 65536, (1 << 24) + 1, INT32_MAX};

// Mostly `usual`, sometimes something else.
int32_t Odd(FuzzedDataProvider& data, int32_t usual) {
  const auto how = data.ConsumeIntegral<uint8_t>();
  if (how < 232) return usual;
  if (how < 244) return data.PickValueInArray(kExtremes);
  return data.ConsumeIntegral<int32_t>();
}
template <class T>
T Pick(FuzzedDataProvider& data, std::initializer_list<T> values) {
  return *(values.begin() + data.ConsumeIntegralInRange<size_t>(0, values.size() - 1));
}

// An array whose storage ends where it says: the sanitizer sees what is read past it.
struct Array {
  std::vector<int32_t> values;
  const int32_t* data(FuzzedDataProvider& from) const {
    return from.ConsumeIntegral<uint8_t>() == 255 ? nullptr : values.data();
  }
};

void CheckRefusal(attest_status status, attest_error* error) {
  ATTEST_CHECK(status > ATTEST_OK && status <= ATTEST_RESOURCE_EXHAUSTED);  // nothing internal
  ATTEST_CHECK(error != nullptr);
  ATTEST_CHECK_GE(attest_error_count(error), 1);
  for (int32_t i = 0; i < attest_error_count(error); ++i) {
    ATTEST_CHECK(attest_error_value(error, i)[0] != '\0' && attest_error_expected(error, i)[0] != '\0');
  }
  ATTEST_CHECK(std::strlen(attest_error_text(error)) > 0);
  attest_error_free(error);
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

int64_t ElementBytes(int32_t dtype) {
  return dtype == ATTEST_F32 ? 4 : dtype == ATTEST_F16 || dtype == ATTEST_BF16 ? 2 : 1;
}

// A dense tensor of zeros of exactly its size.
attest_tensor Zeros(std::vector<Memory>& memory, int32_t dtype, std::initializer_list<int64_t> shape) {
  int64_t bytes = ElementBytes(dtype);
  for (const int64_t extent : shape) bytes *= extent;
  memory.emplace_back(std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1));
  return attest_tensor_dense(memory.back().get(), dtype, static_cast<int32_t>(shape.size()), shape.begin());
}

void RunIfSmall(const attest_attention_spec& s, const attest_attention_batch& b,
                const attest_attention_plan* plan) {
  const int64_t rows = b.cu_seqlens_q[b.num_seqs];
  int64_t keys = 0, longest = 0;
  for (int32_t i = 0; i < b.num_seqs; ++i)
    keys += b.kv_lens[i], longest = std::max<int64_t>(longest, b.kv_lens[i]);
  const size_t bytes = attest_attention_plan_workspace_bytes(plan);
  const int64_t heads = s.q_heads, dims = int64_t{s.head_dim} + s.v_head_dim;
  const bool paged = s.kv_layout == ATTEST_KV_PAGED;
  const int64_t stored = paged ? b.num_blocks * s.block_size : keys;
  if (rows > 64 || keys > 600 || heads > 32 || dims > 320 || bytes > (8u << 20) || stored > 4096) return;
  std::vector<Memory> memory;
  attest_attention_args a = attest_attention_args_default();
  a.q = Zeros(memory, s.q_dtype, {rows, heads, s.head_dim});
  a.out = Zeros(memory, s.out_dtype, {rows, heads, s.v_head_dim});
  if (s.wants_lse != 0) a.lse = Zeros(memory, ATTEST_F32, {heads, rows});
  const auto kv = [&](int32_t dim) {
    return paged ? Zeros(memory, s.kv_dtype, {b.num_blocks, s.kv_heads, s.block_size, dim})
                 : Zeros(memory, s.kv_dtype, {keys, s.kv_heads, dim});
  };
  a.k = kv(s.head_dim);
  a.v = kv(s.v_head_dim);
  if (s.has_alibi != 0) a.alibi_slopes = Zeros(memory, ATTEST_F32, {heads});
  if (s.has_sinks != 0) a.sinks = Zeros(memory, ATTEST_F32, {heads});
  if (s.has_k_descale != 0) a.k_descale = Zeros(memory, ATTEST_F32, {b.num_seqs, s.kv_heads});
  if (s.has_v_descale != 0) a.v_descale = Zeros(memory, ATTEST_F32, {b.num_seqs, s.kv_heads});
  memory.emplace_back(std::aligned_alloc(ATTEST_WORKSPACE_ALIGNMENT, bytes));
  a.workspace = memory.back().get();
  a.workspace_bytes = bytes;
  attest_error* error = nullptr;
  const attest_status status = attest_attention_run(plan, &a, &error);
  if (error != nullptr) std::fprintf(stderr, "%s\n", attest_error_text(error));
  ATTEST_CHECK_EQ(status, ATTEST_OK);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  attest_attention_spec s = attest_attention_spec_default();
  const auto kv_heads = data.ConsumeIntegralInRange<int32_t>(1, 4);
  s.q_heads = Odd(data, kv_heads * data.ConsumeIntegralInRange<int32_t>(1, 8));
  s.kv_heads = Odd(data, kv_heads);
  s.head_dim = Odd(data, Pick(data, {8, 32, 36, 64, 96}));
  s.v_head_dim = Odd(data, Pick(data, {8, 32, 64, 40}));
  s.q_dtype = Odd(data, Pick(data, {1, 1, 2, 3}));
  s.kv_dtype = Odd(data, data.ConsumeIntegralInRange<int32_t>(1, 6));
  s.out_dtype = Odd(data, Pick(data, {1, 1, 2, 3}));
  s.kv_layout = Odd(data, Pick(data, {1, 2, 2}));
  s.block_size = Odd(data, Pick(data, {1, 7, 16, 32}));
  if (data.ConsumeBool()) s.scale = data.ConsumeFloatingPoint<float>();
  s.causal = Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 1));
  s.window_left = Odd(data, Pick(data, {-1, -1, 0, 5}));
  s.window_right = Odd(data, Pick(data, {-1, -1, 0, 3}));
  s.chunk = Odd(data, Pick(data, {-1, -1, 1, 9}));
  s.sink_tokens = Odd(data, Pick(data, {0, 0, 2}));
  if (data.ConsumeBool()) s.softcap = data.ConsumeFloatingPoint<float>();
  for (int32_t* flag :
       {&s.has_alibi, &s.has_sinks, &s.has_k_descale, &s.has_v_descale, &s.wants_lse, &s.precise}) {
    *flag = Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 1));
  }
  s.struct_size = static_cast<uint32_t>(Odd(data, static_cast<int32_t>(s.struct_size)));
  // A size past the struct promises bytes that are there.
  s.struct_size = std::min<uint32_t>(s.struct_size, sizeof s);
  s.version = static_cast<uint32_t>(Odd(data, static_cast<int32_t>(s.version)));

  const auto num_seqs = data.ConsumeIntegralInRange<int32_t>(0, 6);
  Array starts, lens, tables, begin, end, owned;
  starts.values.push_back(Odd(data, 0));
  for (int32_t i = 0; i < num_seqs; ++i) {
    // Unsigned: a sum past the end is what is tried.
    starts.values.push_back(
        static_cast<int32_t>(static_cast<uint32_t>(starts.values.back()) +
                             static_cast<uint32_t>(Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 12)))));
    lens.values.push_back(Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 150)));
    begin.values.push_back(Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 20)));
    end.values.push_back(Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 150)));
    if (data.ConsumeBool()) owned.values.push_back(Odd(data, i));
  }
  const auto width = data.ConsumeIntegralInRange<int32_t>(0, 24);
  attest_attention_batch b = attest_attention_batch_default();
  b.num_blocks = Odd(data, data.ConsumeIntegralInRange<int32_t>(0, 60));
  for (int32_t i = 0; i < num_seqs * width; ++i) {
    tables.values.push_back(Odd(data, static_cast<int32_t>(i % std::max<int64_t>(1, b.num_blocks))));
  }
  b.num_seqs = Odd(data, num_seqs);
  b.cu_seqlens_q = starts.data(data);
  b.cu_seqlens_q_count = std::min<int64_t>(Odd(data, num_seqs + 1), std::ssize(starts.values));
  b.kv_lens = lens.data(data);
  b.kv_lens_count = std::min<int64_t>(Odd(data, num_seqs), std::ssize(lens.values));
  b.block_tables = tables.data(data);
  b.block_table_stride = Odd(data, width);
  b.block_tables_count = std::min<int64_t>(Odd(data, num_seqs * width), std::ssize(tables.values));
  if (b.num_seqs <= num_seqs) {  // kv_begin and kv_end have num_seqs entries by promise
    if (data.ConsumeIntegral<uint8_t>() > 200) b.kv_begin = begin.data(data);
    if (data.ConsumeIntegral<uint8_t>() > 200) b.kv_end = end.data(data);
  }
  if (data.ConsumeIntegral<uint8_t>() > 200) {
    b.owned_seqs = owned.data(data);
    b.owned_seqs_count =
        std::min<int64_t>(Odd(data, static_cast<int32_t>(owned.values.size())), std::ssize(owned.values));
  }
  attest_attention_options o = attest_attention_options_default();
  o.num_shares = Odd(data, data.ConsumeIntegralInRange<int32_t>(1, 4));
  o.deterministic = Odd(data, 0);
  const std::string kernels = data.ConsumeRandomLengthString(40);
  if (data.ConsumeIntegral<uint8_t>() > 250) o.kernels = kernels.c_str();

  attest_attention_plan* plan = nullptr;
  attest_error* error = nullptr;
  const attest_status status = attest_attention_plan_create(&s, &b, &o, &plan, &error);
  if (status != ATTEST_OK) {
    ATTEST_CHECK(plan == nullptr);
    CheckRefusal(status, error);
    return 0;
  }
  ATTEST_CHECK(plan != nullptr && error == nullptr);
  int64_t planned = 0, expected = 0;
  for (int32_t i = 0; i < attest_attention_plan_num_routes(plan); ++i) {
    planned += attest_attention_plan_route(plan, i).num_tokens;
  }
  for (int32_t i = 0; i < b.num_seqs; ++i) {
    const bool is_owned =
        b.owned_seqs == nullptr ||
        std::find(b.owned_seqs, b.owned_seqs + b.owned_seqs_count, i) != b.owned_seqs + b.owned_seqs_count;
    if (is_owned) expected += b.cu_seqlens_q[i + 1] - b.cu_seqlens_q[i];
  }
  ATTEST_CHECK_EQ(planned, expected);
  RunIfSmall(s, b, plan);
  attest_attention_plan_free(plan);
  return 0;
}
