// A batch for putting kernels on trial, with every tensor in an exact-size guarded buffer, and poison in
// everything that must not be read: slots past kv_len, blocks of nobody, block 0, unused table entries. Pages
// are shuffled.
//
// Every drawn number is a function of (seed, sequence id, absolute position, head, dim) alone: the same
// sequence holds the same numbers in any batch, at any place, however its prompt is cut into chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "attention/plan.h"
#include "conform/guarded_buffer.h"
#include "kernels/reference/attention_reference.h"

namespace attest::conform {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Writes the representable value nearest to `value`; NaN where the format has one (int8: 127).
void EncodeElement(void* data, DType dtype, int64_t index, float value);

// How many different descales there are; they are handed over through strides.
enum class DescaleShape { kPerSeqAndHead, kPerHead, kPerTensor };
[[nodiscard]] const char* DescaleShapeName(DescaleShape shape);

// The numbers of a call that was made, for a case that is cut from it: sequence ids are its sequences, and
// positions, heads and dims its own (taken modulo what it has, where the case has more).
struct RecordedNumbers {
  AttentionSpec spec = {};
  std::vector<int32_t> q_len = {}, kv_len = {};
  std::vector<std::vector<float>> q = {};             // of each sequence, [q_len, q_heads, head_dim]
  std::vector<std::vector<float>> k = {};             // [kv_len, kv_heads, head_dim]
  std::vector<std::vector<float>> v = {};             // [kv_len, kv_heads, v_head_dim]
  std::vector<float> alibi_slopes = {}, sinks = {};   // [q_heads] or empty
  std::vector<float> k_descale = {}, v_descale = {};  // [num_seqs, kv_heads] or empty
};

struct BatchOptions {
  uint32_t seed = 1;
  float poison = kNaN;          // fills everything that must not be read
  bool shuffle_pages = true;    // false: blocks 1, 2, 3, ... in order
  bool interleave_kv = false;   // paged NHD only: K and V of a block lie next to each other
  int q_token_padding = 0;      // extra elements between the rows of q and of out, as in a fused QKV tensor
  int k_token_padding = 0;      // contiguous only: extra elements between the tokens of K; V stays dense
  bool transposed_lse = false;  // LSE as [num_tokens, q_heads] seen through strides
  DescaleShape descale = DescaleShape::kPerSeqAndHead;
  int descale_padding = 0;            // extra floats between the rows of a (sequence, head) descale table
  std::vector<int32_t> seq_ids = {};  // whose numbers each sequence holds; empty: 0, 1, 2, ...
  std::shared_ptr<const RecordedNumbers> recorded = {};  // in place of drawn ones
};

// (seq, key, kv_head, dim) -> value
using KeyValueFn = std::function<float(int, int, int, int)>;
// (seq, row, q_head, dim) -> value
using QueryFn = std::function<float(int, int, int, int)>;

class AttentionBatch {
 public:
  AttentionBatch(const AttentionSpec& spec, const std::vector<int32_t>& q_lens, std::vector<int32_t> kv_lens,
                 const BatchOptions& options = {});
  AttentionBatch(const AttentionBatch&) = delete;
  AttentionBatch& operator=(const AttentionBatch&) = delete;
  AttentionBatch(AttentionBatch&&) = default;

  [[nodiscard]] const AttentionSpec& spec() const { return spec_; }
  [[nodiscard]] const BatchOptions& options() const { return options_; }
  [[nodiscard]] int num_seqs() const { return q_begin_.num_seqs(); }
  [[nodiscard]] int32_t num_tokens() const { return q_begin_.total(); }
  [[nodiscard]] const CuSeqlens& q_begin() const { return q_begin_; }
  [[nodiscard]] const std::vector<int32_t>& kv_len() const { return kv_len_; }
  [[nodiscard]] float* sinks() const { return sinks_.as<float>(); }
  [[nodiscard]] float* alibi_slopes() const { return alibi_.as<float>(); }
  // The descale of (seq, kv_head), where it lies.
  [[nodiscard]] float& k_descale(int seq, int kv_head) const { return DescaleAt(k_descale_, seq, kv_head); }
  [[nodiscard]] float& v_descale(int seq, int kv_head) const { return DescaleAt(v_descale_, seq, kv_head); }
  [[nodiscard]] PagedKv& paged() { return paged_; }
  // Contiguous only: K and V of one KV head elsewhere, `token_stride` elements between tokens of both.
  void UseContiguous(void* k, void* v, int64_t token_stride) {
    contiguous_.k = k;
    contiguous_.v = v;
    contiguous_.k_token_stride = contiguous_.v_token_stride = token_stride;
  }
  [[nodiscard]] int32_t* block_ids(int seq) { return tables_.as<int32_t>() + seq * table_width_; }
  [[nodiscard]] int64_t table_width() const { return table_width_; }

