#include "attention/row_error.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace attest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Variances of single steps, in units of u^2 / 3, the variance of an error uniform within +-u.
constexpr double kExp2 = 8;      // relative error below 1.6e-7 = 2.7 u
constexpr double kTanh = 30;     // relative error below 3e-7 = 5.1 u, and a division
constexpr double kScale = 4;     // scale, descale and log2(e), in any order
constexpr double kArgument = 3;  // score minus maximum, and the split into integer and fraction
constexpr double kMerge = 2;     // rescaling to a new maximum, weighting by a rounded LSE
constexpr double kFinal = 6;     // the division, descale, and merge of splits

double Square(double x) { return x * x; }

}  // namespace

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

void ReadRow(const ReferenceKey& key, DType dtype, std::span<float> row) {
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

void RowDeviation::Compute(const AttentionParams& params, int seq, int32_t row, int head) {
  const int64_t kv_len = params.kv_len[static_cast<size_t>(seq)];
  const int64_t p = row + kv_len - params.q_begin->length(seq);
  const int kv_head = head / (params.q_heads / params.kv_heads);
  const DType kv_dtype = params.paged != nullptr ? params.paged->dtype : params.contiguous->dtype;
  const double scale = double{params.scale} * params.k_descale.at(seq, kv_head);
  const double dims = params.head_dim;
  query_.resize(static_cast<size_t>(params.head_dim));
  key_.resize(query_.size());
  const std::byte* q = params.QRow(params.q_begin->begin(seq) + row, head);
  for (int d = 0; d < params.head_dim; ++d)
    query_[static_cast<size_t>(d)] = static_cast<float>(ReferenceElement(q, params.q_dtype, d));

  keys_.clear();
  weights_.clear();
  variances_.clear();
  double max = params.sinks != nullptr ? double{params.sinks[head]} : -kInfinity;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (!ReferenceSees(params.mask, p, j)) continue;
    ReadRow(ReferenceKeyAt(params, false, seq, kv_head, j), kv_dtype, key_);
    double dot = 0, squares = 0;
    for (size_t d = 0; d < key_.size(); ++d) {
      const double product = double{query_[d]} * double{key_[d]} * scale;
      dot += product;
      squares += product * product;
    }
    // Every product is rounded, and its query may have been (a query times the scale). The i-th of head_dim
    // partial sums is (i / head_dim) of the dot product and a random walk around it, i (head_dim - i) /
    // head_dim^2 of the squares; their mean squares are 1/3 and 1/6 of the whole.
    double variance = 2 * squares + dims * (Square(dot) / 3 + squares / 6);
    double score = dot, bias = 0;
    if (params.softcap > 0) {
      score = params.softcap * std::tanh(score / params.softcap);
      variance += kTanh * Square(score);
    }
    if (params.alibi_slopes != nullptr) {
      bias = double{params.alibi_slopes[head]} * std::abs(static_cast<double>(p - j));
      score -= bias;
    }
    variance += kScale * Square(dot) + 2 * Square(bias) + Square(score);
    keys_.push_back(j);
    weights_.push_back(score);
    variances_.push_back(variance);
    max = std::fmax(max, score);
  }
  const auto v_dims = static_cast<size_t>(params.v_head_dim);
  out_.assign(v_dims, 0.0);
  lse_ = 0;
  if (max == -kInfinity) return;  // no key and no sink: exact

  double sum = params.sinks != nullptr ? std::exp(params.sinks[head] - max) : 0.0;
  for (const double score : weights_) sum += std::exp(score - max);
  const double largest = std::fmax(std::abs(max), std::abs(max + std::log(sum)));
  double lse_variance = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    variances_[i] += kArgument * Square(weights_[i] - max) + kExp2 + kMerge * Square(largest);
    weights_[i] = std::exp(weights_[i] - max) / sum;
    lse_variance += Square(weights_[i]) * variances_[i];
  }

  expected_.assign(v_dims, 0.0);
  squares_.assign(v_dims, 0.0);
  centred_.assign(v_dims, 0.0);
  key_.resize(v_dims);
  const double v_scale = params.v_descale.at(seq, kv_head);
  for (const bool centred : {false, true}) {  // the second pass needs the result of the first
    for (size_t i = 0; i < keys_.size(); ++i) {
      ReadRow(ReferenceKeyAt(params, true, seq, kv_head, keys_[i]), kv_dtype, key_);
      const double weight = weights_[i], spread = Square(weight) * variances_[i];
      for (size_t d = 0; d < v_dims; ++d) {
        const double value = v_scale * double{key_[d]};
        if (centred) {
          centred_[d] += spread * Square(value - expected_[d]);
        } else {
          expected_[d] += weight * value;
          squares_[d] += Square(weight * value);
        }
      }
    }
  }
  const auto n = static_cast<double>(keys_.size());
  const double unit = kF32Unit / std::sqrt(3.0);
  for (size_t d = 0; d < v_dims; ++d) {
    // The numerator's products and partial sums, the denominator's partial sums.
    const double sums =
        squares_[d] + n * (Square(expected_[d]) / 3 + squares_[d] / 6) + n * Square(expected_[d]) / 3;
    out_[d] = unit * std::sqrt(centred_[d] + sums + kFinal * Square(expected_[d]));
  }
  lse_ = unit * std::sqrt(lse_variance + n / 3 + kFinal * (1 + Square(largest)));
}

}  // namespace attest
