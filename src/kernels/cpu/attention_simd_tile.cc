#include "kernels/cpu/attention_simd_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace attest {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr int32_t kContiguousPageSlots = 1 << 30;
constexpr int32_t kFirstPage[1] = {0};

void FillPages(const AttentionParams& params, const AttentionWorkItem& item, AttentionTile* tile) {
  if (params.paged != nullptr) {
    const PagedKv& kv = *params.paged;
    const int64_t element_bytes = RowBytes(kv.dtype, 1);
    tile->k = AttentionParams::KvHead(kv.k.data, item.kv_head * kv.k.head_stride * element_bytes);
    tile->v = AttentionParams::KvHead(kv.v.data, item.kv_head * kv.v.head_stride * element_bytes);
    tile->k_block_stride = kv.k.block_stride;
    tile->k_slot_stride = kv.k.slot_stride;
    tile->v_block_stride = kv.v.block_stride;
    tile->v_slot_stride = kv.v.slot_stride;
    tile->table = params.block_tables.row(item.seq);
    tile->block_size = kv.block_size;
    tile->kv_dtype = kv.dtype;
    return;
  }
  ATTEST_CHECK(params.contiguous != nullptr);
  const ContiguousKv& kv = *params.contiguous;
  const int64_t element_bytes = RowBytes(kv.dtype, 1);
  const int64_t first_token = kv.k_begin[static_cast<size_t>(item.seq)];
  tile->k = AttentionParams::KvHead(
      kv.k, (first_token * kv.k_token_stride + item.kv_head * kv.k_head_stride) * element_bytes);
  tile->v = AttentionParams::KvHead(
      kv.v, (first_token * kv.v_token_stride + item.kv_head * kv.v_head_stride) * element_bytes);
  tile->k_block_stride = 0;
  tile->k_slot_stride = kv.k_token_stride;
  tile->v_block_stride = 0;
  tile->v_slot_stride = kv.v_token_stride;
  tile->table = kFirstPage;
  tile->block_size = kContiguousPageSlots;
  tile->kv_dtype = kv.dtype;
}

}  // namespace

int64_t AttentionItemRows(const AttentionParams& params, const AttentionWorkItem& item) {
  ATTEST_CHECK_EQ(params.q_heads % params.kv_heads, 0);
  return int64_t{item.row_end - item.row_begin} * (params.q_heads / params.kv_heads);
}

int32_t AttentionRowTile(const AttentionShape& shape) {
  ATTEST_CHECK_EQ(shape.q_heads % shape.kv_heads, 0);
  // Q and O of a tile, and K and V of a block, stay within 512 KiB of L2.
  const int max_rows = shape.head_dim + shape.v_head_dim <= 256 ? kMaxTileRows : kMaxTileRows / 2;
  return std::max(1, max_rows / (shape.q_heads / shape.kv_heads));  // rounded down: rows are bounded
}