  // Near-normal Q, K and V (8-bit formats: of a size they can hold).
  void FillRandom();
  void FillK(const KeyValueFn& value) { FillKv(false, value); }
  void FillV(const KeyValueFn& value) { FillKv(true, value); }
  void FillQ(const QueryFn& value);
  // The uniform probe: every visible key has the same weight and V[j] = j in every dim.
  void UProbe();

  // Element index of (seq, key, kv_head, dim 0) in the K or V memory.
  [[nodiscard]] int64_t KeyIndex(bool value, int seq, int key, int kv_head);
  [[nodiscard]] void* KeyData(bool value);
  // All keys of one sequence and KV head as the floats they hold: [kv_len, dim].
  [[nodiscard]] std::vector<float> Decoded(bool value, int seq, int kv_head);

  [[nodiscard]] AttentionLengths lengths();

  struct Output {
    GuardedBytes out, lse;
    int64_t out_token_stride = 0;
  };
  // A fresh output and LSE filled with `fill`.
  [[nodiscard]] Output MakeOutput(float fill) const;
  // Tensors and optional inputs; AttendParams fills in the rest from the plan.
  [[nodiscard]] AttentionParams Tensors(const Output& output);
  // Everything, as a kernel or the oracle would receive it.
  [[nodiscard]] AttentionParams Params(const Output& output);
  [[nodiscard]] float OutElement(const Output& output, int32_t token, int head, int d) const;
  [[nodiscard]] float LseElement(const Output& output, int32_t token, int head) const;
  // Elements of out that no view covers (the padding between rows) still hold `fill`.
  [[nodiscard]] bool PaddingUntouched(const Output& output, float fill) const;

 private:
  [[nodiscard]] int64_t q_token_stride() const {
    return int64_t{spec_.q_heads} * spec_.head_dim + options_.q_token_padding;
  }
  [[nodiscard]] int64_t out_token_stride() const {
    return int64_t{spec_.q_heads} * spec_.v_head_dim + options_.q_token_padding;
  }
  [[nodiscard]] uint64_t seq_id(int seq) const {
    return options_.seq_ids.empty() ? static_cast<uint64_t>(seq)
                                    : static_cast<uint64_t>(options_.seq_ids[static_cast<size_t>(seq)]);
  }
  [[nodiscard]] KvDescale DescaleView(const GuardedBytes& bytes) const;
  [[nodiscard]] float& DescaleAt(const GuardedBytes& bytes, int seq, int kv_head) const;
  [[nodiscard]] GuardedBytes MakeDescales(uint64_t tag) const;
  void Poison(const GuardedBytes& bytes, DType dtype) const;
  void FillRecorded(const RecordedNumbers& recorded);
  void MakeQueries();
  void MakeContiguous();
  void MakePages();
  void FillKv(bool is_value, const KeyValueFn& value);

  AttentionSpec spec_;
  std::vector<int32_t> kv_len_;
  CuSeqlens q_begin_;
  BatchOptions options_;
  std::mt19937 random_;  // page order only
  GuardedBytes q_, pages_k_, pages_v_, contiguous_k_, contiguous_v_, k_begin_, tables_;
  GuardedBytes alibi_, sinks_, k_descale_, v_descale_;
  int64_t table_width_ = 0;
  PagedKv paged_;
  ContiguousKv contiguous_;
};

}  // namespace attest::conform
