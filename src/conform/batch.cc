#include "conform/batch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

namespace attest::conform {
namespace {

// What a number is drawn for, so that tensors of one seed are unrelated.
enum Tag : uint64_t { kQuery = 1, kKey, kValue, kAlibi, kSink, kKeyDescale, kValueDescale };

// Finaliser of splitmix64: every input bit moves every output bit.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t Key(uint64_t seed, uint64_t tag, uint64_t seq, int64_t position, int head) {
  uint64_t key = Mix(seed * 0x9e3779b97f4a7c15u + tag);
  key = Mix(key + seq * 0x9e3779b97f4a7c15u);
  key = Mix(key + static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15u);
  return key + static_cast<uint64_t>(head) * 0xd1342543de82ef95u;
}
// A sum of four uniform 16-bit numbers, centred, of variance 1: within +-3.47, and far cheaper than a normal.
float NearNormal(uint64_t key, int dim) {
  const uint64_t x = Mix(key + static_cast<uint64_t>(dim) * 0x9e3779b97f4a7c15u);
  const auto sum = static_cast<int>((x & 0xffff) + ((x >> 16) & 0xffff) + ((x >> 32) & 0xffff) + (x >> 48));
  return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
}
float UniformOf(uint64_t key, float low, float high) {
  return low + (high - low) * static_cast<float>(Mix(key) >> 40) * 0x1p-24f;
}

// The finite values of an 8-bit float format that are not negative, ascending, each with its byte.
struct SmallFloat {
  std::vector<std::pair<double, uint8_t>> values;
  explicit SmallFloat(DType dtype) {
    for (int bits = 0; bits < 128; ++bits) {
      const auto byte = static_cast<uint8_t>(bits);
      const double value = ReferenceElement(&byte, dtype, 0);
      if (std::isfinite(value)) values.emplace_back(value, byte);
    }
    std::ranges::sort(values);
  }
  [[nodiscard]] uint8_t Nearest(float value) const {
    if (std::isnan(value)) return 0x7f;  // a NaN of both formats
    const double size = std::abs(static_cast<double>(value));
    auto above = std::ranges::lower_bound(values, size, {}, &std::pair<double, uint8_t>::first);
    if (above == values.end()) --above;
    if (above != values.begin() && size - (above - 1)->first < above->first - size) --above;
    return static_cast<uint8_t>(above->second | (std::signbit(value) ? 0x80 : 0));
  }
};

}  // namespace

void EncodeElement(void* data, DType dtype, int64_t index, float value) {
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
  static const SmallFloat e4m3(DType::kF8E4M3), e5m2(DType::kF8E5M2);
  static_cast<uint8_t*>(data)[index] = (dtype == DType::kF8E4M3 ? e4m3 : e5m2).Nearest(value);
}

const char* DescaleShapeName(DescaleShape shape) {
  switch (shape) {
    case DescaleShape::kPerSeqAndHead:
      return "per_seq_and_kv_head";
    case DescaleShape::kPerHead:
      return "per_kv_head";
    case DescaleShape::kPerTensor:
      return "per_tensor";
  }
  return "unknown";
}

AttentionBatch::AttentionBatch(const AttentionSpec& spec, const std::vector<int32_t>& q_lens,
                               std::vector<int32_t> kv_lens, const BatchOptions& options)
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
  alibi_ = GuardedBytes(int64_t{spec.q_heads} * 4);
  sinks_ = GuardedBytes(int64_t{spec.q_heads} * 4);
  for (int head = 0; head < spec.q_heads; ++head) {
    alibi_.as<float>()[head] = UniformOf(Key(options.seed, kAlibi, 0, 0, head), 0.05f, 0.6f);
    sinks_.as<float>()[head] = UniformOf(Key(options.seed, kSink, 0, 0, head), -1.0f, 2.0f);
  }
  k_descale_ = MakeDescales(kKeyDescale);
  v_descale_ = MakeDescales(kValueDescale);
  if (options_.recorded != nullptr) {
    FillRecorded(*options_.recorded);
  } else {
    FillRandom();
  }
}

