#include "attention/case_capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "attention/work_items.h"
#include "base/check.h"

namespace attest {
namespace {

class Capture {
 public:
  Capture(const AttentionPlan& plan, const AttentionParams& params, std::vector<int32_t> seqs)
      : plan_(plan), params_(params), spec_(plan.spec()), seqs_(std::move(seqs)) {
    for (const int32_t seq : seqs_) {
      num_tokens_ += params.q_begin->length(seq);
      num_keys_ += params.kv_len[static_cast<size_t>(seq)];
    }
    if (params.paged != nullptr) NumberBlocks();
  }

  [[nodiscard]] int64_t bytes() const {
    const int64_t slots =
        params_.paged != nullptr ? static_cast<int64_t>(blocks_.size()) * spec_.block_size : num_keys_;
    return slots * spec_.kv_heads * (spec_.head_dim + spec_.v_head_dim) * BlockBytes(spec_.kv_dtype) +
           num_tokens_ * spec_.q_heads *
               (spec_.head_dim * BlockBytes(spec_.q_dtype) + spec_.v_head_dim * BlockBytes(spec_.out_dtype));
  }

  [[nodiscard]] AttentionCaseFile Copy() const {
    AttentionCaseFile c;
    c.spec = spec_;
    for (const int32_t seq : seqs_) {
      c.q_len.push_back(params_.q_begin->length(seq));
      c.kv_len.push_back(params_.kv_len[static_cast<size_t>(seq)]);
    }
    CopyRows(c);
    if (params_.paged != nullptr) {
      c.num_blocks = std::ssize(blocks_);
      c.table_width = table_width_;
      c.block_tables = tables_;
      CopyPages(params_.paged->k, spec_.head_dim, c.k);
      CopyPages(params_.paged->v, spec_.v_head_dim, c.v);
    } else {
      CopyContiguous(c);
    }
    if (params_.alibi_slopes != nullptr) {
      c.alibi_slopes.assign(params_.alibi_slopes, params_.alibi_slopes + spec_.q_heads);
    }
    if (params_.sinks != nullptr) c.sinks.assign(params_.sinks, params_.sinks + spec_.q_heads);
    for (const int32_t seq : seqs_) {
      for (int head = 0; head < spec_.kv_heads; ++head) {
        if (spec_.has_k_descale) c.k_descale.push_back(params_.k_descale.at(seq, head));
        if (spec_.has_v_descale) c.v_descale.push_back(params_.v_descale.at(seq, head));
      }
    }
    for (const PlanGroup& group : plan_.groups()) {
      const bool taken = std::ranges::any_of(
          group.seqs, [&](int32_t seq) { return std::ranges::binary_search(seqs_, seq); });
      const std::string route =
          fmt::format("{}={}", AttentionPhaseName(group.problem.phase), group.route.name());
      if (!taken || c.kernel.find(route) != std::string::npos) continue;
      c.kernel += (c.kernel.empty() ? "" : ",") + route;
    }
    return c;
  }

 private:
  // The blocks that rows may read, in the order in which tables name them; a block of several sequences once.
  void NumberBlocks() {
    const int size = spec_.block_size;
    for (const int32_t seq : seqs_) {
      const int32_t kv_len = params_.kv_len[static_cast<size_t>(seq)];
      table_width_ = std::max(table_width_, (kv_len + size - 1) / size);
    }
    tables_.assign(seqs_.size() * static_cast<size_t>(table_width_), -1);
    std::unordered_map<int32_t, int32_t> number;
    for (size_t i = 0; i < seqs_.size(); ++i) {
      const int32_t seq = seqs_[i];
      const int32_t q_len = params_.q_begin->length(seq), kv_len = params_.kv_len[static_cast<size_t>(seq)];
      if (q_len == 0) continue;
      const auto take = [&](int32_t key_begin, int32_t key_end) {
        if (key_begin >= key_end) return;
        for (int32_t entry = key_begin / size; entry <= (key_end - 1) / size; ++entry) {
          const int32_t block = params_.block_tables.row(seq)[entry];
          const auto [at, is_new] = number.try_emplace(block, static_cast<int32_t>(blocks_.size()));
          if (is_new) blocks_.push_back(block);
          tables_[i * static_cast<size_t>(table_width_) + static_cast<size_t>(entry)] = at->second;
        }
      };
      // As the plan reads them: entries left of the window may be stale and are not looked at.
      const VisibleKeys seen = KeysOfRows(params_.mask, q_len, kv_len);
      take(seen.begin, seen.end);
      take(seen.sink_begin, seen.sink_end);
    }
  }

