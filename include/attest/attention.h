// attest attention: the C++ interface, C++20, header only over the C interface (attention_c.h), which is the
// place that states every tensor's shape, every convention, threads, ownership and errors. What is added
// here: values that free themselves, optionals for limits, spans for arrays, and errors that can be read on.
//
//   using namespace attest::attention;
//   Spec spec{.q_heads = 8, .kv_heads = 2, .head_dim = 64, .v_head_dim = 64, .scale = 0.125f};
//   Result<Plan> plan = Plan::Create(spec, {.cu_seqlens_q = starts, .kv_lens = lens, .block_tables = tables,
//                                           .block_table_stride = width, .num_blocks = blocks});
//   if (!plan.ok()) { puts(plan.error().text.c_str()); ... }   // every reason
//   Workspace workspace(plan->workspace_bytes());
//   Status status = plan->Run({.q = Dense(q, {rows, 8, 64}), .out = Dense(out, {rows, 8, 64}),
//                              .k = PagesHnd(k, DType::kBF16, blocks, 2, 16, 64),
//                              .v = PagesHnd(v, DType::kBF16, blocks, 2, 16, 64),
//                              .workspace = workspace.memory()});
//
// No exception is thrown by the library; std::bad_alloc may leave these inline functions when the program's
// own allocations fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "attest/attention_c.h"

namespace attest::attention {

// ---- errors ----

struct Reason {
  std::string field;     // "head_dim"
  std::string value;     // "36"
  std::string expected;  // "a multiple of 8 from 16 to 256"
};

enum class Code : int32_t {
  kOk = ATTEST_OK,
  kInvalidArgument = ATTEST_INVALID_ARGUMENT,
  kUnsupported = ATTEST_UNSUPPORTED,
  kNotFound = ATTEST_NOT_FOUND,
  kResourceExhausted = ATTEST_RESOURCE_EXHAUSTED,
  kInternal = ATTEST_INTERNAL,
};

struct Error {
  Code code = Code::kOk;
  std::string text;  // every reason, one a line
  std::vector<Reason> reasons;
};

// Success, or an error with every reason.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // Takes the error of the C interface and frees it.
  Status(attest_status code, attest_error* error) {
    const std::unique_ptr<attest_error, void (*)(attest_error*)> owner(error, &attest_error_free);
    error_.code = static_cast<Code>(code);
    if (error == nullptr) return;
    error_.text = attest_error_text(error);
    for (int32_t i = 0; i < attest_error_count(error); ++i) {
      error_.reasons.push_back(
          {attest_error_field(error, i), attest_error_value(error, i), attest_error_expected(error, i)});
    }
  }
  // A reason found before the C interface is asked.
  Status(Code code, Reason reason) {
    error_.code = code;
    error_.text = reason.field + " is " + reason.value + ", expected " + reason.expected;
    error_.reasons.push_back(std::move(reason));
  }
  [[nodiscard]] bool ok() const { return error_.code == Code::kOk; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

// A value, or an error; reading the value of an error is a bug.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] T& value() { return *value_; }
  [[nodiscard]] const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  [[nodiscard]] const Error& error() const { return status_.error(); }

 private:
  std::optional<T> value_;
  Status status_;
};

// ---- tensors ----

enum class DType : int32_t {
  kF32 = ATTEST_F32,
  kF16 = ATTEST_F16,
  kBF16 = ATTEST_BF16,
  kF8E4M3 = ATTEST_F8_E4M3FN,
  kF8E5M2 = ATTEST_F8_E5M2,
  kI8 = ATTEST_I8,
};

// A view of memory that is not owned: see attest_tensor.
using Tensor = attest_tensor;

[[nodiscard]] inline Tensor Strided(const void* data, DType dtype, std::initializer_list<int64_t> shape,
                                    std::initializer_list<int64_t> stride) {
  Tensor t{};
  t.data = const_cast<void*>(data);  // inputs are not written
  t.dtype = static_cast<int32_t>(dtype);
  t.rank = static_cast<int32_t>(shape.size());
  int i = 0;
  for (const int64_t extent : shape) {
    if (i < 4) t.shape[i++] = extent;
  }
  i = 0;
  for (const int64_t step : stride) {
    if (i < 4) t.stride[i++] = step;
  }
  return t;
}
// Row-major and dense.
[[nodiscard]] inline Tensor Dense(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t = Strided(data, dtype, shape, {});
  int64_t step = 1;
  for (int i = t.rank < 4 ? t.rank - 1 : 3; i >= 0; --i) {
    t.stride[i] = step;
    step *= t.shape[i];
  }
  return t;
}
[[nodiscard]] inline Tensor Dense(const float* data, std::initializer_list<int64_t> shape) {
  return Dense(data, DType::kF32, shape);
}
// Pages in the two usual orders; both are seen as [num_blocks, kv_heads, block_size, dim].
[[nodiscard]] inline Tensor PagesHnd(const void* data, DType dtype, int64_t num_blocks, int64_t kv_heads,
                                     int64_t block_size, int64_t dim) {
  return Dense(data, dtype, {num_blocks, kv_heads, block_size, dim});
}
[[nodiscard]] inline Tensor PagesNhd(const void* data, DType dtype, int64_t num_blocks, int64_t kv_heads,
                                     int64_t block_size, int64_t dim) {
  return Strided(data, dtype, {num_blocks, kv_heads, block_size, dim},
                 {block_size * kv_heads * dim, dim, kv_heads * dim, 1});
}

// Memory of one run, aligned as the library wants it.
class Workspace {
 public:
  explicit Workspace(size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{ATTEST_WORKSPACE_ALIGNMENT}))),
        bytes_(bytes) {}
  [[nodiscard]] std::span<std::byte> memory() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const {
      ::operator delete(p, std::align_val_t{ATTEST_WORKSPACE_ALIGNMENT});
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_;
};