KvDescale AttentionBatch::DescaleView(const GuardedBytes& bytes) const {
  switch (options_.descale) {
    case DescaleShape::kPerTensor:
      return {bytes.as<float>(), 0, 0};
    case DescaleShape::kPerHead:
      return {bytes.as<float>(), 0, 1};
    case DescaleShape::kPerSeqAndHead:
      break;
  }
  return {bytes.as<float>(), int64_t{spec_.kv_heads} + options_.descale_padding, 1};
}

float& AttentionBatch::DescaleAt(const GuardedBytes& bytes, int seq, int kv_head) const {
  const KvDescale view = DescaleView(bytes);
  return bytes.as<float>()[seq * view.seq_stride + kv_head * view.head_stride];
}

GuardedBytes AttentionBatch::MakeDescales(uint64_t tag) const {
  const bool per_seq = options_.descale == DescaleShape::kPerSeqAndHead;
  const bool per_head = options_.descale != DescaleShape::kPerTensor;
  const int64_t row = int64_t{spec_.kv_heads} + options_.descale_padding;
  // The last row ends with its last head: an entry too far is outside the buffer.
  GuardedBytes bytes(4 * (per_seq ? std::max(0, num_seqs() - 1) * row + (num_seqs() > 0 ? spec_.kv_heads : 0)
                          : per_head ? int64_t{spec_.kv_heads}
                                     : 1));
  for (int64_t i = 0; i < bytes.size() / 4; ++i) bytes.as<float>()[i] = options_.poison;
  for (int seq = 0; seq < (per_seq ? num_seqs() : 1); ++seq) {
    for (int head = 0; head < (per_head ? spec_.kv_heads : 1); ++head) {
      DescaleAt(bytes, seq, head) =
          UniformOf(Key(options_.seed, tag, per_seq ? seq_id(seq) : 0, 0, head), 0.5f, 1.5f);
    }
  }
  return bytes;
}

void AttentionBatch::FillRandom() {
  const float size = spec_.kv_dtype == DType::kI8 ? 40.0f : 1.0f;
  const auto draw = [&](Tag tag) {
    return [this, tag, size](int seq, int key, int head, int d) {
      return size * NearNormal(Key(options_.seed, tag, seq_id(seq), key, head), d);
    };
  };
  FillK(draw(kKey));
  FillV(draw(kValue));
  FillQ([this](int seq, int row, int head, int d) {
    const int64_t p = row + int64_t{kv_len_[static_cast<size_t>(seq)]} - q_begin_.length(seq);
    return NearNormal(Key(options_.seed, kQuery, seq_id(seq), p, head), d);
  });
}

void AttentionBatch::FillRecorded(const RecordedNumbers& recorded) {
  const AttentionSpec& from = recorded.spec;
  const auto at = [](const std::vector<float>& values, int64_t row, int64_t head, int64_t heads, int64_t d,
                     int64_t dim) {
    return values[static_cast<size_t>((row * heads + head % heads) * dim + d % dim)];
  };
  const auto key_of = [&](const std::vector<std::vector<float>>& keys, int64_t dim) {
    return [this, &keys, &at, &from, dim](int seq, int key, int head, int d) {
      return at(keys[seq_id(seq)], key, head, from.kv_heads, d, dim);
    };
  };
  FillK(key_of(recorded.k, from.head_dim));
  FillV(key_of(recorded.v, from.v_head_dim));
  FillQ([&](int seq, int row, int head, int d) {
    const auto id = static_cast<size_t>(seq_id(seq));
    const int64_t p = row + int64_t{kv_len_[static_cast<size_t>(seq)]} - q_begin_.length(seq);
    const int64_t rows = recorded.q_len[id], first = int64_t{recorded.kv_len[id]} - rows;
    return at(recorded.q[id], ((p - first) % rows + rows) % rows, head, from.q_heads, d, from.head_dim);
  });
  for (int head = 0; head < spec_.q_heads; ++head) {
    const auto source = static_cast<size_t>(head % from.q_heads);
    if (!recorded.alibi_slopes.empty()) alibi_.as<float>()[head] = recorded.alibi_slopes[source];
    if (!recorded.sinks.empty()) sinks_.as<float>()[head] = recorded.sinks[source];
  }
  for (int seq = 0; seq < num_seqs(); ++seq) {
    for (int head = 0; head < spec_.kv_heads; ++head) {
      const size_t source = static_cast<size_t>(seq_id(seq)) * static_cast<size_t>(from.kv_heads) +
                            static_cast<size_t>(head % from.kv_heads);
      if (!recorded.k_descale.empty()) k_descale(seq, head) = recorded.k_descale[source];
      if (!recorded.v_descale.empty()) v_descale(seq, head) = recorded.v_descale[source];
    }
  }
}

