// Writes to pages and merges of states.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "bindings/plan.h"
#include "bindings/reasons.h"
#include "bindings/tensors.h"
#include "bindings/threads.h"
#include "kernels/cpu/append_kv.h"
#include "kernels/merge_states.h"

namespace attest::bindings {
namespace {

constexpr int64_t kMaxTensorRows = int64_t{1} << 40;
const std::vector<DType>& FloatTypes() {
  static const std::vector<DType> types{DType::kF32, DType::kF16, DType::kBF16};
  return types;
}
const std::vector<DType>& AllTypes() {
  static const std::vector<DType> types{DType::kF32,    DType::kF16,    DType::kBF16,
                                        DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
  return types;
}

// A shape that the tensor itself gives, within limits that keep products in 64 bits.
bool CheckOwnShape(const char* name, const attest_tensor& tensor, int32_t rank, Reasons& reasons) {
  if (tensor.rank != rank) {
    reasons.Add(fmt::format("{}.rank", name), tensor.rank, fmt::format("{}", rank));
    return false;
  }
  bool is_good = true;
  const auto within = [&](int axis, int64_t least, int64_t most) {
    if (tensor.shape[axis] >= least && tensor.shape[axis] <= most) return;
    reasons.Add(fmt::format("{}.shape[{}]", name, axis), tensor.shape[axis],
                fmt::format("{} to {}", least, most));
    is_good = false;
  };
  within(0, 0, rank == 4 ? INT32_MAX : kMaxTensorRows);
  within(1, 1, kMaxHeads);
  if (rank == 4) within(2, 1, kMaxBlockSize);
  within(rank - 1, 1, kMaxDim);
  return is_good;
}

TensorRule RuleLike(const char* name, const attest_tensor& tensor, const std::vector<DType>& dtypes,
                    bool is_output) {
  TensorRule rule{name, dtypes, {}, true, is_output};
  for (int i = 0; i < tensor.rank; ++i) rule.shape.push_back({tensor.shape[i]});
  return rule;
}

// K and V pages of one cache: same type, blocks, heads and block size.
bool CheckPages(const attest_tensor& k, const attest_tensor& v, Reasons& reasons) {
  const bool has_k = CheckOwnShape("k_pages", k, 4, reasons), has_v = CheckOwnShape("v_pages", v, 4, reasons);
  if (!has_k || !has_v) return false;
  TensorRule v_rule = RuleLike("v_pages", v, AllTypes(), true);
  for (size_t i = 0; i < 3; ++i) v_rule.shape[i] = {k.shape[i]};  // as k has
  const std::optional<DType> dtype = DTypeOf(k.dtype);
  if (dtype) v_rule.dtypes = {*dtype};
  const bool k_is_good = CheckTensor(k, RuleLike("k_pages", k, AllTypes(), true), reasons);
  if (!CheckTensor(v, v_rule, reasons) || !k_is_good) return false;
  // They may interleave in any way (packed pages), but not be one memory.
  reasons.Require(k.data != v.data || k.shape[0] == 0, "v_pages.data", "that of k_pages", "another address");
  return k.data != v.data || k.shape[0] == 0;
}

void CheckScale(const char* name, const attest_tensor& scale, int64_t num_seqs, int64_t kv_heads,
                Reasons& reasons) {
  if (scale.data == nullptr) return;
  if (!CheckTensor(scale, {name, {DType::kF32}, {{num_seqs, true}, {kv_heads}}, false}, reasons)) return;
  const auto view = ViewOf<const float, 2>(scale);
  for (int64_t seq = 0; seq < (scale.stride[0] == 0 ? std::min<int64_t>(1, num_seqs) : num_seqs); ++seq) {
    for (int64_t head = 0; head < (scale.stride[1] == 0 ? 1 : kv_heads); ++head) {
      const float value = *view.At(seq, head);
      if (!(value > 0.0f) || !std::isfinite(value))
        reasons.Add(fmt::format("{}[{}, {}]", name, seq, head), value, "finite and > 0");
    }
  }
}

attest_status Append(const attest_append_kv_args* c_args, attest_threads* threads, attest_error** error) {
  Reasons reasons;
  attest_append_kv_args args{};
  if (!ReadStruct("args", c_args, &args, reasons)) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  const bool has_pages = CheckPages(args.k_pages, args.v_pages, reasons);
  const bool has_k = CheckOwnShape("k", args.k, 3, reasons);
  if (!has_pages || !has_k) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  const int64_t rows = args.k.shape[0], kv_heads = args.k_pages.shape[1];
  const bool k_is_good =
      CheckTensor(args.k, {"k", FloatTypes(), {{rows}, {kv_heads}, {args.k_pages.shape[3]}}}, reasons);
  const bool v_is_good = CheckTensor(args.v,
                                     {"v",
                                      k_is_good ? std::vector<DType>{*DTypeOf(args.k.dtype)} : FloatTypes(),
                                      {{rows}, {kv_heads}, {args.v_pages.shape[3]}}},
                                     reasons);
  if (args.slots == nullptr && rows > 0) reasons.Add("slots", "NULL", fmt::format("{} entries", rows));
  reasons.Require(args.slots_count == rows, "slots_count", args.slots_count,
                  fmt::format("{}, as k has rows", rows));
  reasons.Require(reinterpret_cast<uintptr_t>(args.slots) % 8 == 0, "slots",
                  fmt::format("{:#x}", reinterpret_cast<uintptr_t>(args.slots)), "aligned to 8 bytes");
  if (args.token_seqs != nullptr) {
    reasons.Require(args.token_seqs_count == rows, "token_seqs_count", args.token_seqs_count,
                    fmt::format("{}, as k has rows", rows));
    reasons.Require(reinterpret_cast<uintptr_t>(args.token_seqs) % 4 == 0, "token_seqs",
                    fmt::format("{:#x}", reinterpret_cast<uintptr_t>(args.token_seqs)), "aligned to 4 bytes");
  }
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);

  const int64_t num_slots = args.k_pages.shape[0] * args.k_pages.shape[2];
  std::vector<int64_t> sorted;
  for (int64_t i = 0; i < rows; ++i) {
    if (args.slots[i] >= num_slots)
      reasons.Add(fmt::format("slots[{}]", i), args.slots[i],
                  fmt::format("< num_blocks * block_size = {}", num_slots));
    if (args.slots[i] >= 0) sorted.push_back(args.slots[i]);
  }
  std::ranges::sort(sorted);
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] == sorted[i - 1] && (i < 2 || sorted[i] != sorted[i - 2]))
      reasons.Add("slots", sorted[i], "no slot twice");
  }
  int64_t num_seqs = rows > 0 ? 1 : 0;
  for (int64_t i = 0; args.token_seqs != nullptr && i < rows; ++i) {
    if (args.token_seqs[i] < 0) reasons.Add(fmt::format("token_seqs[{}]", i), args.token_seqs[i], ">= 0");
    num_seqs = std::max(num_seqs, int64_t{args.token_seqs[i]} + 1);
  }
  CheckScale("k_scale", args.k_scale, num_seqs, kv_heads, reasons);
  CheckScale("v_scale", args.v_scale, num_seqs, kv_heads, reasons);
  std::vector<Region> inputs;
  if (k_is_good) inputs.push_back(RegionOf("k", args.k));
  if (v_is_good) inputs.push_back(RegionOf("v", args.v));
  const Region outputs[] = {RegionOf("k_pages", args.k_pages), RegionOf("v_pages", args.v_pages)};
  for (const Region& output : outputs)
    CheckOverlap({&output, 1}, inputs, reasons);  // K and V may interleave in any way
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);

  const auto scale = [](const attest_tensor& t) {
    return KvDescale{
        .data = static_cast<const float*>(t.data), .seq_stride = t.stride[0], .head_stride = t.stride[1]};
  };
  KvRows kv_rows{.k = ViewOf<const std::byte, 3>(args.k),
                 .v = ViewOf<const std::byte, 3>(args.v),
                 .dtype = *DTypeOf(args.k.dtype),
                 .slots = {args.slots, static_cast<size_t>(rows)},
                 .k_scale = scale(args.k_scale),
                 .v_scale = scale(args.v_scale),
                 .seqs = {}};
  if (args.token_seqs != nullptr) kv_rows.seqs = {args.token_seqs, static_cast<size_t>(rows)};
  const PagedKv kv = PagesOf(args.k_pages, args.v_pages);
  std::atomic<int64_t> lost{0};
  ForRanges(threads, rows, 64,
            [&](int64_t begin, int64_t end) { lost += AppendKvRows(kv_rows, kv, begin, end); });
  if (lost.load() == 0) return ATTEST_OK;
  reasons.Add("k and v", fmt::format("{} NaN", lost.load()),
              "none: int8 pages cannot hold one (0 was stored)");
  return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
}

