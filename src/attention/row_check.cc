#include "attention/row_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/row_error.h"
#include "kernels/reference/attention_reference.h"

namespace attest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnit = kF32Unit;
constexpr double kExp2ErrorF32 = 0x1p-21;
constexpr double kExp2ErrorBf16 = 0x1p-11;  // a shorter polynomial, or a table
constexpr double kWeightRounding = 0x1p-8;  // of a weight stored as bf16
constexpr double kTiny = 1e-30;             // flushed denormals

}  // namespace

// Fills expected_, lse_ and, for kBf16, model_ and model_lse_ (the row on rounded queries); magnitude_ with
// sum_j w_j (e_j + mean e + c) |v_jd|, and for kBf16 absolute_ with sum_j w_j |v_jd|.
void RowChecker::Walk(const AttentionParams& params, AttentionArithmetic arithmetic, int seq, int32_t row,
                      int head) {
  const bool is_bf16 = arithmetic == AttentionArithmetic::kBf16;
  const int64_t kv_len = params.kv_len[static_cast<size_t>(seq)];
  const int64_t p = row + kv_len - params.q_begin->length(seq);
  const int kv_head = head / (params.q_heads / params.kv_heads);
  const DType kv_dtype = params.paged != nullptr ? params.paged->dtype : params.contiguous->dtype;
  const double scale = double{params.scale} * params.k_descale.at(seq, kv_head);
  const double v_scale = params.v_descale.at(seq, kv_head);
  const std::byte* q = params.QRow(params.q_begin->begin(seq) + row, head);
  query_.resize(static_cast<size_t>(params.head_dim));
  for (int d = 0; d < params.head_dim; ++d) {
    query_[static_cast<size_t>(d)] = static_cast<float>(ReferenceElement(q, params.q_dtype, d));
  }
  if (is_bf16) {
    rounded_.resize(query_.size());
    for (size_t d = 0; d < query_.size(); ++d) rounded_[d] = ToFloat(ToBf16(query_[d]));
  }

  keys_.clear();
  weights_.clear();
  model_weights_.clear();
  errors_.clear();
  key_.resize(query_.size());
  double max = params.sinks != nullptr ? double{params.sinks[head]} : -kInfinity;
  double model_max = max;
  double largest = std::isfinite(max) ? std::abs(max) : 0.0;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (!ReferenceSees(params.mask, p, j)) continue;
    ReadRow(ReferenceKeyAt(params, false, seq, kv_head, j), kv_dtype);
    const double bias = params.alibi_slopes == nullptr
                            ? 0.0
                            : double{params.alibi_slopes[head]} * std::abs(static_cast<double>(p - j));
    const auto score_of = [&](double dot) {
      const double score = dot * scale;
      return (params.softcap > 0 ? params.softcap * std::tanh(score / params.softcap) : score) - bias;
    };
    const DotSums sums = ops_.dot(query_.data(), key_.data(), params.head_dim);
    const double score = score_of(sums.dot);
    keys_.push_back(j);
    weights_.push_back(score);
    errors_.push_back(kUnit * ((params.head_dim + 8) * std::abs(scale) * sums.absolute +
                               8 * (std::abs(score) + std::abs(bias))));
    max = std::fmax(max, score);
    largest = std::fmax(largest, std::abs(score));
    if (!is_bf16) continue;
    model_weights_.push_back(score_of(ops_.dot(rounded_.data(), key_.data(), params.head_dim).dot));
    model_max = std::fmax(model_max, model_weights_.back());
  }

  const auto dims = static_cast<size_t>(params.v_head_dim);
  expected_.assign(dims, 0.0);
  model_.assign(dims, 0.0);
  magnitude_.assign(dims, 0.0);
  absolute_.assign(dims, 0.0);
  lse_ = model_lse_ = max;
  relative_ = 0;
  if (max == -kInfinity) return;  // the row sees nothing and has no sink

  // Scores to weights; returns the LSE.
  const auto softmax = [&](std::vector<double>& weights, double top) {
    double sum = params.sinks != nullptr ? std::exp(params.sinks[head] - top) : 0.0;
    for (double& weight : weights) {
      weight = std::exp(weight - top);
      sum += weight;
    }
    for (double& weight : weights) weight /= sum;
    return top + std::log(sum);
  };
  lse_ = softmax(weights_, max);
  model_lse_ = is_bf16 ? softmax(model_weights_, model_max) : lse_;

  const double common = 8 * kUnit * largest + (params.softcap > 0 ? 0x1p-20 * params.softcap : 0.0) +
                        (is_bf16 ? kExp2ErrorBf16 : kExp2ErrorF32);
  double mean = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    errors_[i] += common;
    mean += weights_[i] * errors_[i];
  }
  relative_ = mean + 2 * kUnit * (8 + static_cast<double>(weights_.size()));

  key_.resize(dims);
  for (size_t i = 0; i < keys_.size(); ++i) {
    ReadRow(ReferenceKeyAt(params, true, seq, kv_head, keys_[i]), kv_dtype);
    ops_.add(key_.data(), params.v_head_dim, weights_[i] * v_scale,
             std::abs(weights_[i] * v_scale) * (errors_[i] + relative_), expected_.data(), magnitude_.data());
    if (!is_bf16) continue;
    const double weight = model_weights_[i] * v_scale;
    ops_.add(key_.data(), params.v_head_dim, weight, std::abs(weight), model_.data(), absolute_.data());
  }
  if (!is_bf16) model_ = expected_;
}