// ---- what is computed ----

enum class KvLayout : int32_t { kContiguous = ATTEST_KV_CONTIGUOUS, kPaged = ATTEST_KV_PAGED };

struct Spec {
  int32_t q_heads = 0, kv_heads = 0;
  int32_t head_dim = 0, v_head_dim = 0;
  DType q_dtype = DType::kF32, kv_dtype = DType::kBF16, out_dtype = DType::kF32;
  KvLayout kv_layout = KvLayout::kPaged;
  int32_t block_size = 16;
  float scale = 1.0f;
  bool causal = true;
  std::optional<int32_t> window_left = {}, window_right = {};
  std::optional<int32_t> chunk = {};
  int32_t sink_tokens = 0;
  float softcap = 0.0f;
  bool has_alibi = false, has_sinks = false;
  bool has_k_descale = false, has_v_descale = false;
  bool wants_lse = false, precise = false;
};

struct Batch {
  std::span<const int32_t> cu_seqlens_q;  // [num_seqs + 1]
  std::span<const int32_t> kv_lens;       // [num_seqs]
  std::span<const int32_t> block_tables = {};
  int64_t block_table_stride = 0;
  int64_t num_blocks = 0;
  std::span<const int32_t> kv_begin = {};  // [num_seqs] or empty
  std::span<const int32_t> kv_end = {};
  std::optional<std::span<const int32_t>> owned_seqs = {};
};

struct Options {
  int32_t num_shares = 1;
  bool deterministic = false;
  std::string kernels = {};
};

struct Args {
  Tensor q = {}, out = {}, lse = {};
  Tensor k = {}, v = {};
  Tensor alibi_slopes = {}, sinks = {};
  Tensor k_descale = {}, v_descale = {};
  std::span<std::byte> workspace = {};
};

struct Route {
  std::string_view phase;
  std::string_view kernel;
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;
};

