#include "conform/shrink.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

namespace attest::conform {
namespace {

// The steps that make a case smaller or plainer, largest first. Each is a candidate of its own.
std::vector<AttentionCase> Smaller(const AttentionCase& c) {
  std::vector<AttentionCase> candidates;
  const auto try_with = [&](auto change) {
    AttentionCase smaller = c;
    change(smaller);
    candidates.push_back(std::move(smaller));
  };
  const size_t seqs = c.q_len.size();
  const auto keep = [&](AttentionCase& s, size_t begin, size_t end) {  // sequences [begin, end)
    std::vector<int32_t> ids;
    for (size_t i = begin; i < end; ++i)
      ids.push_back(c.options.seq_ids.empty() ? static_cast<int32_t>(i) : c.options.seq_ids[i]);
    s.options.seq_ids = std::move(ids);
    s.q_len.assign(c.q_len.begin() + static_cast<std::ptrdiff_t>(begin),
                   c.q_len.begin() + static_cast<std::ptrdiff_t>(end));
    s.kv_len.assign(c.kv_len.begin() + static_cast<std::ptrdiff_t>(begin),
                    c.kv_len.begin() + static_cast<std::ptrdiff_t>(end));
  };
  if (seqs > 1) {
    for (size_t i = 0; i < seqs; ++i) try_with([&](auto& s) { keep(s, i, i + 1); });
    try_with([&](auto& s) { keep(s, 0, seqs / 2); });
    try_with([&](auto& s) { keep(s, seqs / 2, seqs); });
    for (size_t i = 0; seqs > 2 && i < seqs; ++i) {
      try_with([&](auto& s) {
        keep(s, 0, seqs);
        const auto at = static_cast<std::ptrdiff_t>(i);
        s.q_len.erase(s.q_len.begin() + at);
        s.kv_len.erase(s.kv_len.begin() + at);
        s.options.seq_ids.erase(s.options.seq_ids.begin() + at);
      });
    }
  }
  for (size_t i = 0; i < seqs; ++i) {
    const int32_t q = c.q_len[i], kv = c.kv_len[i], context = kv - q;
    const auto lengths = [&](int32_t new_q, int32_t new_kv) {
      if (new_q < 0 || new_kv < 0 || new_q > q || new_kv > kv || (new_q == q && new_kv == kv)) return;
      try_with([&](auto& s) { s.q_len[i] = new_q, s.kv_len[i] = new_kv; });
    };
    if (q > 1 || kv > 1) lengths(1, 1);
    if (q > 1) lengths(1, kv);       // the last row alone
    if (context > 0) lengths(q, q);  // no context
    if (q > 1) lengths((q + 1) / 2, context + (q + 1) / 2);
    if (context > 1) lengths(q, q + context / 2);
    if (kv > 1) lengths(std::min(q, kv / 2), kv / 2);
    if (q > 1) lengths(q - 1, kv - 1);
    if (kv > 1) lengths(std::min(q, kv - 1), kv - 1);
    if (q > 1) lengths(q - 1, kv);
  }

  const AttentionSpec plain = PlainSpec();
  const AttentionSpec& spec = c.spec;
  if (spec.q_heads != 1 || spec.kv_heads != 1) {
    try_with([](auto& s) { s.spec.q_heads = s.spec.kv_heads = 1; });
    const int group = spec.q_heads / spec.kv_heads;
    if (spec.kv_heads > 1) {
      try_with([&](auto& s) { s.spec.kv_heads = 1, s.spec.q_heads = group; });
      try_with([&](auto& s) { --s.spec.kv_heads, s.spec.q_heads = group * s.spec.kv_heads; });
    }
    if (group > 1) {
      try_with([&](auto& s) { s.spec.q_heads = spec.kv_heads; });
      try_with([&](auto& s) { s.spec.q_heads = spec.kv_heads * (group / 2); });
      try_with([&](auto& s) { s.spec.q_heads = spec.kv_heads * (group - 1); });
    }
  }
  const auto dims = [&](int dim, int v_dim) {
    if (dim == spec.head_dim && v_dim == spec.v_head_dim) return;
    try_with([&](auto& s) {
      s.spec.scale *= std::sqrt(static_cast<float>(spec.head_dim) / static_cast<float>(dim));
      s.spec.head_dim = dim;
      s.spec.v_head_dim = v_dim;
    });
  };
  // The plain head size first; without it, the smallest that fails.
  dims(plain.head_dim, plain.head_dim);
  if (spec.v_head_dim != spec.head_dim) dims(spec.head_dim, spec.head_dim);
  if (spec.v_head_dim != spec.head_dim) dims(spec.v_head_dim, spec.v_head_dim);
  if (spec.head_dim != plain.head_dim || spec.v_head_dim != plain.head_dim) {
    for (const int dim : {8, 16, 32, 48, 80, 96, 128}) {
      if (dim < spec.head_dim) dims(dim, spec.v_head_dim == spec.head_dim ? dim : spec.v_head_dim);
    }
    if (spec.head_dim > 8)
      dims(spec.head_dim - 8, spec.v_head_dim == spec.head_dim ? spec.head_dim - 8 : spec.v_head_dim);
  }
  const auto field = [&](auto AttentionSpec::* member) {
    if (spec.*member != plain.*member) try_with([&](auto& s) { s.spec.*member = plain.*member; });
  };
  field(&AttentionSpec::softcap);
  field(&AttentionSpec::has_alibi);
  field(&AttentionSpec::has_sinks);
  field(&AttentionSpec::sink_tokens);
  field(&AttentionSpec::chunk);
  field(&AttentionSpec::window_right);
  field(&AttentionSpec::window_left);
  field(&AttentionSpec::causal);
  field(&AttentionSpec::has_k_descale);
  field(&AttentionSpec::has_v_descale);
  field(&AttentionSpec::precise);
  field(&AttentionSpec::q_dtype);
  field(&AttentionSpec::out_dtype);
  field(&AttentionSpec::kv_dtype);
  field(&AttentionSpec::layout);
  field(&AttentionSpec::block_size);
  field(&AttentionSpec::wants_lse);
  const float plain_scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  if (std::abs(spec.scale - plain_scale) > 1e-6f) try_with([&](auto& s) { s.spec.scale = plain_scale; });
  const auto toward = [&](std::optional<int32_t> AttentionSpec::* member, int32_t least) {
    if (!(spec.*member) || *(spec.*member) <= least) return;
    const int32_t value = *(spec.*member);
    for (const int32_t smaller : {least, value / 2, value - 1})
      if (smaller >= least) try_with([&](auto& s) { s.spec.*member = smaller; });
  };
  toward(&AttentionSpec::window_left, 0);
  toward(&AttentionSpec::window_right, 0);
  toward(&AttentionSpec::chunk, 1);
  if (spec.sink_tokens > 1) try_with([](auto& s) { s.spec.sink_tokens = 1; });
  if (spec.layout != KvLayout::kContiguous && spec.block_size != plain.block_size) {
    for (const int size : {1, spec.block_size / 2, spec.block_size - 1})
      if (size >= 1 && size < spec.block_size) try_with([&](auto& s) { s.spec.block_size = size; });
  }
  const BatchOptions& options = c.options;
  if (options.q_token_padding != 0) try_with([](auto& s) { s.options.q_token_padding = 0; });
  if (options.k_token_padding != 0) try_with([](auto& s) { s.options.k_token_padding = 0; });
  if (options.interleave_kv) try_with([](auto& s) { s.options.interleave_kv = false; });
  if (options.transposed_lse) try_with([](auto& s) { s.options.transposed_lse = false; });
  if (options.descale_padding != 0) try_with([](auto& s) { s.options.descale_padding = 0; });
  if (options.descale != DescaleShape::kPerSeqAndHead)
    try_with([](auto& s) { s.options.descale = DescaleShape::kPerSeqAndHead; });
  std::erase_if(candidates, [](const AttentionCase& s) {
    return !ValidateSpec(s.spec) || (s.options.interleave_kv && s.spec.layout != KvLayout::kPagedNhd) ||
           (s.options.k_token_padding != 0 && s.spec.layout != KvLayout::kContiguous);
  });
  return candidates;
}

}  // namespace

Shrunk Shrink(const AttentionCase& failing, const std::string& why,
              const std::function<std::optional<std::string>(const AttentionCase&)>& failure,
              int max_attempts, double max_seconds) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const double until = now() + max_seconds;
  Shrunk shrunk{.smallest = failing, .why = why};
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const AttentionCase& candidate : Smaller(shrunk.smallest)) {
      if (shrunk.attempts >= max_attempts || now() > until) return shrunk;
      ++shrunk.attempts;
      if (const auto still = failure(candidate)) {
        shrunk.smallest = candidate;
        shrunk.why = *still;
        smaller = true;
        break;
      }
    }
  }
  return shrunk;
}

}  // namespace attest::conform
