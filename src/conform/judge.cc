#include "conform/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention/row_error.h"

namespace attest::conform {

AttentionResult RunOracle(AttentionBatch& batch) {
  const AttentionSpec& spec = batch.spec();
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  const AttentionParams params = batch.Params(output);
  AttentionResult result;
  result.lse.resize(
      spec.wants_lse ? static_cast<size_t>(spec.q_heads) * static_cast<size_t>(batch.num_tokens()) : 0);
  std::vector<double> row(static_cast<size_t>(spec.v_head_dim));
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    for (int32_t i = 0; i < batch.q_begin().length(seq); ++i) {
      for (int head = 0; head < spec.q_heads; ++head) {
        const double lse = ReferenceAttentionRow(params, seq, i, head, row);
        result.out.insert(result.out.end(), row.begin(), row.end());
        if (spec.wants_lse) {
          result.lse[static_cast<size_t>(head) * static_cast<size_t>(batch.num_tokens()) +
                     static_cast<size_t>(batch.q_begin().begin(seq) + i)] = lse;
        }
      }
    }
  }
  return result;
}

AttentionResult RunPlain(AttentionBatch& batch, AttentionArithmetic arithmetic) {
  const AttentionSpec& spec = batch.spec();
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  const AttentionParams params = batch.Params(output);
  const auto round = [arithmetic](float x) {
    return arithmetic == AttentionArithmetic::kBf16 ? ToFloat(ToBf16(x)) : x;
  };
  AttentionResult result;
  result.lse.resize(
      spec.wants_lse ? static_cast<size_t>(spec.q_heads) * static_cast<size_t>(batch.num_tokens()) : 0);
  std::vector<float> query(static_cast<size_t>(spec.head_dim));
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    const int32_t q_len = batch.q_begin().length(seq), kv_len = batch.kv_len()[static_cast<size_t>(seq)];
    std::vector<std::vector<float>> k(static_cast<size_t>(spec.kv_heads)),
        v(static_cast<size_t>(spec.kv_heads));
    for (int kv_head = 0; kv_head < spec.kv_heads; ++kv_head) {
      k[static_cast<size_t>(kv_head)] = batch.Decoded(false, seq, kv_head);
      v[static_cast<size_t>(kv_head)] = batch.Decoded(true, seq, kv_head);
    }
    for (int32_t i = 0; i < q_len; ++i) {
      const int64_t token = batch.q_begin().begin(seq) + i;
      const int64_t p = i + int64_t{kv_len} - q_len;
      for (int head = 0; head < spec.q_heads; ++head) {
        const int kv_head = head / (spec.q_heads / spec.kv_heads);
        const float* keys_of_head = k[static_cast<size_t>(kv_head)].data();
        const float* values_of_head = v[static_cast<size_t>(kv_head)].data();
        for (int d = 0; d < spec.head_dim; ++d) {
          query[static_cast<size_t>(d)] =
              round(static_cast<float>(ReferenceElement(params.QRow(token, head), spec.q_dtype, d)));
        }
        std::vector<float> scores;
        std::vector<int> keys;
        float max = spec.has_sinks ? batch.sinks()[head] : -kInfinity;
        for (int j = 0; j < kv_len; ++j) {
          const bool hidden = (spec.causal && j > p) || (spec.window_right && j > p + *spec.window_right) ||
                              (spec.window_left && j < p - *spec.window_left && j >= spec.sink_tokens) ||
                              (spec.chunk && (p < 0 || j / *spec.chunk != p / *spec.chunk));
          if (hidden) continue;
          float dot = 0;
          for (int d = 0; d < spec.head_dim; ++d) {
            dot += query[static_cast<size_t>(d)] * keys_of_head[int64_t{j} * spec.head_dim + d];
          }
          float score = dot * (spec.scale * params.k_descale.at(seq, kv_head));
          if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
          if (spec.has_alibi) score -= batch.alibi_slopes()[head] * std::abs(static_cast<float>(p - j));
          scores.push_back(score);
          keys.push_back(j);
          max = std::max(max, score);
        }
        float sum = spec.has_sinks ? std::exp(batch.sinks()[head] - max) : 0.0f;
        for (float& score : scores) {
          sum += std::exp(score - max);
          score = round(std::exp(score - max));
        }
        const bool empty = max == -kInfinity;
        for (int d = 0; d < spec.v_head_dim; ++d) {
          float value = 0;
          for (size_t i_key = 0; i_key < keys.size(); ++i_key) {
            value += scores[i_key] * values_of_head[int64_t{keys[i_key]} * spec.v_head_dim + d];
          }
          value = empty ? 0.0f : value / sum * params.v_descale.at(seq, kv_head);
          uint32_t stored = 0;
          EncodeElement(&stored, spec.out_dtype, 0, value);
          result.out.push_back(ReferenceElement(&stored, spec.out_dtype, 0));
        }
        if (spec.wants_lse) {
          result.lse[static_cast<size_t>(head) * static_cast<size_t>(batch.num_tokens()) +
                     static_cast<size_t>(token)] = empty ? -kInfinity : max + std::log(sum);
        }
      }
    }
  }
  return result;
}