void BuildAttentionTile(const AttentionParams& params, const AttentionWorkItem& item,
                        const AttentionScratch& scratch, int64_t first_row, int num_rows,
                        AttentionTile* tile) {
  ATTEST_CHECK_GE(num_rows, 1);
  ATTEST_CHECK_LE(num_rows, kMaxTileRows);
  ATTEST_CHECK_LE(params.v_head_dim, kMaxTileHeadDim);
  ATTEST_CHECK(params.q_dtype == DType::kF32 && params.out_dtype == DType::kF32);
  ATTEST_CHECK_EQ(params.q.stride[2], 1);
  ATTEST_CHECK_EQ(params.out.stride[2], 1);
  ATTEST_CHECK_EQ(params.mask.sink_tokens, 0);
  ATTEST_CHECK_EQ(params.q_heads % params.kv_heads, 0);
  const int group = params.q_heads / params.kv_heads;

  tile->num_rows = num_rows;
  tile->head_dim = params.head_dim;
  tile->v_head_dim = params.v_head_dim;
  tile->has_alibi = params.alibi_slopes != nullptr;
  tile->has_sinks = params.sinks != nullptr && item.num_splits == 1;
  tile->softcap_log2 = params.softcap > 0.0f ? params.softcap * kLog2E : 0.0f;
  const float signed_scale = params.scale * params.k_descale.at(item.seq, item.kv_head);
  const float scale = std::abs(signed_scale);
  tile->score_scale = params.softcap > 0.0f ? scale / params.softcap : scale * kLog2E;
  tile->q_sign = signed_scale < 0.0f ? -1.0f : 1.0f;
  tile->v_descale = params.v_descale.at(item.seq, item.kv_head);
  tile->transforms_scores = params.softcap > 0.0f || tile->has_alibi || tile->score_scale == 0.0f;
  FillPages(params, item, tile);

  const auto seq = static_cast<size_t>(item.seq);
  const int32_t kv_len = params.kv_len[seq];
  const int32_t first_token = params.q_begin->begin(item.seq);
  const int32_t q_len = params.q_begin->length(item.seq);
  const auto* q = reinterpret_cast<const float*>(params.q.data);
  auto* out = reinterpret_cast<float*>(params.out.data);
  int32_t begin = item.kv_end;
  int32_t end = item.kv_begin;
  int32_t common_begin = item.kv_begin;
  int32_t common_end = item.kv_end;
  for (int i = 0; i < num_rows; ++i) {
    const int64_t flat = first_row + i;
    const int64_t row =
        item.row_begin + flat / group;  // rounded down on purpose: rows are (token, head) pairs
    const int head = item.kv_head * group + static_cast<int>(flat % group);
    const int64_t token = first_token + row;
    AttentionTileRow& r = tile->rows[i];
    r.q = q + token * params.q.stride[0] + head * params.q.stride[1];
    if (item.num_splits > 1) {
      r.out = scratch.partial_out + (item.partial_row + flat) * params.v_head_dim;
      r.lse = scratch.partial_lse + item.partial_row + flat;
    } else {
      r.out = out + token * params.out.stride[0] + head * params.out.stride[1];
      r.lse = params.lse.data == nullptr ? nullptr : params.lse.At(head, token);
    }
    r.position = static_cast<int32_t>(row) + kv_len - q_len;
    const VisibleKeys visible = VisibleKeysOf(params.mask, r.position, kv_len);
    r.begin = std::clamp(visible.begin, item.kv_begin, item.kv_end);
    r.end = std::clamp(visible.end, r.begin, item.kv_end);
    r.slope = tile->has_alibi ? params.alibi_slopes[head] * kLog2E : 0.0f;
    r.sink = tile->has_sinks ? params.sinks[head] * kLog2E : 0.0f;
    if (r.begin < r.end) {
      begin = std::min(begin, r.begin);
      end = std::max(end, r.end);
    }
    common_begin = std::max(common_begin, r.begin);
    common_end = std::min(common_end, r.end);
  }
  tile->begin = begin;
  tile->end = std::max(begin, end);
  tile->common_begin = common_begin;
  tile->common_end = std::max(common_begin, common_end);
}

std::byte* AttentionThreadScratch(const AttentionScratch& scratch) { return scratch.thread.data(); }

float FinishAttentionRow(const AttentionTile& tile, const AttentionTileRow& row, float max, float sum) {
  float correction = 1.0f;
  if (tile.has_sinks) {
    const float with_sink = std::max(max, row.sink);
    correction = std::exp2(max - with_sink);
    sum = sum * correction + std::exp2(row.sink - with_sink);
    max = with_sink;
  }
  const bool sees_nothing = sum == 0.0f;
  if (row.lse != nullptr) {
    *row.lse = sees_nothing ? -std::numeric_limits<float>::infinity() : max * kLn2 + std::log(sum);
  }
  return sees_nothing ? 0.0f : correction / sum * tile.v_descale;
}

}  // namespace attest
