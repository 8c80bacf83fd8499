// A batch for attention tests with every tensor in an exact-size guarded buffer, and poison in everything
// that must not be read: slots past kv_len, blocks of nobody, block 0, unused table entries. Pages are
// shuffled.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "attention/plan.h"
#include "kernels/reference/attention_reference.h"
#include "tests/support/guarded_buffer.h"

namespace attest::testing {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline std::vector<double> EightBitValues(DType dtype) {
  std::vector<double> values;
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    values.push_back(ReferenceElement(&byte, dtype, 0));
  }
  return values;
}

// Writes the representable value nearest to `value`.
inline void EncodeElement(void* data, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::kBF16:
      static_cast<bf16*>(data)[index] = ToBf16(value);
      return;
    case DType::kF16:
      static_cast<f16*>(data)[index] = ToF16(value);
      return;
    case DType::kI8:
      static_cast<int8_t*>(data)[index] =
          std::isnan(value) ? int8_t{127}
                            : static_cast<int8_t>(std::lround(std::clamp(value, -127.0f, 127.0f)));
      return;
    default:
      break;
  }
  static const std::vector<double> e4m3 = EightBitValues(DType::kF8E4M3),
                                   e5m2 = EightBitValues(DType::kF8E5M2);
  const std::vector<double>& values = dtype == DType::kF8E4M3 ? e4m3 : e5m2;
  uint8_t best = 0x7f;  // a NaN of both formats
  double distance = std::numeric_limits<double>::infinity();
  for (size_t bits = 0; bits < 256 && !std::isnan(value); ++bits) {
    if (std::abs(values[bits] - value) < distance) {
      distance = std::abs(values[bits] - value);
      best = static_cast<uint8_t>(bits);
    }
  }
  static_cast<uint8_t*>(data)[index] = best;
}

struct BatchOptions {
  uint32_t seed = 1;
  float poison = kNaN;         // fills everything that must not be read
  bool shuffle_pages = true;   // false: blocks 1, 2, 3, ... in order
  bool interleave_kv = false;  // paged NHD only: K and V of a block lie next to each other
  int q_token_padding = 0;     // extra elements between the rows of q and of out, as in a fused QKV tensor
  int batch_blocks = 0;        // least number of blocks of the pool
};

// (seq, key, kv_head, dim) -> value
using KeyValueFn = std::function<float(int, int, int, int)>;
// (seq, row, q_head, dim) -> value
using QueryFn = std::function<float(int, int, int, int)>;

class AttentionBatch {
 public:
  AttentionBatch(const AttentionSpec& spec, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens,
                 const BatchOptions& options = {})
      : spec_(spec),
        kv_len_(std::move(kv_lens)),
        q_begin_(CuSeqlens::FromLengths(q_lens).value()),
        options_(options),
        random_(options.seed) {
    MakeQueries();
    if (spec.layout == KvLayout::kContiguous) {
      MakeContiguous();
    } else {
      MakePages();
    }
    alibi_ = Floats(spec.q_heads, [this](int64_t) { return Uniform(0.05f, 0.6f); });
    sinks_ = Floats(spec.q_heads, [this](int64_t) { return Uniform(-1.0f, 2.0f); });
    k_descale_ = Floats(int64_t{num_seqs()} * spec.kv_heads, [this](int64_t) { return Uniform(0.5f, 1.5f); });
    v_descale_ = Floats(int64_t{num_seqs()} * spec.kv_heads, [this](int64_t) { return Uniform(0.5f, 1.5f); });
    FillRandom();
  }

  [[nodiscard]] const AttentionSpec& spec() const { return spec_; }
  [[nodiscard]] int num_seqs() const { return q_begin_.num_seqs(); }
  [[nodiscard]] int32_t num_tokens() const { return q_begin_.total(); }
  [[nodiscard]] const CuSeqlens& q_begin() const { return q_begin_; }
  [[nodiscard]] const std::vector<int32_t>& kv_len() const { return kv_len_; }
  [[nodiscard]] float* sinks() const { return sinks_.as<float>(); }
  [[nodiscard]] float* alibi_slopes() const { return alibi_.as<float>(); }
  [[nodiscard]] float* k_descale() const { return k_descale_.as<float>(); }
  [[nodiscard]] float* v_descale() const { return v_descale_.as<float>(); }
  [[nodiscard]] PagedKv& paged() { return paged_; }
  [[nodiscard]] int32_t* block_ids(int seq) { return tables_.as<int32_t>() + seq * table_width_; }
  [[nodiscard]] int64_t table_width() const { return table_width_; }

