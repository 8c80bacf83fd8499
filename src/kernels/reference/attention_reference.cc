#include "kernels/reference/attention_reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"

namespace attest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// sign, exponent and fraction fields of a small float, by the definition of the format.
double DecodeFields(uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const double sign = ((bits >> (exponent_bits + fraction_bits)) & 1u) != 0 ? -1.0 : 1.0;
  const int top = (1 << exponent_bits) - 1;
  if (exponent == top && has_infinity) {
    return fraction == 0 ? sign * kInfinity : std::numeric_limits<double>::quiet_NaN();
  }
  // e4m3fn has no infinity and one NaN per sign.
  if (exponent == top && !has_infinity && fraction == (1 << fraction_bits) - 1) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

template <class T>
T Read(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void Store(void* data, DType dtype, int64_t index, double value) {
  char* base = static_cast<char*>(data);
  const auto single = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(base + index * 4, &single, 4);
    return;
  }
  ATTEST_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  const uint16_t bits = dtype == DType::kBF16 ? ToBf16(single).bits : ToF16(single).bits;
  std::memcpy(base + index * 2, &bits, 2);
}

}  // namespace

// Canon 6 to 8 and 19, as stated. `p` may be negative; j is not.
bool ReferenceSees(const AttentionMask& mask, int64_t p, int64_t j) {
  if (mask.causal && j > p) return false;
  if (mask.window_right && j > p + *mask.window_right) return false;
  if (mask.window_left && j < p - *mask.window_left && j >= mask.sink_tokens) return false;
  if (mask.chunk && (p < 0 || j / *mask.chunk != p / *mask.chunk)) return false;
  return true;
}

ReferenceKey ReferenceKeyAt(const AttentionParams& params, bool value, int seq, int kv_head, int64_t j) {
  if (params.paged != nullptr) {
    const PagedKv& kv = *params.paged;
    const KvPages& pages = value ? kv.v : kv.k;
    const int64_t block = params.block_tables.ids[seq * params.block_tables.row_stride + j / kv.block_size];
    return {pages.data, block * pages.block_stride + kv_head * pages.head_stride +
                            (j % kv.block_size) * pages.slot_stride};
  }
  const ContiguousKv& kv = *params.contiguous;
  const int64_t row = kv.k_begin[static_cast<size_t>(seq)] + j;
  return value ? ReferenceKey{kv.v, row * kv.v_token_stride + kv_head * kv.v_head_stride}
               : ReferenceKey{kv.k, row * kv.k_token_stride + kv_head * kv.k_head_stride};
}

double ReferenceElement(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return Read<float>(data, index);
    case DType::kF16:
      return DecodeFields(Read<uint16_t>(data, index), 5, 10, true);
    case DType::kBF16: {  // the upper half of a float
      const uint32_t bits = static_cast<uint32_t>(Read<uint16_t>(data, index)) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    case DType::kF8E4M3:
      return DecodeFields(Read<uint8_t>(data, index), 4, 3, false);
    case DType::kF8E5M2:
      return DecodeFields(Read<uint8_t>(data, index), 5, 2, true);
    case DType::kI8:
      return Read<int8_t>(data, index);
    default:
      break;
  }
  ATTEST_CHECK(!"a plain element type");
  return 0.0;
}

double ReferenceAttentionRow(const AttentionParams& params, int seq, int32_t row, int head,
                             std::span<double> out, ReferenceKeys range) {
  const int64_t kv_len = params.kv_len[static_cast<size_t>(seq)];
  const int64_t p = row + kv_len - params.q_begin->length(seq);
  ATTEST_CHECK_EQ(params.q_heads % params.kv_heads, 0);
  const int kv_head = head / (params.q_heads / params.kv_heads);
  const DType kv_dtype = params.paged != nullptr ? params.paged->dtype : params.contiguous->dtype;
  const std::byte* q = params.QRow(params.q_begin->begin(seq) + row, head);
  std::vector<double> query(static_cast<size_t>(params.head_dim));
  for (int d = 0; d < params.head_dim; ++d)
    query[static_cast<size_t>(d)] = ReferenceElement(q, params.q_dtype, d);

  std::vector<int64_t> keys;
  std::vector<double> scores;
  double max = params.sinks != nullptr ? params.sinks[head] : -kInfinity;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (j < range.begin || j >= range.end || !ReferenceSees(params.mask, p, j)) continue;
    const ReferenceKey key = ReferenceKeyAt(params, false, seq, kv_head, j);
    double dot = 0;
    for (int d = 0; d < params.head_dim; ++d) {
      dot += query[static_cast<size_t>(d)] * ReferenceElement(key.data, kv_dtype, key.first + d);
    }
    double score = dot * params.scale * params.k_descale.at(seq, kv_head);
    if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
    if (params.alibi_slopes != nullptr) {
      score -= params.alibi_slopes[head] * std::abs(static_cast<double>(p - j));
    }
    keys.push_back(j);
    scores.push_back(score);
    max = std::fmax(max, score);
  }

  for (double& value : out) value = 0.0;
  if (max == -kInfinity) return -kInfinity;
  double sum = params.sinks != nullptr ? std::exp(params.sinks[head] - max) : 0.0;
  for (const double score : scores) sum += std::exp(score - max);
  const double descale = params.v_descale.at(seq, kv_head);
  for (size_t i = 0; i < keys.size(); ++i) {
    const ReferenceKey value = ReferenceKeyAt(params, true, seq, kv_head, keys[i]);
    const double weight = std::exp(scores[i] - max) / sum;
    for (int d = 0; d < params.v_head_dim; ++d) {
      out[static_cast<size_t>(d)] +=
          weight * descale * ReferenceElement(value.data, kv_dtype, value.first + d);
    }
  }
  return max + std::log(sum);
}

void ReferenceAttentionBlock(const AttentionParams& params, int seq, int32_t row_begin, int32_t row_end,
                             int head_begin, int head_end, ReferenceKeys keys) {
  std::vector<double> out(static_cast<size_t>(params.v_head_dim));
  for (int32_t row = row_begin; row < row_end; ++row) {
    for (int head = head_begin; head < head_end; ++head) {
      const double lse = ReferenceAttentionRow(params, seq, row, head, out, keys);
      const int64_t token = params.q_begin->begin(seq) + row;
      std::byte* to = params.OutRow(token, head);
      for (int d = 0; d < params.v_head_dim; ++d) Store(to, params.out_dtype, d, out[static_cast<size_t>(d)]);
      if (params.lse.data != nullptr) *params.lse.At(head, token) = static_cast<float>(lse);
    }
  }
}

void ReferenceAttention(const AttentionParams& params) {
  for (const int32_t seq : params.owned.seqs) {
    ReferenceAttentionBlock(params, seq, 0, params.q_begin->length(seq), 0, params.q_heads);
  }
}

}  // namespace attest