// The library's threads; the caller is one of them.
class Threads {
 public:
  static Result<Threads> Create(int32_t num_threads, bool pin = false) {
    attest_threads* threads = nullptr;
    attest_error* error = nullptr;
    const attest_status status = attest_threads_create(num_threads, pin ? 1 : 0, &threads, &error);
    if (status != ATTEST_OK) return Status(status, error);
    return Threads(threads);
  }
  [[nodiscard]] attest_threads* get() const { return threads_.get(); }

 private:
  struct Free {
    void operator()(attest_threads* threads) const { attest_threads_free(threads); }
  };
  explicit Threads(attest_threads* threads) : threads_(threads) {}
  std::unique_ptr<attest_threads, Free> threads_;
};

// A run that the caller spreads itself: see attest_attention_begin. Ends with the object.
class Call {
 public:
  [[nodiscard]] int32_t num_shares() const { return num_shares_; }
  void RunShare(int32_t share) { attest_attention_run_share(call_.get(), share); }

 private:
  friend class Plan;
  struct End {
    void operator()(attest_attention_call* call) const { attest_attention_end(call); }
  };
  Call(attest_attention_call* call, int32_t num_shares) : call_(call), num_shares_(num_shares) {}
  std::unique_ptr<attest_attention_call, End> call_;
  int32_t num_shares_;
};

namespace detail {

inline attest_attention_spec ToC(const Spec& s) {
  attest_attention_spec c = attest_attention_spec_default();
  c.q_heads = s.q_heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = s.head_dim;
  c.v_head_dim = s.v_head_dim;
  c.q_dtype = static_cast<int32_t>(s.q_dtype);
  c.kv_dtype = static_cast<int32_t>(s.kv_dtype);
  c.out_dtype = static_cast<int32_t>(s.out_dtype);
  c.kv_layout = static_cast<int32_t>(s.kv_layout);
  c.block_size = s.block_size;
  c.scale = s.scale;
  c.causal = s.causal ? 1 : 0;
  // An optional that holds -1 must not become "no limit".
  const auto limit = [](const std::optional<int32_t>& x) {
    return !x ? ATTEST_NO_LIMIT : *x == ATTEST_NO_LIMIT ? INT32_MIN : *x;
  };
  c.window_left = limit(s.window_left);
  c.window_right = limit(s.window_right);
  c.chunk = limit(s.chunk);
  c.sink_tokens = s.sink_tokens;
  c.softcap = s.softcap;
  c.has_alibi = s.has_alibi ? 1 : 0;
  c.has_sinks = s.has_sinks ? 1 : 0;
  c.has_k_descale = s.has_k_descale ? 1 : 0;
  c.has_v_descale = s.has_v_descale ? 1 : 0;
  c.wants_lse = s.wants_lse ? 1 : 0;
  c.precise = s.precise ? 1 : 0;
  return c;
}

inline attest_attention_args ToC(const Args& a) {
  attest_attention_args c = attest_attention_args_default();
  c.q = a.q;
  c.out = a.out;
  c.lse = a.lse;
  c.k = a.k;
  c.v = a.v;
  c.alibi_slopes = a.alibi_slopes;
  c.sinks = a.sinks;
  c.k_descale = a.k_descale;
  c.v_descale = a.v_descale;
  c.workspace = a.workspace.data();
  c.workspace_bytes = a.workspace.size();
  return c;
}

}  // namespace detail

