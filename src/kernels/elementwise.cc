#include "kernels/elementwise.h"

#include <vector>

#include "base/check.h"
#include "kernels/cpu/elementwise_ops.h"

namespace attest {
namespace {

// Calls fn(row) for every row, contiguous shares per rank. A single row stays on the calling thread: waking
// the team costs more (0.3 us) than the row.
template <class Fn>
void ForEachRow(int64_t rows, ThreadTeam& team, Fn fn) {
  if (rows <= 1) {
    for (int64_t row = 0; row < rows; ++row) fn(row);
    return;
  }
  team.Run([&](int rank) {
    const IndexRange range = PartitionRange(rows, rank, team.size());
    for (int64_t row = range.begin; row < range.end; ++row) fn(row);
  });
}

void CheckRope(const RopeTable& table) {
  ATTEST_CHECK_GE(table.rotary_dim, 0);
  ATTEST_CHECK_EQ(table.rotary_dim % 2, 0);  // pairs: half of it is a loop count
}

}  // namespace

void RmsNorm(View<const float, 2> x, const float* weight, float eps, View<float, 2> out, ThreadTeam& team) {
  ATTEST_CHECK_EQ(x.shape[0], out.shape[0]);
  ATTEST_CHECK_EQ(x.shape[1], out.shape[1]);
  ATTEST_CHECK_EQ(x.stride[1], 1);
  ATTEST_CHECK_EQ(out.stride[1], 1);
  const ElementwiseOps& ops = BestElementwiseOps();
  ForEachRow(x.shape[0], team, [&](int64_t t) { ops.rms_norm(x.At(t), weight, eps, out.At(t), x.shape[1]); });
}

void ComputeRopeAngles(std::span<const int32_t> positions, const RopeTable& table, View<float, 2> cos_sin,
                       ThreadTeam& team) {
  CheckRope(table);
  ATTEST_CHECK_EQ(cos_sin.shape[0], static_cast<int64_t>(positions.size()));
  ATTEST_CHECK_EQ(cos_sin.shape[1], table.rotary_dim);
  ATTEST_CHECK_EQ(cos_sin.stride[1], 1);
  const ElementwiseOps& ops = BestElementwiseOps();
  const int64_t half = table.rotary_dim / 2;
  ForEachRow(cos_sin.shape[0], team, [&](int64_t t) {
    ops.rope_angles(positions[static_cast<size_t>(t)], table.inv_freq, table.attention_factor, cos_sin.At(t),
                    cos_sin.At(t) + half, half);
  });
}

void ApplyRope(View<float, 3> x, View<const float, 2> cos_sin, ThreadTeam& team) {
  ATTEST_CHECK_EQ(x.shape[0], cos_sin.shape[0]);
  ATTEST_CHECK_LE(cos_sin.shape[1], x.shape[2]);
  ATTEST_CHECK_EQ(cos_sin.shape[1] % 2, 0);
  ATTEST_CHECK_EQ(x.stride[2], 1);
  const ElementwiseOps& ops = BestElementwiseOps();
  const int64_t half = cos_sin.shape[1] / 2;
  ForEachRow(x.shape[0], team, [&](int64_t t) {
    for (int64_t head = 0; head < x.shape[1]; ++head) {
      ops.rotate(x.At(t, head), cos_sin.At(t), cos_sin.At(t) + half, half);
    }
  });
}

void ApplyRope(View<float, 3> x, std::span<const int32_t> positions, const RopeTable& table,
               ThreadTeam& team) {
  std::vector<float> angles(positions.size() * static_cast<size_t>(table.rotary_dim));
  const auto cos_sin =
      View<float, 2>::Dense(angles.data(), {static_cast<int64_t>(positions.size()), table.rotary_dim});
  ComputeRopeAngles(positions, table, cos_sin, team);
  ApplyRope(x, cos_sin, team);
}

void SiluMul(View<const float, 2> gate_up, View<float, 2> out, ThreadTeam& team) {
  const int64_t n = out.shape[1];
  ATTEST_CHECK_EQ(gate_up.shape[0], out.shape[0]);
  ATTEST_CHECK_EQ(gate_up.shape[1], 2 * n);
  ATTEST_CHECK_EQ(gate_up.stride[1], 1);
  ATTEST_CHECK_EQ(out.stride[1], 1);
  const ElementwiseOps& ops = BestElementwiseOps();
  ForEachRow(out.shape[0], team,
             [&](int64_t t) { ops.silu_mul(gate_up.At(t), gate_up.At(t) + n, out.At(t), n); });
}

}  // namespace attest