  void CopyRows(AttentionCaseFile& c) const {
    const int64_t q_bytes = int64_t{spec_.head_dim} * BlockBytes(spec_.q_dtype);
    const int64_t out_bytes = int64_t{spec_.v_head_dim} * BlockBytes(spec_.out_dtype);
    for (const int32_t seq : seqs_) {
      for (int32_t token = params_.q_begin->begin(seq); token < params_.q_begin->end(seq); ++token) {
        for (int head = 0; head < spec_.q_heads; ++head) {
          c.q.insert(c.q.end(), params_.QRow(token, head), params_.QRow(token, head) + q_bytes);
          c.out.insert(c.out.end(), params_.OutRow(token, head), params_.OutRow(token, head) + out_bytes);
        }
      }
    }
  }

  void CopyPages(const KvPages& pages, int dim, std::vector<std::byte>& to) const {
    const int bytes = BlockBytes(spec_.kv_dtype);
    const auto* data = static_cast<const std::byte*>(pages.data);
    const bool hnd = spec_.layout == KvLayout::kPagedHnd;
    const int outer = hnd ? spec_.kv_heads : spec_.block_size,
              inner = hnd ? spec_.block_size : spec_.kv_heads;
    const int64_t outer_stride = hnd ? pages.head_stride : pages.slot_stride;
    const int64_t inner_stride = hnd ? pages.slot_stride : pages.head_stride;
    to.reserve(blocks_.size() * static_cast<size_t>(outer) * static_cast<size_t>(inner) *
               static_cast<size_t>(dim * bytes));
    for (const int32_t block : blocks_) {
      for (int i = 0; i < outer; ++i) {
        for (int j = 0; j < inner; ++j) {
          const std::byte* from =
              data + (block * pages.block_stride + i * outer_stride + j * inner_stride) * bytes;
          to.insert(to.end(), from, from + int64_t{dim} * bytes);
        }
      }
    }
  }

  void CopyContiguous(AttentionCaseFile& c) const {
    const ContiguousKv& kv = *params_.contiguous;
    const int64_t bytes = BlockBytes(spec_.kv_dtype);
    const auto copy = [&](const void* data, int64_t row, int64_t token_stride, int64_t head_stride, int dim,
                          std::vector<std::byte>& to) {
      for (int head = 0; head < spec_.kv_heads; ++head) {
        const auto* from =
            static_cast<const std::byte*>(data) + (row * token_stride + head * head_stride) * bytes;
        to.insert(to.end(), from, from + dim * bytes);
      }
    };
    for (const int32_t seq : seqs_) {
      const auto at = static_cast<size_t>(seq);
      for (int64_t row = kv.k_begin[at]; row < kv.k_begin[at + 1]; ++row) {
        copy(kv.k, row, kv.k_token_stride, kv.k_head_stride, spec_.head_dim, c.k);
        copy(kv.v, row, kv.v_token_stride, kv.v_head_stride, spec_.v_head_dim, c.v);
      }
    }
  }

  const AttentionPlan& plan_;
  const AttentionParams& params_;
  const AttentionSpec& spec_;
  const std::vector<int32_t> seqs_;
  int64_t num_tokens_ = 0, num_keys_ = 0;
  std::vector<int32_t> blocks_, tables_;
  int32_t table_width_ = 0;
};

}  // namespace

Expected<AttentionCaseFile> CaptureCase(const AttentionPlan& plan, const AttentionParams& params, int32_t seq,
                                        int64_t max_bytes) {
  ATTEST_CHECK(!plan.lengths().owned);
  std::vector<int32_t> all(static_cast<size_t>(params.q_begin->num_seqs()));
  std::iota(all.begin(), all.end(), 0);
  if (const Capture whole(plan, params, std::move(all)); whole.bytes() <= max_bytes) return whole.Copy();
  const Capture one(plan, params, {seq});
  if (one.bytes() <= max_bytes) return one.Copy();
  return Fail(
      ErrorCode::kResourceExhausted,
      fmt::format("the call of sequence {} is {} bytes, at most {} are copied", seq, one.bytes(), max_bytes));
}

}  // namespace attest
