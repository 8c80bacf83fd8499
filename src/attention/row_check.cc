#include "attention/row_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/reference/attention_reference.h"

namespace attest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnit = 0x1p-24;  // half a unit in the last place of a float32 in [1, 2)
constexpr double kExp2ErrorF32 = 0x1p-21;
constexpr double kExp2ErrorBf16 = 0x1p-11;  // a shorter polynomial, or a table
constexpr double kWeightRandom = 5 * 0x1p-8;
constexpr double kWeightWorst = 0x1p-7;
constexpr double kTiny = 1e-30;  // flushed denormals

// head_dim elements of one key or value. The formats of the engine's pages are read without a call per
// element.
void ReadRow(const ReferenceKey& key, DType dtype, std::vector<float>& row) {
  if (dtype == DType::kF32) {
    std::memcpy(row.data(), static_cast<const float*>(key.data) + key.first, row.size() * sizeof(float));
  } else if (dtype == DType::kBF16) {
    const auto* from = static_cast<const bf16*>(key.data) + key.first;
    for (size_t d = 0; d < row.size(); ++d) row[d] = ToFloat(from[d]);
  } else {
    for (size_t d = 0; d < row.size(); ++d) {
      row[d] = static_cast<float>(ReferenceElement(key.data, dtype, key.first + static_cast<int64_t>(d)));
    }
  }
}

double StoredUnit(DType out_dtype) {
  switch (out_dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0.0;
  }
}

}  // namespace

// Fills magnitude_ with sum_j w_j (e_j + mean e + c) |v_jd|, and for kBf16 squares_ with sum_j w_j^2 v_jd^2.
void RowChecker::Bound(const AttentionParams& params, AttentionArithmetic arithmetic, int seq, int32_t row,
                       int head) {
  const bool bf16_weights = arithmetic == AttentionArithmetic::kBf16;
  const int64_t kv_len = params.kv_len[static_cast<size_t>(seq)];
  const int64_t p = row + kv_len - params.q_begin->length(seq);
  const int kv_head = head / (params.q_heads / params.kv_heads);
  const DType kv_dtype = params.paged != nullptr ? params.paged->dtype : params.contiguous->dtype;
  const double k_scale = std::abs(double{params.scale} * params.k_descale.at(seq, kv_head));
  const double signed_scale = double{params.scale} * params.k_descale.at(seq, kv_head);
  const double v_scale = std::abs(params.v_descale.at(seq, kv_head));
  const std::byte* q = params.QRow(params.q_begin->begin(seq) + row, head);
  query_.resize(static_cast<size_t>(params.head_dim));
  for (int d = 0; d < params.head_dim; ++d) {
    query_[static_cast<size_t>(d)] = static_cast<float>(ReferenceElement(q, params.q_dtype, d));
  }

  keys_.clear();
  weights_.clear();
  errors_.clear();
  key_.resize(static_cast<size_t>(params.head_dim));
  double max = params.sinks != nullptr ? double{params.sinks[head]} : -kInfinity;
  double largest = std::isfinite(max) ? std::abs(max) : 0.0;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (!ReferenceSees(params.mask, p, j)) continue;
    ReadRow(ReferenceKeyAt(params, false, seq, kv_head, j), kv_dtype, key_);
    double dot = 0, absolute = 0;
    for (size_t d = 0; d < key_.size(); ++d) {
      const double product = double{query_[d]} * double{key_[d]};
      dot += product;
      absolute += std::abs(product);
    }
    double score = dot * signed_scale;
    if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
    double bias = 0;
    if (params.alibi_slopes != nullptr) {
      bias = std::abs(double{params.alibi_slopes[head]} * static_cast<double>(p - j));
      score -= double{params.alibi_slopes[head]} * std::abs(static_cast<double>(p - j));
    }
    keys_.push_back(j);
    weights_.push_back(score);
    errors_.push_back(kUnit * ((params.head_dim + 8) * k_scale * absolute + 8 * (std::abs(score) + bias)));
    max = std::fmax(max, score);
    largest = std::fmax(largest, std::abs(score));
  }

  const double common = 8 * kUnit * largest + (params.softcap > 0 ? 0x1p-20 * params.softcap : 0.0) +
                        (bf16_weights ? kExp2ErrorBf16 : kExp2ErrorF32);
  double sum = params.sinks != nullptr ? std::exp(params.sinks[head] - max) : 0.0;
  for (double& weight : weights_) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  double mean = 0;
  random_ = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    weights_[i] /= sum;
    errors_[i] += common;
    mean += weights_[i] * errors_[i];
    random_ += weights_[i] * weights_[i];
  }
  random_ = std::sqrt(random_);
  relative_ = mean + 8 * kUnit * (8 + std::sqrt(static_cast<double>(weights_.size())));

  const auto dims = static_cast<size_t>(params.v_head_dim);
  magnitude_.assign(dims, 0.0);
  absolute_.assign(dims, 0.0);
  squares_.assign(dims, 0.0);
  key_.resize(dims);
  for (size_t i = 0; i < keys_.size(); ++i) {
    ReadRow(ReferenceKeyAt(params, true, seq, kv_head, keys_[i]), kv_dtype, key_);
    const double weight = weights_[i] * v_scale;
    const double error = weight * (errors_[i] + relative_);
    for (size_t d = 0; d < dims; ++d) magnitude_[d] += error * std::abs(double{key_[d]});
    if (!bf16_weights) continue;
    for (size_t d = 0; d < dims; ++d) {
      const double part = weight * std::abs(double{key_[d]});
      absolute_[d] += part;
      squares_[d] += part * part;
    }
  }
}