// Made once, run many times, by any threads. Movable.
class Plan {
 public:
  static Result<Plan> Create(const Spec& spec, const Batch& batch, const Options& options = {}) {
    const attest_attention_spec c_spec = detail::ToC(spec);
    attest_attention_batch c_batch = attest_attention_batch_default();
    c_batch.num_seqs = static_cast<int32_t>(batch.kv_lens.size());
    c_batch.cu_seqlens_q = batch.cu_seqlens_q.data();
    c_batch.cu_seqlens_q_count = static_cast<int64_t>(batch.cu_seqlens_q.size());
    c_batch.kv_lens = batch.kv_lens.data();
    c_batch.kv_lens_count = static_cast<int64_t>(batch.kv_lens.size());
    c_batch.block_tables = batch.block_tables.data();
    c_batch.block_table_stride = batch.block_table_stride;
    c_batch.block_tables_count = static_cast<int64_t>(batch.block_tables.size());
    c_batch.num_blocks = batch.num_blocks;
    for (const auto& [name, range] : {std::pair{"kv_begin", batch.kv_begin}, {"kv_end", batch.kv_end}}) {
      if (range.empty() || range.size() == batch.kv_lens.size()) continue;
      return Status(Code::kInvalidArgument,
                    {name, std::to_string(range.size()) + " entries",
                     std::to_string(batch.kv_lens.size()) + ", as kv_lens has, or none"});
    }
    c_batch.kv_begin = batch.kv_begin.empty() ? nullptr : batch.kv_begin.data();
    c_batch.kv_end = batch.kv_end.empty() ? nullptr : batch.kv_end.data();
    static constexpr int32_t kNone[1] = {0};
    if (batch.owned_seqs) {
      c_batch.owned_seqs = batch.owned_seqs->empty() ? kNone : batch.owned_seqs->data();
      c_batch.owned_seqs_count = static_cast<int64_t>(batch.owned_seqs->size());
    }
    attest_attention_options c_options = attest_attention_options_default();
    c_options.num_shares = options.num_shares;
    c_options.deterministic = options.deterministic ? 1 : 0;
    c_options.kernels = options.kernels.c_str();
    attest_attention_plan* plan = nullptr;
    attest_error* error = nullptr;
    const attest_status status = attest_attention_plan_create(&c_spec, &c_batch, &c_options, &plan, &error);
    if (status != ATTEST_OK) return Status(status, error);
    return Plan(plan);
  }

  [[nodiscard]] size_t workspace_bytes() const { return attest_attention_plan_workspace_bytes(plan_.get()); }
  [[nodiscard]] int32_t num_shares() const { return attest_attention_plan_num_shares(plan_.get()); }
  [[nodiscard]] std::vector<Route> routes() const {
    std::vector<Route> routes;
    for (int32_t i = 0; i < attest_attention_plan_num_routes(plan_.get()); ++i) {
      const attest_attention_route r = attest_attention_plan_route(plan_.get(), i);
      routes.push_back({r.phase, r.kernel, r.num_seqs, r.num_tokens});
    }
    return routes;
  }

  // On the calling thread.
  Status Run(const Args& args) const {
    const attest_attention_args c = detail::ToC(args);
    attest_error* error = nullptr;
    const attest_status status = attest_attention_run(plan_.get(), &c, &error);
    return Status(status, error);
  }
  // On the library's threads.
  Status Run(const Args& args, const Threads& threads) const {
    const attest_attention_args c = detail::ToC(args);
    attest_error* error = nullptr;
    const attest_status status = attest_attention_run_threads(plan_.get(), &c, threads.get(), &error);
    return Status(status, error);
  }
  // On the caller's threads: parallel_for(count, body) calls body(i) once for each i in [0, count).
  template <class ParallelFor>
  Status RunParallel(const Args& args, ParallelFor&& parallel_for) const {
    const attest_attention_args c = detail::ToC(args);
    attest_error* error = nullptr;
    const attest_status status = attest_attention_run_parallel(
        plan_.get(), &c,
        [](void* context, int32_t count, void (*body)(void*, int32_t), void* state) {
          (*static_cast<std::remove_reference_t<ParallelFor>*>(context))(
              count, [body, state](int32_t i) { body(state, i); });
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(parallel_for))), &error);
    return Status(status, error);
  }
  // Share by share. The plan and everything in `args` must outlive the call.
  Result<Call> Begin(const Args& args) const {
    const attest_attention_args c = detail::ToC(args);
    attest_attention_call* call = nullptr;
    attest_error* error = nullptr;
    const attest_status status = attest_attention_begin(plan_.get(), &c, &call, &error);
    if (status != ATTEST_OK) return Status(status, error);
    return Call(call, num_shares());
  }

 private:
  struct Free {
    void operator()(attest_attention_plan* plan) const { attest_attention_plan_free(plan); }
  };
  explicit Plan(attest_attention_plan* plan) : plan_(plan) {}
  std::unique_ptr<attest_attention_plan, Free> plan_;
};