void AttentionBatch::FillQ(const QueryFn& value) {
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

void AttentionBatch::UProbe() {
  FillK([](int, int, int, int) { return 0.0f; });
  FillV([](int, int key, int, int) { return static_cast<float>(key); });
}

int64_t AttentionBatch::KeyIndex(bool value, int seq, int key, int kv_head) {
  if (spec_.layout == KvLayout::kContiguous) {
    const int64_t token = contiguous_.k_begin[static_cast<size_t>(seq)] + int64_t{key};
    return value ? token * contiguous_.v_token_stride + kv_head * contiguous_.v_head_stride
                 : token * contiguous_.k_token_stride + kv_head * contiguous_.k_head_stride;
  }
  const KvPages& pages = value ? paged_.v : paged_.k;
  return block_ids(seq)[key / spec_.block_size] * pages.block_stride + kv_head * pages.head_stride +
         (key % spec_.block_size) * pages.slot_stride;
}

void* AttentionBatch::KeyData(bool value) {
  if (spec_.layout == KvLayout::kContiguous) return const_cast<void*>(value ? contiguous_.v : contiguous_.k);
  return value ? paged_.v.data : paged_.k.data;
}

std::vector<float> AttentionBatch::Decoded(bool value, int seq, int kv_head) {
  const int dim = value ? spec_.v_head_dim : spec_.head_dim;
  std::vector<float> floats;
  floats.reserve(static_cast<size_t>(kv_len_[static_cast<size_t>(seq)]) * static_cast<size_t>(dim));
  for (int key = 0; key < kv_len_[static_cast<size_t>(seq)]; ++key) {
    const int64_t at = KeyIndex(value, seq, key, kv_head);
    for (int d = 0; d < dim; ++d) {
      floats.push_back(static_cast<float>(ReferenceElement(KeyData(value), spec_.kv_dtype, at + d)));
    }
  }
  return floats;
}

AttentionLengths AttentionBatch::lengths() {
  return {.q_begin = &q_begin_,
          .kv_len = kv_len_,
          .block_tables = {.ids = tables_.as<int32_t>(), .row_stride = table_width_, .num_seqs = num_seqs()},
          .owned = {}};
}

AttentionBatch::Output AttentionBatch::MakeOutput(float fill) const {
  Output output{.out = GuardedBytes(num_tokens() * out_token_stride() * BlockBytes(spec_.out_dtype)),
                .lse = GuardedBytes(int64_t{spec_.q_heads} * num_tokens() * 4),
                .out_token_stride = out_token_stride()};
  for (int64_t i = 0; i < num_tokens() * out_token_stride(); ++i) {
    EncodeElement(output.out.data(), spec_.out_dtype, i, fill);
  }
  for (int64_t i = 0; i < int64_t{spec_.q_heads} * num_tokens(); ++i) output.lse.as<float>()[i] = fill;
  return output;
}

AttentionParams AttentionBatch::Tensors(const Output& output) {
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
    if (options_.transposed_lse) params.lse.stride = {1, spec_.q_heads};
  }
  if (spec_.layout == KvLayout::kContiguous) {
    params.contiguous = &contiguous_;
  } else {
    params.paged = &paged_;
  }
  if (spec_.has_alibi) params.alibi_slopes = alibi_slopes();
  if (spec_.has_sinks) params.sinks = sinks();
  if (spec_.has_k_descale) params.k_descale = DescaleView(k_descale_);
  if (spec_.has_v_descale) params.v_descale = DescaleView(v_descale_);
  return params;
}

