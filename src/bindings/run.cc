// Runs of a plan: tensors are checked, then shares are run by whoever the caller chose.
#include <memory>
#include <new>
#include <vector>

#include "attention/call.h"
#include "bindings/plan.h"
#include "bindings/reasons.h"
#include "bindings/tensors.h"
#include "bindings/threads.h"

// Lives at the start of the workspace, before the memory of the call itself.
struct attest_attention_call {
  attest::ContiguousKv contiguous;
  attest::PagedKv paged;
  std::optional<attest::AttentionCall> call;
};

namespace attest::bindings {
namespace {

constexpr int64_t kHeaderBytes = (static_cast<int64_t>(sizeof(attest_attention_call)) + 63) / 64 * 64;
static_assert(alignof(attest_attention_call) <= ATTEST_WORKSPACE_ALIGNMENT);

int64_t WorkspaceBytes(const attest_attention_plan& plan) {
  return kHeaderBytes + plan.plan->scratch_bytes();
}

KvDescale DescaleOf(const attest_tensor& tensor) {
  return {.data = static_cast<const float*>(tensor.data),
          .seq_stride = tensor.stride[0],
          .head_stride = tensor.stride[1]};
}

// Everything about the tensors of a run; on success fills *kv and *params.
void CheckArgs(const attest_attention_plan& plan, const attest_attention_args& args,
               attest_attention_call* kv, AttentionParams* params, Reasons& reasons) {
  const AttentionSpec& spec = plan.spec;
  const int64_t rows = plan.q_begin.total(), num_seqs = plan.q_begin.num_seqs();
  const std::vector<DType> f32{DType::kF32};
  std::vector<Region> inputs, outputs;
  const auto accept = [](std::vector<Region>& regions, bool is_good, const char* name,
                         const attest_tensor& tensor) {
    if (is_good && tensor.data != nullptr) regions.push_back(RegionOf(name, tensor));
  };
  const TensorRule q{"q", {spec.q_dtype}, {{rows, true}, {spec.q_heads}, {spec.head_dim}}};
  accept(inputs, CheckTensor(args.q, q, reasons), "q", args.q);
  const TensorRule out{
      "out", {spec.out_dtype}, {{rows, true}, {spec.q_heads}, {spec.v_head_dim}}, true, true};
  accept(outputs, CheckTensor(args.out, out, reasons), "out", args.out);
  const TensorRule lse{"lse", f32, {{spec.q_heads}, {rows, true}}, false, true};
  accept(outputs, CheckOptional(args.lse, spec.wants_lse, "wants_lse", lse, reasons), "lse", args.lse);

  const bool paged = spec.layout != KvLayout::kContiguous;
  const auto kv_rule = [&](const char* name, int64_t dim) {
    if (paged) {
      return TensorRule{
          name,
          {spec.kv_dtype},
          {{plan.plan->highest_block() + int64_t{1}, true}, {spec.kv_heads}, {spec.block_size}, {dim}}};
    }
    return TensorRule{name, {spec.kv_dtype}, {{plan.k_begin.back(), true}, {spec.kv_heads}, {dim}}};
  };
  const bool has_k = CheckTensor(args.k, kv_rule("k", spec.head_dim), reasons);
  const bool has_v = CheckTensor(args.v, kv_rule("v", spec.v_head_dim), reasons);
  accept(inputs, has_k, "k", args.k);
  accept(inputs, has_v, "v", args.v);
  if (paged && has_k && has_v) {
    reasons.Require(args.k.shape[0] == args.v.shape[0], "v.shape[0]", args.v.shape[0],
                    fmt::format("{}, as k has", args.k.shape[0]));
  }
  const TensorRule slopes{"alibi_slopes", f32, {{spec.q_heads}}}, sinks{"sinks", f32, {{spec.q_heads}}};
  accept(inputs, CheckOptional(args.alibi_slopes, spec.has_alibi, "has_alibi", slopes, reasons),
         "alibi_slopes", args.alibi_slopes);
  accept(inputs, CheckOptional(args.sinks, spec.has_sinks, "has_sinks", sinks, reasons), "sinks", args.sinks);
  const TensorRule k_descale{"k_descale", f32, {{num_seqs, true}, {spec.kv_heads}}, false};
  const TensorRule v_descale{"v_descale", f32, {{num_seqs, true}, {spec.kv_heads}}, false};
  accept(inputs, CheckOptional(args.k_descale, spec.has_k_descale, "has_k_descale", k_descale, reasons),
         "k_descale", args.k_descale);
  accept(inputs, CheckOptional(args.v_descale, spec.has_v_descale, "has_v_descale", v_descale, reasons),
         "v_descale", args.v_descale);

  const auto workspace = reinterpret_cast<uintptr_t>(args.workspace);
  const int64_t needed = WorkspaceBytes(plan);
  reasons.Require(args.workspace != nullptr, "workspace", "NULL", fmt::format("{} bytes", needed));
  reasons.Require(workspace % ATTEST_WORKSPACE_ALIGNMENT == 0, "workspace", fmt::format("{:#x}", workspace),
                  fmt::format("aligned to {} bytes", ATTEST_WORKSPACE_ALIGNMENT));
  reasons.Require(args.workspace_bytes >= static_cast<size_t>(needed), "workspace_bytes",
                  args.workspace_bytes, fmt::format(">= {}", needed));
  if (args.workspace != nullptr) {
    outputs.push_back(
        {.name = "workspace", .begin = workspace, .end = workspace + static_cast<uintptr_t>(needed)});
  }
  CheckOverlap(outputs, inputs, reasons);
  if (!reasons.empty()) return;

  params->q = ViewOf<const std::byte, 3>(args.q);
  params->q_dtype = spec.q_dtype;
  params->out = ViewOf<std::byte, 3>(args.out);
  params->out_dtype = spec.out_dtype;
  params->q.shape[0] = params->out.shape[0] = rows;  // rows past these are padding
  params->q.stride[2] = params->out.stride[2] = 1;   // of a dimension of 1 any stride was accepted
  if (spec.wants_lse) {
    params->lse = ViewOf<float, 2>(args.lse);
    params->lse.shape[1] = rows;
  }
  if (paged) {
    kv->paged = PagesOf(args.k, args.v);
    params->paged = &kv->paged;
  } else {
    kv->contiguous = {.k = args.k.data,
                      .v = args.v.data,
                      .dtype = spec.kv_dtype,
                      .k_token_stride = args.k.stride[0],
                      .k_head_stride = args.k.stride[1],
                      .v_token_stride = args.v.stride[0],
                      .v_head_stride = args.v.stride[1],
                      .k_begin = plan.k_begin};
    params->contiguous = &kv->contiguous;
  }
  params->alibi_slopes = static_cast<const float*>(args.alibi_slopes.data);
  params->sinks = static_cast<const float*>(args.sinks.data);
  if (spec.has_k_descale) params->k_descale = DescaleOf(args.k_descale);
  if (spec.has_v_descale) params->v_descale = DescaleOf(args.v_descale);
}

attest_status Begin(const attest_attention_plan* plan, const attest_attention_args* c_args,
                    attest_attention_call** out, attest_error** error) {
  Reasons reasons;
  attest_attention_args args{};
  reasons.Require(plan != nullptr, "plan", "NULL", "a plan");
  reasons.Require(out != nullptr, "call", "NULL", "where to put the call");
  if (!ReadStruct("args", c_args, &args, reasons) || plan == nullptr || out == nullptr) {
    return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  }
  attest_attention_call kv;
  AttentionParams params;
  CheckArgs(*plan, args, &kv, &params, reasons);
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  auto* call = std::construct_at(static_cast<attest_attention_call*>(args.workspace));
  call->paged = kv.paged;
  call->contiguous = kv.contiguous;
  if (params.paged != nullptr) params.paged = &call->paged;
  if (params.contiguous != nullptr) params.contiguous = &call->contiguous;
  if (const Status valid = ValidateParams(*plan->plan, params); !valid) return Report(valid.error(), error);
  call->call.emplace(*plan->plan, params, static_cast<std::byte*>(args.workspace) + kHeaderBytes);
  *out = call;
  return ATTEST_OK;
}

// Begins, lets `spread` run the shares, ends.
template <class Fn>
attest_status RunWith(const attest_attention_plan* plan, const attest_attention_args* args,
                      attest_error** error, Fn spread) {
  return Guarded(error, [&]() -> attest_status {
    attest_attention_call* call = nullptr;
    if (const attest_status status = Begin(plan, args, &call, error); call == nullptr) return status;
    spread(*call->call);
    attest_attention_end(call);
    return ATTEST_OK;
  });
}

attest_status Missing(const char* field, const char* expected, attest_error** error) {
  Reasons reasons;
  reasons.Add(field, "NULL", expected);
  return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
}

}  // namespace
}  // namespace attest::bindings

