// Runs one decode through the installed library: plan, attend, compare with the answer known by hand.
#include <cstdio>
#include <vector>

#include "attention/attention.h"

int main() {
  using namespace attest;
  const auto router = AttentionRouter::Create(DetectCpu());
  if (!router) return 1;
  constexpr int kDim = 32, kBlockSize = 16, kKeys = 9;
  const AttentionSpec spec{
      .q_heads = 1, .kv_heads = 1, .head_dim = kDim, .v_head_dim = kDim, .kv_dtype = DType::kF32};
  std::vector<float> pages(2 * 2 * kBlockSize * kDim, 0.0f);
  PagedKv kv{.k = {pages.data(), kBlockSize * kDim, kBlockSize * kDim, kDim},
             .v = {pages.data() + 2 * kBlockSize * kDim, kBlockSize * kDim, kBlockSize * kDim, kDim},
             .dtype = DType::kF32,
             .num_blocks = 2,
             .block_size = kBlockSize,
             .kv_heads = 1,
             .head_dim = kDim,
             .v_head_dim = kDim};
  ThreadTeam team(1);
  std::vector<float> k(kKeys * kDim, 0.0f), v(kKeys * kDim), q(kDim, 1.0f), out(kDim, -1.0f);
  std::vector<int64_t> slots;
  for (int t = 0; t < kKeys; ++t) {
    slots.push_back(kBlockSize + t);  // block 1
    for (int d = 0; d < kDim; ++d) v[static_cast<size_t>(t * kDim + d)] = static_cast<float>(t);
  }
  AppendKv(View<const float, 3>::Dense(k.data(), {kKeys, 1, kDim}),
           View<const float, 3>::Dense(v.data(), {kKeys, 1, kDim}), slots, kv, team);
  const std::vector<int32_t> q_len = {1}, kv_len = {kKeys}, blocks = {1};
  const auto q_begin = CuSeqlens::FromLengths(q_len);
  const AttentionLengths lengths{.q_begin = &*q_begin,
                                 .kv_len = kv_len,
                                 .block_tables = {.ids = blocks.data(), .row_stride = 1, .num_seqs = 1}};
  const auto plan = PlanAttention(*router, spec, lengths, 1);
  if (!plan) {
    std::printf("%s\n", plan.error().message.c_str());
    return 1;
  }
  Attend(**plan,
         AttendArgs{.q = View<const float, 3>::Dense(q.data(), {1, 1, kDim}),
                    .out = View<float, 3>::Dense(out.data(), {1, 1, kDim}),
                    .kv = &kv},
         team);
  std::printf("%.3f\n", static_cast<double>(out[kDim - 1]));  // equal weights: the mean of 0..8
  return out[0] > 3.999f && out[0] < 4.001f && out[kDim - 1] > 3.999f && out[kDim - 1] < 4.001f ? 0 : 1;
}