// ---- states and pages ----

struct MergeArgs {
  std::span<const Tensor> state_out;  // [T, heads, dim] each
  std::span<const Tensor> state_lse;  // f32 [heads, T] each
  Tensor out = {}, lse = {}, sinks = {};
};
inline Status MergeStates(const MergeArgs& args, const Threads* threads = nullptr) {
  if (args.state_out.size() != args.state_lse.size()) {
    return Status(Code::kInvalidArgument, {"state_lse", std::to_string(args.state_lse.size()) + " tensors",
                                           std::to_string(args.state_out.size()) + ", as state_out has"});
  }
  attest_merge_args c = attest_merge_args_default();
  c.state_out = args.state_out.data();
  c.state_lse = args.state_lse.data();
  c.num_states = static_cast<int32_t>(args.state_out.size());
  c.out = args.out;
  c.lse = args.lse;
  c.sinks = args.sinks;
  attest_error* error = nullptr;
  const attest_status status = attest_merge_states(&c, threads == nullptr ? nullptr : threads->get(), &error);
  return Status(status, error);
}

struct AppendKvArgs {
  Tensor k = {}, v = {};
  std::span<const int64_t> slots;
  Tensor k_pages = {}, v_pages = {};
  Tensor k_scale = {}, v_scale = {};
  std::span<const int32_t> token_seqs = {};
};
inline Status AppendKv(const AppendKvArgs& args, const Threads* threads = nullptr) {
  attest_append_kv_args c = attest_append_kv_args_default();
  c.k = args.k;
  c.v = args.v;
  c.slots = args.slots.data();
  c.slots_count = static_cast<int64_t>(args.slots.size());
  c.k_pages = args.k_pages;
  c.v_pages = args.v_pages;
  c.k_scale = args.k_scale;
  c.v_scale = args.v_scale;
  c.token_seqs = args.token_seqs.empty() ? nullptr : args.token_seqs.data();
  c.token_seqs_count = static_cast<int64_t>(args.token_seqs.size());
  attest_error* error = nullptr;
  const attest_status status = attest_append_kv(&c, threads == nullptr ? nullptr : threads->get(), &error);
  return Status(status, error);
}

struct BlockCopy {
  int64_t from = 0;
  int64_t to = 0;
};
inline Status CopyBlocks(const Tensor& k_pages, const Tensor& v_pages, std::span<const BlockCopy> copies,
                         const Threads* threads = nullptr) {
  static_assert(sizeof(BlockCopy) == 2 * sizeof(int64_t));
  attest_error* error = nullptr;
  const attest_status status = attest_copy_blocks(
      &k_pages, &v_pages, reinterpret_cast<const int64_t*>(copies.data()),
      static_cast<int64_t>(copies.size()), threads == nullptr ? nullptr : threads->get(), &error);
  return Status(status, error);
}

// Which kernel computes one sequence of these lengths, and why each other does not, one a line.
inline Result<std::string> Explain(const Spec& spec, int32_t q_len, int32_t kv_len,
                                   const std::string& kernels = {}) {
  const attest_attention_spec c = detail::ToC(spec);
  size_t needed = 0;
  attest_error* error = nullptr;
  attest_status status =
      attest_attention_explain(&c, q_len, kv_len, kernels.c_str(), nullptr, 0, &needed, &error);
  if (status != ATTEST_OK) return Status(status, error);
  std::string text(needed, '\0');
  status =
      attest_attention_explain(&c, q_len, kv_len, kernels.c_str(), text.data(), text.size(), nullptr, &error);
  if (status != ATTEST_OK) return Status(status, error);
  text.pop_back();
  return text;
}

}  // namespace attest::attention