using attest::AttentionCall;
using attest::bindings::Guarded;

extern "C" {

size_t attest_attention_plan_workspace_bytes(const attest_attention_plan* plan) {
  return plan == nullptr ? 0 : static_cast<size_t>(attest::bindings::WorkspaceBytes(*plan));
}

attest_status attest_attention_begin(const attest_attention_plan* plan, const attest_attention_args* args,
                                     attest_attention_call** call, attest_error** error) {
  if (call != nullptr) *call = nullptr;
  return Guarded(error, [&] { return attest::bindings::Begin(plan, args, call, error); });
}
void attest_attention_run_share(attest_attention_call* call, int32_t share) {
  if (call == nullptr || share < 0 || share >= call->call->num_shares()) return;
  call->call->RunShare(share);
}
void attest_attention_end(attest_attention_call* call) {
  if (call != nullptr) std::destroy_at(call);
}

attest_status attest_attention_run(const attest_attention_plan* plan, const attest_attention_args* args,
                                   attest_error** error) {
  return attest::bindings::RunWith(plan, args, error, [](AttentionCall& call) { call.RunShare(0); });
}

attest_status attest_attention_run_threads(const attest_attention_plan* plan,
                                           const attest_attention_args* args, attest_threads* threads,
                                           attest_error** error) {
  if (threads == nullptr) return attest_attention_run(plan, args, error);
  return attest::bindings::RunWith(plan, args, error, [threads](AttentionCall& call) {
    const std::lock_guard lock(threads->mutex);
    threads->team.Run([&call](int rank) {
      if (rank < call.num_shares()) call.RunShare(rank);
    });
  });
}

attest_status attest_attention_run_parallel(const attest_attention_plan* plan,
                                            const attest_attention_args* args,
                                            attest_parallel_for parallel_for, void* context,
                                            attest_error** error) {
  if (error != nullptr) *error = nullptr;
  if (parallel_for == nullptr) return attest::bindings::Missing("parallel_for", "a function", error);
  return attest::bindings::RunWith(plan, args, error, [&](AttentionCall& call) {
    parallel_for(
        context, call.num_shares(),
        [](void* state, int32_t share) {
          auto* self = static_cast<AttentionCall*>(state);
          if (share >= 0 && share < self->num_shares()) self->RunShare(share);
        },
        &call);
  });
}

attest_status attest_threads_create(int32_t num_threads, int32_t pin, attest_threads** threads,
                                    attest_error** error) {
  using attest::bindings::Reasons;
  if (threads != nullptr) *threads = nullptr;
  return Guarded(error, [&]() -> attest_status {
    Reasons reasons;
    reasons.Require(threads != nullptr, "threads", "NULL", "where to put the threads");
    reasons.Require(num_threads >= 1 && num_threads <= attest::bindings::kMaxShares, "num_threads",
                    num_threads, fmt::format("1 to {}", attest::bindings::kMaxShares));
    reasons.RequireFlag("pin", pin);
    if (threads == nullptr || !reasons.empty()) {
      return attest::bindings::Report(ATTEST_INVALID_ARGUMENT, reasons, error);
    }
    *threads = new attest_threads({.num_threads = num_threads, .pin = pin != 0});
    return ATTEST_OK;
  });
}
void attest_threads_free(attest_threads* threads) { delete threads; }

}  // extern "C"