  // Standard normal Q, K and V (8-bit formats: of a size they can hold).
  void FillRandom() {
    const bool eight_bit = BlockBytes(spec_.kv_dtype) == 1;
    const float size = spec_.kv_dtype == DType::kI8 ? 40.0f : 1.0f;
    std::normal_distribution<float> normal;
    const auto draw = [&](int, int, int, int) {
      return size * (eight_bit ? std::clamp(normal(random_), -3.0f, 3.0f) : normal(random_));
    };
    FillK(draw);
    FillV(draw);
    FillQ([&](int, int, int, int) { return normal(random_); });
  }
  void FillK(const KeyValueFn& value) { FillKv(false, value); }
  void FillV(const KeyValueFn& value) { FillKv(true, value); }
  void FillQ(const QueryFn& value) {
    for (int seq = 0; seq < num_seqs(); ++seq) {
      for (int row = 0; row < q_begin_.length(seq); ++row) {
        for (int head = 0; head < spec_.q_heads; ++head) {
          const int64_t at = (q_begin_.begin(seq) + row) * q_token_stride() + head * int64_t{spec_.head_dim};
          for (int d = 0; d < spec_.head_dim; ++d) {
            EncodeElement(q_.data(), spec_.q_dtype, at + d, value(seq, row, head, d));
          }
        }
      }
    }
  }

  // The uniform probe: every visible key has the same weight and V[j] = j in every dim.
  void UProbe() {
    FillK([](int, int, int, int) { return 0.0f; });
    FillV([](int, int key, int, int) { return static_cast<float>(key); });
  }

  // Element index of (seq, key, kv_head, dim 0) in the K or V memory.
  [[nodiscard]] int64_t KeyIndex(bool value, int seq, int key, int kv_head) {
    const int dim = value ? spec_.v_head_dim : spec_.head_dim;
    if (spec_.layout == KvLayout::kContiguous) {
      return ((k_begin_.as<int32_t>()[seq] + int64_t{key}) * spec_.kv_heads + kv_head) * dim;
    }
    const KvPages& pages = value ? paged_.v : paged_.k;
    return block_ids(seq)[key / spec_.block_size] * pages.block_stride + kv_head * pages.head_stride +
           (key % spec_.block_size) * pages.slot_stride;
  }
  [[nodiscard]] void* KeyData(bool value) {
    if (spec_.layout == KvLayout::kContiguous) return (value ? contiguous_v_ : contiguous_k_).data();
    return value ? paged_.v.data : paged_.k.data;
  }

  // All keys of one sequence and KV head as the floats they hold: [kv_len, dim].
  [[nodiscard]] std::vector<float> Decoded(bool value, int seq, int kv_head) {
    const int dim = value ? spec_.v_head_dim : spec_.head_dim;
    std::vector<float> floats;
    for (int key = 0; key < kv_len_[static_cast<size_t>(seq)]; ++key) {
      const int64_t at = KeyIndex(value, seq, key, kv_head);
      for (int d = 0; d < dim; ++d) {
        floats.push_back(static_cast<float>(ReferenceElement(KeyData(value), spec_.kv_dtype, at + d)));
      }
    }
    return floats;
  }

  [[nodiscard]] AttentionLengths lengths() {
    return {
        .q_begin = &q_begin_,
        .kv_len = kv_len_,
        .block_tables = {.ids = tables_.as<int32_t>(), .row_stride = table_width_, .num_seqs = num_seqs()},
        .owned = {}};
  }

  // A fresh output (and LSE) filled with `fill`; see Output below.
  struct Output {
    GuardedBytes out, lse;
    int64_t out_token_stride = 0;
  };
  [[nodiscard]] Output MakeOutput(float fill) const {
    Output output{.out = GuardedBytes(num_tokens() * out_token_stride() * BlockBytes(spec_.out_dtype)),
                  .lse = GuardedBytes(int64_t{spec_.q_heads} * num_tokens() * 4),
                  .out_token_stride = out_token_stride()};
    for (int64_t i = 0; i < num_tokens() * out_token_stride(); ++i) {
      EncodeElement(output.out.data(), spec_.out_dtype, i, fill);
    }
    for (int64_t i = 0; i < int64_t{spec_.q_heads} * num_tokens(); ++i) output.lse.as<float>()[i] = fill;
    return output;
  }