attest_status Copy(const attest_tensor* k_pages, const attest_tensor* v_pages, const int64_t* pairs,
                   int64_t num_pairs, attest_threads* threads, attest_error** error) {
  Reasons reasons;
  reasons.Require(k_pages != nullptr, "k_pages", "NULL", "a tensor");
  reasons.Require(v_pages != nullptr, "v_pages", "NULL", "a tensor");
  reasons.Require(num_pairs >= 0 && num_pairs <= INT32_MAX, "num_pairs", num_pairs,
                  fmt::format("0 to {}", INT32_MAX));
  reasons.Require(num_pairs <= 0 || pairs != nullptr, "pairs", "NULL", fmt::format("{} pairs", num_pairs));
  reasons.Require(reinterpret_cast<uintptr_t>(pairs) % 8 == 0, "pairs",
                  fmt::format("{:#x}", reinterpret_cast<uintptr_t>(pairs)), "aligned to 8 bytes");
  if (k_pages != nullptr && v_pages != nullptr) CheckPages(*k_pages, *v_pages, reasons);
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  std::vector<BlockCopy> copies;
  std::vector<int64_t> written;
  for (int64_t i = 0; i < 2 * num_pairs; ++i) {
    if (pairs[i] < 0 || pairs[i] >= k_pages->shape[0])
      reasons.Add(fmt::format("pairs[{}]", i), pairs[i],
                  fmt::format("0 to {}, a block", k_pages->shape[0] - 1));
  }
  for (int64_t i = 0; i < num_pairs; ++i) {
    copies.push_back({.from = pairs[2 * i], .to = pairs[2 * i + 1]});
    written.push_back(copies.back().to);
  }
  std::ranges::sort(written);
  for (size_t i = 1; i < written.size(); ++i) {
    if (written[i] == written[i - 1]) reasons.Add("pairs", written[i], "no block written twice");
  }
  for (const BlockCopy& copy : copies) {
    if (std::ranges::binary_search(written, copy.from))
      reasons.Add("pairs", copy.from, "no block that is written is read");
  }
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  const PagedKv kv = PagesOf(*k_pages, *v_pages);
  ForRanges(threads, num_pairs, 4, [&](int64_t begin, int64_t end) {
    CopyKvBlocks(std::span(copies).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), kv);
  });
  return ATTEST_OK;
}