std::vector<double> RowErrors(const AttentionResult& result, const AttentionResult& oracle, int dim) {
  std::vector<double> errors;
  for (size_t i = 0; i < oracle.out.size(); i += static_cast<size_t>(dim)) {
    double error = 0;
    for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
      const double difference = std::abs(result.out[i + d] - oracle.out[i + d]);
      error = std::isfinite(difference) ? std::max(error, difference) : static_cast<double>(kInfinity);
    }
    errors.push_back(error);
  }
  return errors;
}

double LseError(double lse, double oracle) {
  if (lse == oracle) return 0;  // both -inf
  const double difference = std::abs(lse - oracle);
  return std::isfinite(difference) ? difference : static_cast<double>(kInfinity);
}

ErrorBudget ErrorBudget::Times(double factor) const {
  ErrorBudget wider = *this;
  wider.out *= factor;
  wider.lse *= factor;
  for (double& least : wider.out_least) least *= factor;
  for (double& least : wider.lse_least) least *= factor;
  return wider;
}

ErrorBudget BudgetOf(AttentionBatch& batch, const AttentionResult& oracle, AttentionArithmetic arithmetic) {
  const AttentionSpec& spec = batch.spec();
  const AttentionResult plain = RunPlain(batch, arithmetic);
  ErrorBudget budget;
  for (const double error : RowErrors(plain, oracle, spec.v_head_dim))
    budget.out = std::max(budget.out, 2 * error);
  for (size_t i = 0; i < oracle.lse.size(); ++i) {
    budget.lse = std::max(budget.lse, 2 * LseError(plain.lse[i], oracle.lse[i]));
  }
  const AttentionBatch::Output none = batch.MakeOutput(0.0f);
  const AttentionParams params = batch.Params(none);
  const auto tokens = static_cast<size_t>(batch.num_tokens());
  budget.lse_least.resize(oracle.lse.size());
  RowDeviation deviation;
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    for (int32_t i = 0; i < batch.q_begin().length(seq); ++i) {
      for (int head = 0; head < spec.q_heads; ++head) {
        deviation.Compute(params, seq, i, head);
        const size_t at = budget.out_least.size() * static_cast<size_t>(spec.v_head_dim);
        double least = 0;
        for (int d = 0; d < spec.v_head_dim; ++d) {
          least = std::max(
              least, kDeviations * deviation.out(d) +
                         StoredUnit(spec.out_dtype) * std::abs(oracle.out[at + static_cast<size_t>(d)]));
        }
        budget.out_least.push_back(least);
        if (!spec.wants_lse) continue;
        budget.lse_least[static_cast<size_t>(head) * tokens +
                         static_cast<size_t>(batch.q_begin().begin(seq) + i)] = kDeviations * deviation.lse();
      }
    }
  }
  return budget;
}