  // Tensors and optional inputs; AttendParams fills in the rest from the plan.
  [[nodiscard]] AttentionParams Tensors(const Output& output) {
    AttentionParams params;
    params.q = {.data = q_.data(),
                .shape = {num_tokens(), spec_.q_heads, spec_.head_dim},
                .stride = {q_token_stride(), spec_.head_dim, 1}};
    params.q_dtype = spec_.q_dtype;
    params.out = {.data = output.out.data(),
                  .shape = {num_tokens(), spec_.q_heads, spec_.v_head_dim},
                  .stride = {output.out_token_stride, spec_.v_head_dim, 1}};
    params.out_dtype = spec_.out_dtype;
    if (spec_.wants_lse) {
      params.lse = View<float, 2>::Dense(output.lse.as<float>(), {spec_.q_heads, num_tokens()});
    }
    if (spec_.layout == KvLayout::kContiguous) {
      params.contiguous = &contiguous_;
    } else {
      params.paged = &paged_;
    }
    if (spec_.has_alibi) params.alibi_slopes = alibi_slopes();
    if (spec_.has_sinks) params.sinks = sinks();
    if (spec_.has_k_descale) params.k_descale = {k_descale(), spec_.kv_heads, 1};
    if (spec_.has_v_descale) params.v_descale = {v_descale(), spec_.kv_heads, 1};
    return params;
  }
  // Everything, as a kernel or the oracle would receive it.
  [[nodiscard]] AttentionParams Params(const Output& output) {
    AttentionParams params = Tensors(output);
    params.block_tables = lengths().block_tables;
    params.q_begin = &q_begin_;
    params.kv_len = kv_len_;
    params.q_heads = spec_.q_heads;
    params.kv_heads = spec_.kv_heads;
    params.head_dim = spec_.head_dim;
    params.v_head_dim = spec_.v_head_dim;
    params.scale = spec_.scale;
    params.mask = MaskOf(spec_);
    params.softcap = spec_.softcap;
    return params;
  }
  [[nodiscard]] float OutElement(const Output& output, int32_t token, int head, int d) const {
    return static_cast<float>(
        ReferenceElement(output.out.data(), spec_.out_dtype,
                         token * output.out_token_stride + head * int64_t{spec_.v_head_dim} + d));
  }
  // Elements of out that no view covers (the padding between rows) still hold `fill`.
  [[nodiscard]] bool PaddingUntouched(const Output& output, float fill) const {
    uint32_t encoded = 0;
    EncodeElement(&encoded, spec_.out_dtype, 0, fill);
    const int bytes = BlockBytes(spec_.out_dtype);
    for (int32_t token = 0; token < num_tokens(); ++token) {
      for (int64_t i = int64_t{spec_.q_heads} * spec_.v_head_dim; i < output.out_token_stride; ++i) {
        const std::byte* at = output.out.data() + (token * output.out_token_stride + i) * bytes;
        if (std::memcmp(at, &encoded, static_cast<size_t>(bytes)) != 0) return false;
      }
    }
    return true;
  }