bool SameView(const attest_tensor& a, const attest_tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  return std::equal(a.stride, a.stride + a.rank, b.stride) && std::equal(a.shape, a.shape + a.rank, b.shape);
}

attest_status Merge(const attest_merge_args* c_args, attest_threads* threads, attest_error** error) {
  Reasons reasons;
  attest_merge_args args{};
  if (!ReadStruct("args", c_args, &args, reasons)) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  reasons.Require(args.reserved == 0, "reserved", args.reserved, "0");
  reasons.Require(args.num_states >= 1 && args.num_states <= 65536, "num_states", args.num_states,
                  "1 to 65536");
  reasons.Require(args.state_out != nullptr, "state_out", "NULL", fmt::format("{} tensors", args.num_states));
  reasons.Require(args.state_lse != nullptr, "state_lse", "NULL", fmt::format("{} tensors", args.num_states));
  const bool has_shape = CheckOwnShape("out", args.out, 3, reasons);
  if (!reasons.empty() || !has_shape) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  const int64_t tokens = args.out.shape[0], heads = args.out.shape[1];
  std::vector<Region> inputs, outputs;
  std::vector<StateTensor> states;
  const bool has_out = CheckTensor(args.out, RuleLike("out", args.out, FloatTypes(), true), reasons);
  if (has_out) outputs.push_back(RegionOf("out", args.out));
  if (args.lse.data != nullptr &&
      CheckTensor(args.lse, {"lse", {DType::kF32}, {{heads}, {tokens}}, false, true}, reasons)) {
    outputs.push_back(RegionOf("lse", args.lse));
  }
  if (args.sinks.data != nullptr && CheckTensor(args.sinks, {"sinks", {DType::kF32}, {{heads}}}, reasons)) {
    inputs.push_back(RegionOf("sinks", args.sinks));
  }
  for (int32_t i = 0; i < args.num_states; ++i) {
    const attest_tensor& out = args.state_out[i];
    const attest_tensor& lse = args.state_lse[i];
    const std::string out_name = fmt::format("state_out[{}]", i), lse_name = fmt::format("state_lse[{}]", i);
    const bool out_is_good =
        CheckTensor(out, {out_name.c_str(), FloatTypes(), {{tokens}, {heads}, {args.out.shape[2]}}}, reasons);
    const bool lse_is_good =
        CheckTensor(lse, {lse_name.c_str(), {DType::kF32}, {{heads}, {tokens}}, false}, reasons);
    if (out_is_good && !SameView(out, args.out)) inputs.push_back(RegionOf("a state_out", out));
    if (lse_is_good) inputs.push_back(RegionOf("a state_lse", lse));
    if (out_is_good && lse_is_good) {
      states.push_back({.out = ViewOf<const std::byte, 3>(out),
                        .dtype = *DTypeOf(out.dtype),
                        .lse = ViewOf<const float, 2>(lse)});
      states.back().out.stride[2] = 1;
    }
  }
  // The LSE of the result may overwrite no LSE that other rows still need.
  CheckOverlap(outputs, inputs, reasons);
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
  MergeTensors tensors{.states = states,
                       .out = ViewOf<std::byte, 3>(args.out),
                       .out_dtype = *DTypeOf(args.out.dtype),
                       .lse = {},
                       .sinks = static_cast<const float*>(args.sinks.data)};
  tensors.out.stride[2] = 1;
  if (args.lse.data != nullptr) tensors.lse = ViewOf<float, 2>(args.lse);
  ForRanges(threads, tokens, 4, [&](int64_t begin, int64_t end) { MergeTokens(tensors, begin, end); });
  return ATTEST_OK;
}

}  // namespace
}  // namespace attest::bindings

extern "C" {

attest_status attest_append_kv(const attest_append_kv_args* args, attest_threads* threads,
                               attest_error** error) {
  return attest::bindings::Guarded(error, [&] { return attest::bindings::Append(args, threads, error); });
}
attest_status attest_copy_blocks(const attest_tensor* k_pages, const attest_tensor* v_pages,
                                 const int64_t* pairs, int64_t num_pairs, attest_threads* threads,
                                 attest_error** error) {
  return attest::bindings::Guarded(
      error, [&] { return attest::bindings::Copy(k_pages, v_pages, pairs, num_pairs, threads, error); });
}
attest_status attest_merge_states(const attest_merge_args* args, attest_threads* threads,
                                  attest_error** error) {
  return attest::bindings::Guarded(error, [&] { return attest::bindings::Merge(args, threads, error); });
}

}  // extern "C"