// As long as the walk's formats are the engine's, without a call per element.
void RowChecker::ReadRow(const ReferenceKey& key, DType dtype) {
  if (dtype == DType::kBF16) {
    ops_.read_bf16(static_cast<const bf16*>(key.data) + key.first, key_.data(), std::ssize(key_));
  } else {
    attest::ReadRow(key, dtype, key_);
  }
}

// Puts the oracle's row (and for kBf16 its row on rounded queries) in the place of the walk's.
void RowChecker::AskTheOracle(const AttentionParams& params, AttentionArithmetic arithmetic, int seq,
                              int32_t row, int head) {
  lse_ = ReferenceAttentionRow(params, seq, row, head, expected_);
  model_lse_ = lse_;
  model_ = expected_;
  if (arithmetic != AttentionArithmetic::kBf16) return;
  AttentionParams rounded = params;  // every token and head reads the one rounded row
  rounded.q = {.data = reinterpret_cast<const std::byte*>(rounded_.data()),
               .shape = params.q.shape,
               .stride = {0, 0, 1}};
  rounded.q_dtype = DType::kF32;
  model_lse_ = ReferenceAttentionRow(rounded, seq, row, head, model_);
}

RowVerdict RowChecker::Check(const AttentionParams& params, AttentionArithmetic arithmetic, int seq,
                             int32_t row, int head) {
  const int64_t token = params.q_begin->begin(seq) + row;
  const auto finite = [&] {
    return std::ranges::all_of(expected_, [](double value) { return std::isfinite(value); });
  };
  asked_the_oracle_ = false;
  Walk(params, arithmetic, seq, row, head);
  if (finite()) {
    const RowVerdict verdict = Judge(params, arithmetic, token, head);
    if (verdict.ok()) return verdict;
  }
  // Nobody is accused, and no row given up, by anyone but the oracle.
  asked_the_oracle_ = true;
  AskTheOracle(params, arithmetic, seq, row, head);
  if (finite()) return Judge(params, arithmetic, token, head);
  RowVerdict unknown;
  unknown.verifiable = false;
  return unknown;
}

RowVerdict RowChecker::Judge(const AttentionParams& params, AttentionArithmetic arithmetic, int64_t token,
                             int head) const {
  RowVerdict verdict;
  const auto judge = [&](std::optional<int> dim, double computed, double expected, double budget) {
    const double difference = std::abs(computed - expected);
    const double error = std::isfinite(computed) ? difference : kInfinity;
    const double ratio = error == 0 ? 0.0 : error / budget;
    if (ratio > 1 && dim && !verdict.first_wrong_dim) verdict.first_wrong_dim = dim;
    if (ratio <= verdict.ratio) return;
    verdict.ratio = ratio;
    verdict.dim = dim;
    verdict.computed = computed;
    verdict.expected = expected;
    verdict.error = error;
    verdict.budget = budget;
  };
  const double unit = 4 * kUnit + StoredUnit(params.out_dtype);
  for (size_t d = 0; d < expected_.size(); ++d) {
    const double size = std::abs(model_[d]);
    double budget = std::abs(model_[d] - expected_[d]) + magnitude_[d] + unit * size + kTiny;
    if (arithmetic == AttentionArithmetic::kBf16) budget += kWeightRounding * (absolute_[d] + size);
    judge(static_cast<int>(d),
          ReferenceElement(params.OutRow(token, head), params.out_dtype, static_cast<int64_t>(d)),
          expected_[d], budget);
  }
  if (params.lse.data != nullptr) {
    const double computed = *params.lse.At(head, token);
    if (!std::isfinite(lse_)) {  // the row sees nothing: -inf is the answer
      if (computed != lse_) judge(std::nullopt, std::isfinite(computed) ? kInfinity : computed, 0.0, 1.0);
    } else {
      const double rounding = arithmetic == AttentionArithmetic::kBf16 ? kWeightRounding : 0.0;
      judge(std::nullopt, computed, lse_,
            std::abs(model_lse_ - lse_) + relative_ + rounding + 8 * kUnit * (1 + std::abs(lse_)));
    }
  }
  return verdict;
}

}  // namespace attest