std::optional<std::string> FirstBadRow(const AttentionResult& result, const AttentionResult& oracle,
                                       const ErrorBudget& budget, int dim, int q_heads) {
  const std::vector<double> errors = RowErrors(result, oracle, dim);
  const auto heads = static_cast<size_t>(q_heads);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (errors[row] <= budget.OutOf(row) || !result.ran(row / heads)) continue;
    size_t worst = 0;  // the first dim that is not finite, or else the largest error
    double largest = -1;
    for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
      const double error = std::abs(result.out[row * static_cast<size_t>(dim) + d] -
                                    oracle.out[row * static_cast<size_t>(dim) + d]);
      if (!std::isfinite(error)) {
        worst = d;
        break;
      }
      if (error > largest) largest = error, worst = d;
    }
    const size_t at = row * static_cast<size_t>(dim) + worst;
    return fmt::format("token {} head {} dim {} is {:.9g}, expected {:.9g} (error {:.3g}, budget {:.3g})",
                       row / heads, row % heads, worst, result.out[at], oracle.out[at], errors[row],
                       budget.OutOf(row));
  }
  const size_t tokens = oracle.lse.size() / std::max<size_t>(heads, 1);
  for (size_t i = 0; i < oracle.lse.size(); ++i) {
    if (LseError(result.lse[i], oracle.lse[i]) <= budget.LseOf(i) || !result.ran(i % tokens)) continue;
    return fmt::format("lse of token {} head {} is {:.9g}, expected {:.9g} (budget {:.3g})", i % tokens,
                       i / tokens, result.lse[i], oracle.lse[i], budget.LseOf(i));
  }
  return std::nullopt;
}

namespace {

// One row in double with something wrong on purpose.
struct Wrong {
  int value_shift = 0;      // V of the key this many further on (cyclic)
  bool drop_first = false;  // the first visible key is hidden
  bool drop_last = false;   // the last visible key is hidden
};

// Sees of the canon, for the controls only; with nothing wrong the row must equal the oracle's.
bool Visible(const AttentionSpec& spec, int64_t p, int64_t j) {
  return !((spec.causal && j > p) || (spec.window_right && j > p + *spec.window_right) ||
           (spec.window_left && j < p - *spec.window_left && j >= spec.sink_tokens) ||
           (spec.chunk && (p < 0 || j / *spec.chunk != p / *spec.chunk)));
}

struct RowPlace {
  int seq = 0;
  int32_t row = 0;
  int64_t token = 0;
  int head = 0;
};

std::vector<double> WrongRow(AttentionBatch& batch, const AttentionParams& params, const RowPlace& at,
                             const Wrong& wrong) {
  const AttentionSpec& spec = batch.spec();
  const int64_t kv_len = batch.kv_len()[static_cast<size_t>(at.seq)];
  const int64_t p = at.row + kv_len - batch.q_begin().length(at.seq);
  const int kv_head = at.head / (spec.q_heads / spec.kv_heads);
  std::vector<int64_t> keys;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (Visible(spec, p, j)) keys.push_back(j);
  }
  if (wrong.drop_first && !keys.empty()) keys.erase(keys.begin());
  if (wrong.drop_last && !keys.empty()) keys.pop_back();
  const auto element = [&](bool value, int64_t key, int d) {
    return ReferenceElement(batch.KeyData(value), spec.kv_dtype,
                            batch.KeyIndex(value, at.seq, static_cast<int>(key), kv_head) + d);
  };
  std::vector<double> query;
  for (int d = 0; d < spec.head_dim; ++d)
    query.push_back(ReferenceElement(params.QRow(at.token, at.head), spec.q_dtype, d));
  double max = spec.has_sinks ? static_cast<double>(batch.sinks()[at.head]) : -static_cast<double>(kInfinity);
  std::vector<double> scores;
  for (const int64_t j : keys) {
    double dot = 0;
    for (int d = 0; d < spec.head_dim; ++d) dot += query[static_cast<size_t>(d)] * element(false, j, d);
    double score = dot * spec.scale * params.k_descale.at(at.seq, kv_head);
    if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
    if (spec.has_alibi) score -= batch.alibi_slopes()[at.head] * std::abs(static_cast<double>(p - j));
    scores.push_back(score);
    max = std::max(max, score);
  }
  std::vector<double> out(static_cast<size_t>(spec.v_head_dim));
  double sum = spec.has_sinks ? std::exp(batch.sinks()[at.head] - max) : 0.0;
  for (const double score : scores) sum += std::exp(score - max);
  for (size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - max) / sum * params.v_descale.at(at.seq, kv_head);
    const int64_t key = (keys[i] + wrong.value_shift) % kv_len;
    for (int d = 0; d < spec.v_head_dim; ++d) out[static_cast<size_t>(d)] += weight * element(true, key, d);
  }
  return out;
}

}  // namespace

