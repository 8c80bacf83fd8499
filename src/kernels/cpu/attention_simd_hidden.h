// A NaN or an infinity in V reaches the rows that see its key and no other. The product of a tile gives a
// hidden key the weight 0, and 0 times NaN is NaN: before it, V rows that hold such a value are set aside
// when some row of the tile does not see their key (zeros stand in for them), and after it they are added to
// the rows that do. Only keys at the masked edge of a tile are looked at, once per tile: one pass over their
// V rows, about 1/2R of the arithmetic on them for R rows. (K needs none of this: scores of hidden keys are
// replaced, not multiplied.)
//
// Include only from files compiled for the instruction set.
#pragma once

#include "kernels/cpu/attention_simd_tile.h"
#include "kernels/cpu/attention_simd_vec.h"
#include "kernels/cpu/kernel_check.h"

namespace attest {
namespace {

// Stands in for a V row.
template <class KvT>
alignas(64) constexpr KvT kZeroRow[kMaxTileHeadDim] = {};

inline float ValueOf(float value) { return value; }
inline float ValueOf(Bf16Bits value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  __builtin_memcpy(&result, &bits, 4);
  return result;
}

inline float ValueOf(F16Bits value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t exponent = value.bits >> 10 & 31u, fraction = value.bits & 0x3ffu;
  uint32_t bits = (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
  if (exponent == 0) {
    const float small = static_cast<float>(fraction) * 0x1p-24f;
    __builtin_memcpy(&bits, &small, 4);
  }
  bits |= sign;
  float result;
  __builtin_memcpy(&result, &bits, 4);
  return result;
}
inline float ValueOf(E5M2Bits value) { return ValueOf(F16Bits{static_cast<uint16_t>(value.bits << 8)}); }
inline float ValueOf(E4M3Bits value) {
  if ((value.bits & 0x7f) == 0x7f) return __builtin_nanf("");
  const auto half = static_cast<uint16_t>((value.bits & 0x80) << 8 | (value.bits & 0x7f) << 7);
  return ValueOf(F16Bits{half}) * kE4M3FromHalf;
}
inline float ValueOf(I8Value value) { return static_cast<float>(value.value); }

// Whether a row holds a NaN or an infinity. Integers without branches: compilers make vectors of them.
inline bool IsFinite(const float* row, int dim) {
  uint32_t special = 0;
  for (int d = 0; d < dim; ++d) {
    uint32_t bits;
    __builtin_memcpy(&bits, row + d, 4);
    special |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return special == 0;
}
inline bool IsFinite(const Bf16Bits* row, int dim) {
  uint16_t special = 0;
  for (int d = 0; d < dim; ++d) special |= (row[d] & 0x7f80u) == 0x7f80u ? 1u : 0u;
  return special == 0;
}

inline bool IsFinite(const F16Bits* row, int dim) {
  uint16_t special = 0;
  for (int d = 0; d < dim; ++d) special |= (row[d].bits & 0x7c00u) == 0x7c00u ? 1u : 0u;
  return special == 0;
}
inline bool IsFinite(const E4M3Bits* row, int dim) {
  uint8_t special = 0;
  for (int d = 0; d < dim; ++d) special |= (row[d].bits & 0x7fu) == 0x7fu ? 1u : 0u;
  return special == 0;
}
inline bool IsFinite(const E5M2Bits* row, int dim) {
  uint8_t special = 0;
  for (int d = 0; d < dim; ++d) special |= (row[d].bits & 0x7cu) == 0x7cu ? 1u : 0u;
  return special == 0;
}
inline bool IsFinite(const I8Value* /*row*/, int /*dim*/) { return true; }

// Calls fn with a null pointer to the type that the stored values have here.
template <class Fn>
void WithKvType(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(static_cast<const float*>(nullptr));
    case DType::kBF16:
      return fn(static_cast<const Bf16Bits*>(nullptr));
    case DType::kF16:
      return fn(static_cast<const F16Bits*>(nullptr));
    case DType::kF8E4M3:
      return fn(static_cast<const E4M3Bits*>(nullptr));
    case DType::kF8E5M2:
      return fn(static_cast<const E5M2Bits*>(nullptr));
    case DType::kI8:
      return fn(static_cast<const I8Value*>(nullptr));
    default:
      ATTEST_KERNEL_CHECK(static_cast<int>(dtype), ==, -1);  // the contracts refuse the others
  }
}

// The same for the types whose values are bf16 values.
template <class Fn>
void WithBf16KvType(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kBF16:
      return fn(static_cast<const Bf16Bits*>(nullptr));
    case DType::kF8E4M3:
      return fn(static_cast<const E4M3Bits*>(nullptr));
    case DType::kF8E5M2:
      return fn(static_cast<const E5M2Bits*>(nullptr));
    case DType::kI8:
      return fn(static_cast<const I8Value*>(nullptr));
    default:
      ATTEST_KERNEL_CHECK(static_cast<int>(dtype), ==, -1);
  }
}

// V rows of one block of at most kKeys keys that were set aside.
template <class KvT, int kKeys>
class HiddenValues {
 public:
  int count = 0;
  int keys[kKeys];  // within the block, ascending
  const KvT* rows[kKeys];

  // Puts zeros for the V rows (of keys first, first + 1, ...) that must not be multiplied.
  void SetAside(const AttentionTile& t, int32_t first, int num_keys, const KvT** v) {
    if (first < t.common_begin || first + num_keys > t.common_end) SetAsideEdge(t, first, num_keys, v);
  }

 private:
  // Not inlined: decode loops are short of registers, and most blocks have no edge.
  [[gnu::noinline]] void SetAsideEdge(const AttentionTile& t, int32_t first, int num_keys, const KvT** v) {
    const int common_begin = MinInt(MaxInt(t.common_begin - first, 0), num_keys);
    const int common_end = MaxInt(MinInt(t.common_end - first, num_keys), common_begin);
    for (int key = 0; key < num_keys; ++key) {
      if (key == common_begin) key = common_end;  // every row sees these
      if (key >= num_keys) return;
      if (IsFinite(v[key], t.v_head_dim)) continue;
      keys[count] = key;
      rows[count++] = v[key];
      v[key] = kZeroRow<KvT>;
    }
  }
};

}  // namespace
}  // namespace attest