RowVerdict RowChecker::Check(const AttentionParams& params, AttentionArithmetic arithmetic, int seq,
                             int32_t row, int head) {
  const int64_t token = params.q_begin->begin(seq) + row;
  const auto dims = static_cast<size_t>(params.v_head_dim);
  oracle_.resize(dims);
  const double lse = ReferenceAttentionRow(params, seq, row, head, oracle_);
  double model_lse = lse;
  model_ = oracle_;
  if (arithmetic == AttentionArithmetic::kBf16) {
    rounded_.resize(static_cast<size_t>(params.head_dim));
    for (int d = 0; d < params.head_dim; ++d) {
      rounded_[static_cast<size_t>(d)] =
          ToFloat(ToBf16(static_cast<float>(ReferenceElement(params.QRow(token, head), params.q_dtype, d))));
    }
    AttentionParams rounded = params;  // every token and head reads the one rounded row
    rounded.q = {.data = reinterpret_cast<const std::byte*>(rounded_.data()),
                 .shape = params.q.shape,
                 .stride = {0, 0, 1}};
    rounded.q_dtype = DType::kF32;
    model_lse = ReferenceAttentionRow(rounded, seq, row, head, model_);
  }

  RowVerdict verdict;
  for (const double value : oracle_) verdict.verifiable = verdict.verifiable && std::isfinite(value);
  if (!verdict.verifiable) return verdict;
  Bound(params, arithmetic, seq, row, head);

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
  for (size_t d = 0; d < dims; ++d) {
    const double size = std::abs(model_[d]);
    double budget = std::abs(model_[d] - oracle_[d]) + magnitude_[d] + unit * size + kTiny;
    if (arithmetic == AttentionArithmetic::kBf16) {
      budget += std::min(kWeightRandom * (std::sqrt(squares_[d]) + size * random_),
                         kWeightWorst * (absolute_[d] + size));
    }
    judge(static_cast<int>(d),
          ReferenceElement(params.OutRow(token, head), params.out_dtype, static_cast<int64_t>(d)), oracle_[d],
          budget);
  }
  if (params.lse.data != nullptr) {
    const double computed = *params.lse.At(head, token);
    if (!std::isfinite(lse)) {  // the row sees nothing: -inf is the answer
      if (computed != lse) judge(std::nullopt, std::isfinite(computed) ? kInfinity : computed, 0.0, 1.0);
    } else {
      const double rounding = arithmetic == AttentionArithmetic::kBf16 ? kWeightRandom * random_ : 0.0;
      judge(std::nullopt, computed, lse,
            std::abs(model_lse - lse) + relative_ + rounding + 8 * kUnit * (1 + std::abs(lse)));
    }
  }
  return verdict;
}

}  // namespace attest