std::optional<std::string> PassingControl(AttentionBatch& batch, const AttentionResult& oracle,
                                          const ErrorBudget& budget) {
  const AttentionSpec& spec = batch.spec();
  const auto dim = static_cast<size_t>(spec.v_head_dim);
  for (size_t row = 0; row * dim < oracle.out.size(); ++row) {
    double largest = 0;  // the error of this row if it were zero
    for (size_t d = 0; d < dim; ++d) largest = std::max(largest, std::abs(oracle.out[row * dim + d]));
    if (largest != 0 && largest <= budget.OutOf(row)) {
      return fmt::format(
          "a zeroed row passes: token {} head {} has no value above {:.3g}, the budget is {:.3g}",
          row / static_cast<size_t>(spec.q_heads), row % static_cast<size_t>(spec.q_heads), largest,
          budget.OutOf(row));
    }
  }
  const AttentionBatch::Output none = batch.MakeOutput(0.0f);
  const AttentionParams params = batch.Params(none);
  struct Control {
    const char* name;
    Wrong wrong;
  };
  const Control controls[] = {{"nothing", {}},
                              {"V of the next key", {.value_shift = 1}},
                              {"a mask short of its first key", {.drop_first = true}},
                              {"a mask short of its last key", {.drop_last = true}}};
  for (const Control& control : controls) {
    const bool nothing =
        control.wrong.value_shift == 0 && !control.wrong.drop_first && !control.wrong.drop_last;
    bool changes = false, rejected = false;
    double nearest = 0, limit = 0;
    for (int seq = 0; seq < batch.num_seqs() && !rejected; ++seq) {
      const int32_t q_len = batch.q_begin().length(seq);
      // The untouched row needs no more than one look; the others as many as it takes.
      for (int32_t look = 0; look < (nothing ? 1 : q_len * spec.q_heads) && !rejected; ++look) {
        const int32_t row = look / spec.q_heads;
        if (row >= q_len) break;
        const RowPlace at{.seq = seq,
                          .row = row,
                          .token = batch.q_begin().begin(seq) + int64_t{row},
                          .head = (look + seq) % spec.q_heads};
        const int64_t kv_len = batch.kv_len()[static_cast<size_t>(seq)];
        const int64_t p = row + kv_len - q_len;
        int64_t visible = 0;
        for (int64_t j = 0; j < kv_len && visible < 2; ++j) visible += Visible(spec, p, j) ? 1 : 0;
        if (visible < 2 && !nothing) continue;
        const std::vector<double> out = WrongRow(batch, params, at, control.wrong);
        const auto oracle_row = static_cast<size_t>(at.token * spec.q_heads + at.head);
        double error = 0;
        for (size_t d = 0; d < dim; ++d) {
          const size_t i = oracle_row * dim + d;
          error = std::max(error, std::abs(out[d] - oracle.out[i]));
        }
        changes = changes || error > 0;
        const double allowed = budget.OutOf(oracle_row);
        if (error >= nearest) nearest = error, limit = allowed;
        rejected = !(error <= (nothing ? 1e-9 * (1 + std::abs(out[0])) : allowed));
      }
    }
    if (nothing && rejected) return "the controls disagree with the oracle on an untouched row";
    if (!nothing && changes && !rejected) {
      return fmt::format("{} passes: it moves no row by more than {:.3g}, the budget is {:.3g}", control.name,
                         nearest, limit);
    }
  }
  return std::nullopt;
}

}  // namespace attest::conform