 private:
  [[nodiscard]] int64_t q_token_stride() const {
    return int64_t{spec_.q_heads} * spec_.head_dim + options_.q_token_padding;
  }
  [[nodiscard]] int64_t out_token_stride() const {
    return int64_t{spec_.q_heads} * spec_.v_head_dim + options_.q_token_padding;
  }
  float Uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_); }
  template <class Fn>
  GuardedBytes Floats(int64_t n, Fn value) {
    GuardedBytes bytes(n * 4);
    for (int64_t i = 0; i < n; ++i) bytes.as<float>()[i] = value(i);
    return bytes;
  }
  void Poison(const GuardedBytes& bytes, DType dtype) const {
    for (int64_t i = 0; i < bytes.size() / BlockBytes(dtype); ++i) {
      if (i == 0 || BlockBytes(dtype) == 4) {
        EncodeElement(bytes.data(), dtype, i, options_.poison);
      } else {  // copy the encoded element
        std::memcpy(bytes.data() + i * BlockBytes(dtype), bytes.data(),
                    static_cast<size_t>(BlockBytes(dtype)));
      }
    }
  }

  void MakeQueries() {
    q_ = GuardedBytes(num_tokens() * q_token_stride() * BlockBytes(spec_.q_dtype));
    Poison(q_, spec_.q_dtype);
  }

  void MakeContiguous() {
    int64_t total = 0;
    k_begin_ = GuardedBytes((num_seqs() + 1) * 4);
    for (int seq = 0; seq <= num_seqs(); ++seq) {
      k_begin_.as<int32_t>()[seq] = static_cast<int32_t>(total);
      if (seq < num_seqs()) total += kv_len_[static_cast<size_t>(seq)];
    }
    const int64_t bytes = BlockBytes(spec_.kv_dtype);
    contiguous_k_ = GuardedBytes(total * spec_.kv_heads * spec_.head_dim * bytes);
    contiguous_v_ = GuardedBytes(total * spec_.kv_heads * spec_.v_head_dim * bytes);
    contiguous_ = {.k = contiguous_k_.data(),
                   .v = contiguous_v_.data(),
                   .dtype = spec_.kv_dtype,
                   .k_token_stride = int64_t{spec_.kv_heads} * spec_.head_dim,
                   .k_head_stride = spec_.head_dim,
                   .v_token_stride = int64_t{spec_.kv_heads} * spec_.v_head_dim,
                   .v_head_stride = spec_.v_head_dim,
                   .k_begin = {k_begin_.as<int32_t>(), static_cast<size_t>(num_seqs()) + 1}};
  }

  void MakePages() {
    const int size = spec_.block_size;
    int blocks = 1;  // block 0 belongs to nobody
    for (const int32_t kv_len : kv_len_) {
      const int needed = (kv_len + size - 1) / size;
      blocks += needed;
      table_width_ = std::max<int64_t>(table_width_, needed);
    }
    table_width_ += 1;  // one entry past the longest row, never read
    const int64_t num_blocks = std::max(blocks + 2, options_.batch_blocks);
    std::vector<int32_t> free(static_cast<size_t>(num_blocks) - 1);
    std::iota(free.begin(), free.end(), 1);
    if (options_.shuffle_pages) std::ranges::shuffle(free, random_);
    tables_ = GuardedBytes(num_seqs() * table_width_ * 4);
    size_t next = 0;
    for (int seq = 0; seq < num_seqs(); ++seq) {
      const int needed = (kv_len_[static_cast<size_t>(seq)] + size - 1) / size;
      for (int64_t i = 0; i < table_width_; ++i) {
        // An absurd id: following it leaves the pool.
        block_ids(seq)[i] = i < needed ? free[next++] : std::numeric_limits<int32_t>::max();
      }
    }
    const bool hnd = spec_.layout == KvLayout::kPagedHnd;
    const auto pages = [&](int dim) {
      const int64_t row = int64_t{spec_.kv_heads} * dim;
      return KvPages{.data = nullptr,
                     .block_stride = size * row,
                     .head_stride = hnd ? int64_t{size} * dim : dim,
                     .slot_stride = hnd ? dim : row};
    };
    paged_ = {.k = pages(spec_.head_dim),
              .v = pages(spec_.v_head_dim),
              .dtype = spec_.kv_dtype,
              .num_blocks = num_blocks,
              .block_size = size,
              .kv_heads = spec_.kv_heads,
              .head_dim = spec_.head_dim,
              .v_head_dim = spec_.v_head_dim};
    const int64_t bytes = BlockBytes(spec_.kv_dtype);
    if (options_.interleave_kv) {
      const int64_t both = paged_.k.block_stride + paged_.v.block_stride;
      pages_k_ = GuardedBytes(num_blocks * both * bytes);
      paged_.k.data = pages_k_.data();
      paged_.v.data = pages_k_.data() + paged_.k.block_stride * bytes;
      paged_.k.block_stride = paged_.v.block_stride = both;
    } else {
      pages_k_ = GuardedBytes(num_blocks * paged_.k.block_stride * bytes);
      pages_v_ = GuardedBytes(num_blocks * paged_.v.block_stride * bytes);
      paged_.k.data = pages_k_.data();
      paged_.v.data = pages_v_.data();
      Poison(pages_v_, spec_.kv_dtype);
    }
    Poison(pages_k_, spec_.kv_dtype);
  }

  void FillKv(bool is_value, const KeyValueFn& value) {
    const int dim = is_value ? spec_.v_head_dim : spec_.head_dim;
    for (int seq = 0; seq < num_seqs(); ++seq) {
      for (int key = 0; key < kv_len_[static_cast<size_t>(seq)]; ++key) {
        for (int head = 0; head < spec_.kv_heads; ++head) {
          const int64_t at = KeyIndex(is_value, seq, key, head);
          for (int d = 0; d < dim; ++d) {
            EncodeElement(KeyData(is_value), spec_.kv_dtype, at + d, value(seq, key, head, d));
          }
        }
      }
    }
  }

  AttentionSpec spec_;
  std::vector<int32_t> kv_len_;
  CuSeqlens q_begin_;
  BatchOptions options_;
  std::mt19937 random_;
  GuardedBytes q_, pages_k_, pages_v_, contiguous_k_, contiguous_v_, k_begin_, tables_;
  GuardedBytes alibi_, sinks_, k_descale_, v_descale_;
  int64_t table_width_ = 0;
  PagedKv paged_;
  ContiguousKv contiguous_;
};

}  // namespace attest::testing