AttentionParams AttentionBatch::Params(const Output& output) {
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

float AttentionBatch::OutElement(const Output& output, int32_t token, int head, int d) const {
  return static_cast<float>(
      ReferenceElement(output.out.data(), spec_.out_dtype,
                       token * output.out_token_stride + head * int64_t{spec_.v_head_dim} + d));
}

float AttentionBatch::LseElement(const Output& output, int32_t token, int head) const {
  return output.lse.as<float>()[options_.transposed_lse ? token * int64_t{spec_.q_heads} + head
                                                        : head * int64_t{num_tokens()} + token];
}

bool AttentionBatch::PaddingUntouched(const Output& output, float fill) const {
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

void AttentionBatch::Poison(const GuardedBytes& bytes, DType dtype) const {
  const auto size = static_cast<size_t>(BlockBytes(dtype));
  for (int64_t i = 0; i < bytes.size() / BlockBytes(dtype); ++i) {
    if (i == 0) {
      EncodeElement(bytes.data(), dtype, i, options_.poison);
    } else {  // copy the encoded element
      std::memcpy(bytes.data() + static_cast<size_t>(i) * size, bytes.data(), size);
    }
  }
}

void AttentionBatch::MakeQueries() {
  q_ = GuardedBytes(num_tokens() * q_token_stride() * BlockBytes(spec_.q_dtype));
  Poison(q_, spec_.q_dtype);
}

void AttentionBatch::MakeContiguous() {
  int64_t total = 0;
  k_begin_ = GuardedBytes((num_seqs() + 1) * 4);
  for (int seq = 0; seq <= num_seqs(); ++seq) {
    k_begin_.as<int32_t>()[seq] = static_cast<int32_t>(total);
    if (seq < num_seqs()) total += kv_len_[static_cast<size_t>(seq)];
  }
  const int64_t bytes = BlockBytes(spec_.kv_dtype);
  // The last token ends with its last element: no padding follows it.
  const int64_t k_row = int64_t{spec_.kv_heads} * spec_.head_dim, k_token = k_row + options_.k_token_padding;
  contiguous_k_ = GuardedBytes((total > 0 ? (total - 1) * k_token + k_row : 0) * bytes);
  Poison(contiguous_k_, spec_.kv_dtype);
  contiguous_v_ = GuardedBytes(total * spec_.kv_heads * spec_.v_head_dim * bytes);
  contiguous_ = {.k = contiguous_k_.data(),
                 .v = contiguous_v_.data(),
                 .dtype = spec_.kv_dtype,
                 .k_token_stride = k_token,
                 .k_head_stride = spec_.head_dim,
                 .v_token_stride = int64_t{spec_.kv_heads} * spec_.v_head_dim,
                 .v_head_stride = spec_.v_head_dim,
                 .k_begin = {k_begin_.as<int32_t>(), static_cast<size_t>(num_seqs()) + 1}};
}

void AttentionBatch::MakePages() {
  const int size = spec_.block_size;
  int blocks = 1;  // block 0 belongs to nobody
  for (const int32_t kv_len : kv_len_) {
    const int needed = (kv_len + size - 1) / size;
    blocks += needed;
    table_width_ = std::max<int64_t>(table_width_, needed);
  }
  table_width_ += 1;  // one entry past the longest row, never read
  const int64_t num_blocks = blocks + 2;
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

void AttentionBatch::FillKv(bool is_value, const KeyValueFn& value) {
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

}  // namespace attest::conform
