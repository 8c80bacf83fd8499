// The AVX-512 (with BF16, VBMI, VNNI) and AMX instructions that the kernels use, in portable C++: what
// <immintrin.h> calls them, exact to their documented arithmetic, in every lane and for every value but the
// payload of NaNs. Kernels compiled with it (tests/emulated/CMakeLists.txt) run on any x86-64 machine,
// many times slower; emulation_test.cc compares it with the instructions where the machine has them.
//
// Arithmetic that is not plain IEEE:
// - fused multiply-adds round once;
// - vdpbf16ps and tdpbf16ps treat subnormal inputs as zero, flush subnormal results to zero, round to nearest
//   even and ignore MXCSR; each product is fused with its addition. vdpbf16ps adds the odd pair, then the
//   even. tdpbf16ps sums all even and all odd products of a row apart, from zero, then adds their sum to the
//   tile;
// - a tile is 16 rows of 64 bytes; using one that is not configured is the fault of the instruction (#UD) and
//   stops the process here.
#pragma once

#if !defined(__GNUC__)
#error "written over the vector extension of GCC and clang"
#endif

#include <cstdint>

#include "kernels/cpu/kernel_check.h"

#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
#define _CMP_LT_OQ 17
#define _CMP_GT_OQ 30
#define _CMP_NLT_UQ 21

namespace attest {
namespace {

#define ATTEST_EMULATED [[maybe_unused]] static

using __m128 = float __attribute__((vector_size(16)));
using __m256 = float __attribute__((vector_size(32)));
using __m512 = float __attribute__((vector_size(64)));
using __m128i = long long __attribute__((vector_size(16)));
using __m256i = long long __attribute__((vector_size(32)));
using __m512i = long long __attribute__((vector_size(64)));
using __m128bh = short __attribute__((vector_size(16)));
using __m512bh = short __attribute__((vector_size(64)));
using __mmask16 = uint16_t;
using __mmask32 = uint32_t;
using __mmask64 = uint64_t;

// The same bits as lanes of another type.
using I32x4 = int32_t __attribute__((vector_size(16)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using I32x16 = int32_t __attribute__((vector_size(64)));
using U32x16 = uint32_t __attribute__((vector_size(64)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using I16x16 = int16_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
using U16x16 = uint16_t __attribute__((vector_size(32)));
using I16x32 = int16_t __attribute__((vector_size(64)));
using U16x32 = uint16_t __attribute__((vector_size(64)));
using I8x16 = int8_t __attribute__((vector_size(16)));
using U8x16 = uint8_t __attribute__((vector_size(16)));
using I8x32 = int8_t __attribute__((vector_size(32)));
using U8x64 = uint8_t __attribute__((vector_size(64)));
using F64x16 = double __attribute__((vector_size(128)));
using I64x16 = int64_t __attribute__((vector_size(128)));

template <class V>
ATTEST_EMULATED V ReadVector(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
template <class V>
ATTEST_EMULATED void WriteVector(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

// ---- memory, constants ------------------------------------------------------------------------------------

ATTEST_EMULATED void _mm_prefetch(const void*, int) {}
ATTEST_EMULATED void _mm_storeu_ps(float* to, __m128 a) { WriteVector(to, a); }
ATTEST_EMULATED __m128i _mm_loadu_si128(const __m128i* from) { return ReadVector<__m128i>(from); }
ATTEST_EMULATED __m128i _mm_cvtsi32_si128(int a) { return (__m128i)I32x4{a, 0, 0, 0}; }
ATTEST_EMULATED __m256 _mm256_loadu_ps(const float* from) { return ReadVector<__m256>(from); }
ATTEST_EMULATED void _mm256_storeu_ps(float* to, __m256 a) { WriteVector(to, a); }
ATTEST_EMULATED __m256i _mm256_loadu_si256(const __m256i* from) { return ReadVector<__m256i>(from); }
ATTEST_EMULATED void _mm256_storeu_si256(__m256i* to, __m256i a) { WriteVector(to, a); }
ATTEST_EMULATED __m256 _mm256_set1_ps(float a) { return a - __m256{}; }
ATTEST_EMULATED __m512 _mm512_loadu_ps(const float* from) { return ReadVector<__m512>(from); }
ATTEST_EMULATED void _mm512_storeu_ps(float* to, __m512 a) { WriteVector(to, a); }
ATTEST_EMULATED __m512i _mm512_loadu_si512(const void* from) { return ReadVector<__m512i>(from); }
ATTEST_EMULATED void _mm512_storeu_si512(void* to, __m512i a) { WriteVector(to, a); }
ATTEST_EMULATED void RequireAligned(const void* p) {  // a fault of the instruction
  ATTEST_KERNEL_CHECK(reinterpret_cast<uintptr_t>(p) % 64, ==, 0);
}
ATTEST_EMULATED __m512 _mm512_load_ps(const float* from) {
  RequireAligned(from);
  return ReadVector<__m512>(from);
}
ATTEST_EMULATED void _mm512_store_ps(float* to, __m512 a) {
  RequireAligned(to);
  WriteVector(to, a);
}
ATTEST_EMULATED __m512i _mm512_load_si512(const void* from) {
  RequireAligned(from);
  return ReadVector<__m512i>(from);
}
ATTEST_EMULATED void _mm512_store_si512(void* to, __m512i a) {
  RequireAligned(to);
  WriteVector(to, a);
}
ATTEST_EMULATED __m512 _mm512_setzero_ps() { return __m512{}; }
ATTEST_EMULATED __m512i _mm512_setzero_si512() { return __m512i{}; }
ATTEST_EMULATED __m512 _mm512_set1_ps(float a) {
  __m512 v;
  for (int i = 0; i < 16; ++i) v[i] = a;  // not a - 0: that would quiet a NaN
  return v;
}
ATTEST_EMULATED __m512i _mm512_set1_epi32(int a) { return (__m512i)(a - I32x16{}); }
ATTEST_EMULATED __m512i _mm512_set1_epi16(short a) { return (__m512i)(a - I16x32{}); }
ATTEST_EMULATED __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i,
                                          int j, int k, int l, int m, int n, int o, int p) {
  return (__m512i)I32x16{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
}
// Lanes that the mask leaves out are not touched in memory.
ATTEST_EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* from) {
  __m512 v{};
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) v[i] = from[i];
  }
  return v;
}
ATTEST_EMULATED void _mm512_mask_storeu_ps(float* to, __mmask16 mask, __m512 a) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) to[i] = a[i];
  }
}

ATTEST_EMULATED __m512i _mm512_castps_si512(__m512 a) { return (__m512i)a; }
ATTEST_EMULATED __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }
ATTEST_EMULATED __m256 _mm512_castps512_ps256(__m512 a) { return ReadVector<__m256>(&a); }
ATTEST_EMULATED __m256 _mm512_extractf32x8_ps(__m512 a, int half) {
  __m256 parts[2];
  WriteVector(parts, a);
  return parts[half];
}
ATTEST_EMULATED __m128 _mm256_castps256_ps128(__m256 a) { return ReadVector<__m128>(&a); }
ATTEST_EMULATED __m128 _mm256_extractf128_ps(__m256 a, int half) {
  __m128 parts[2];
  WriteVector(parts, a);
  return parts[half];
}

// ---- f32 arithmetic ---------------------------------------------------------------------------------------

ATTEST_EMULATED __m128 _mm_add_ps(__m128 a, __m128 b) { return a + b; }
ATTEST_EMULATED __m256 _mm256_add_ps(__m256 a, __m256 b) { return a + b; }
ATTEST_EMULATED __m256 _mm256_mul_ps(__m256 a, __m256 b) { return a * b; }
ATTEST_EMULATED __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
ATTEST_EMULATED __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
ATTEST_EMULATED __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
ATTEST_EMULATED __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
ATTEST_EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }  // b when either is NaN

// The double nearest to a * b + c, moved to the one of its two neighbours that is odd when it is not exact:
// rounding that to float rounds once (53 bits are more than 24 + 2 of each side).
ATTEST_EMULATED __m512 FusedMultiplyAdd(__m512 a, __m512 b, __m512 c) {
  const F64x16 product = __builtin_convertvector(a, F64x16) * __builtin_convertvector(b, F64x16);
  const F64x16 addend = __builtin_convertvector(c, F64x16);
  const F64x16 sum = product + addend;
  const F64x16 part = sum - product;
  const F64x16 error = (product - (sum - part)) + (addend - part);  // exact; NaN where sum is not finite
  const I64x16 bits = (I64x16)sum;
  const I64x16 inexact = (error < 0.0) | (error > 0.0);
  const I64x16 move = inexact & ((bits & 1) - 1);  // where the sum is even
  const I64x16 outward = (error > 0.0) == (sum > 0.0);
  const I64x16 odd = bits + (move & (outward ? I64x16{} + 1 : I64x16{} - 1));
  return __builtin_convertvector((F64x16)odd, __m512);
}
ATTEST_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { return FusedMultiplyAdd(a, b, c); }
ATTEST_EMULATED __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) { return FusedMultiplyAdd(a, b, -c); }
ATTEST_EMULATED __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return FusedMultiplyAdd(-a, b, c); }

// In the order of <immintrin.h>: halves, then quarters.
ATTEST_EMULATED float _mm512_reduce_add_ps(__m512 a) {
  const __m256 half = _mm512_extractf32x8_ps(a, 1) + _mm512_extractf32x8_ps(a, 0);
  const __m128 quarter = _mm256_extractf128_ps(half, 1) + _mm256_extractf128_ps(half, 0);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}
ATTEST_EMULATED float _mm512_reduce_max_ps(__m512 a) {
  const auto max = [](auto x, auto y) { return x > y ? x : y; };
  const __m256 half = max(_mm512_extractf32x8_ps(a, 1), _mm512_extractf32x8_ps(a, 0));
  const __m128 quarter = max(_mm256_extractf128_ps(half, 1), _mm256_extractf128_ps(half, 0));
  return max(max(quarter[0], quarter[2]), max(quarter[1], quarter[3]));
}

ATTEST_EMULATED __m512 _mm512_andnot_ps(__m512 a, __m512 b) { return (__m512)(~(__m512i)a & (__m512i)b); }
ATTEST_EMULATED __m512 _mm512_and_ps(__m512 a, __m512 b) { return (__m512)((__m512i)a & (__m512i)b); }
ATTEST_EMULATED __m512 _mm512_or_ps(__m512 a, __m512 b) { return (__m512)((__m512i)a | (__m512i)b); }

// ---- masks ------------------------------------------------------------------------------------------------

ATTEST_EMULATED __mmask16 MaskOf(I32x16 lanes) {  // lanes are 0 or -1
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<unsigned>(lanes[i] != 0) << i;
  return static_cast<__mmask16>(mask);
}
ATTEST_EMULATED I32x16 LanesOf(__mmask16 mask) {
  I32x16 lanes;
  for (int i = 0; i < 16; ++i) lanes[i] = -(mask >> i & 1);
  return lanes;
}
ATTEST_EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  if (predicate == _CMP_LT_OQ) return MaskOf(a < b);
  if (predicate == _CMP_GT_OQ) return MaskOf(a > b);
  ATTEST_KERNEL_CHECK(predicate, ==, _CMP_NLT_UQ);
  return MaskOf(~(a < b));
}
ATTEST_EMULATED __mmask16 _mm512_cmple_epi32_mask(__m512i a, __m512i b) {
  return MaskOf((I32x16)a <= (I32x16)b);
}
ATTEST_EMULATED __mmask16 _mm512_cmpge_epi32_mask(__m512i a, __m512i b) {
  return MaskOf((I32x16)a >= (I32x16)b);
}
ATTEST_EMULATED __mmask16 _mm512_mask_cmpgt_epi32_mask(__mmask16 mask, __m512i a, __m512i b) {
  return static_cast<__mmask16>(mask & MaskOf((I32x16)a > (I32x16)b));
}
ATTEST_EMULATED __mmask16 _mm512_mask_cmplt_epi32_mask(__mmask16 mask, __m512i a, __m512i b) {
  return static_cast<__mmask16>(mask & MaskOf((I32x16)a < (I32x16)b));
}
ATTEST_EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 clear, __m512 set) {
  return LanesOf(mask) ? set : clear;
}
ATTEST_EMULATED __m512 _mm512_mask_mov_ps(__m512 clear, __mmask16 mask, __m512 set) {
  return LanesOf(mask) ? set : clear;
}
ATTEST_EMULATED __m512i _mm512_mask_blend_epi16(__mmask32 mask, __m512i clear, __m512i set) {
  I16x32 v = (I16x32)clear;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) v[i] = ((I16x32)set)[i];
  }
  return (__m512i)v;
}

// ---- integers ---------------------------------------------------------------------------------------------

ATTEST_EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
ATTEST_EMULATED __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
ATTEST_EMULATED __m256i _mm256_or_si256(__m256i a, __m256i b) { return a | b; }
ATTEST_EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((U32x16)a + (U32x16)b); }
ATTEST_EMULATED __m512i _mm512_sub_epi32(__m512i a, __m512i b) { return (__m512i)((U32x16)a - (U32x16)b); }
ATTEST_EMULATED __m512i _mm512_sub_epi16(__m512i a, __m512i b) { return (__m512i)((U16x32)a - (U16x32)b); }
ATTEST_EMULATED __m512i _mm512_max_epi16(__m512i a, __m512i b) {
  return (__m512i)((I16x32)a > (I16x32)b ? (I16x32)a : (I16x32)b);
}
// Counts below the lane's width only, as the kernels use them.
ATTEST_EMULATED __m512i _mm512_slli_epi32(__m512i a, unsigned n) { return (__m512i)((U32x16)a << n); }
ATTEST_EMULATED __m512i _mm512_srli_epi32(__m512i a, unsigned n) { return (__m512i)((U32x16)a >> n); }
ATTEST_EMULATED __m512i _mm512_srai_epi32(__m512i a, unsigned n) {
  return (__m512i)((I32x16)a >> static_cast<int>(n));
}
ATTEST_EMULATED __m512i _mm512_slli_epi16(__m512i a, unsigned n) {
  return (__m512i)((U16x32)a << static_cast<uint16_t>(n));
}
ATTEST_EMULATED __m512i _mm512_srli_epi16(__m512i a, unsigned n) {
  return (__m512i)((U16x32)a >> static_cast<uint16_t>(n));
}
ATTEST_EMULATED __m512i _mm512_srl_epi32(__m512i a, __m128i n) {
  return _mm512_srli_epi32(a, static_cast<unsigned>(n[0]));
}
ATTEST_EMULATED __m256i _mm256_slli_epi32(__m256i a, int n) {
  return (__m256i)((U32x8)a << static_cast<unsigned>(n));
}

ATTEST_EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return (__m512i) __builtin_convertvector((U16x16)a, U32x16);
}
ATTEST_EMULATED __m256i _mm256_cvtepu16_epi32(__m128i a) {
  return (__m256i) __builtin_convertvector((U16x8)a, U32x8);
}
ATTEST_EMULATED __m256i _mm256_and_si256(__m256i a, __m256i b) { return a & b; }
ATTEST_EMULATED __m256i _mm256_set1_epi16(short a) { return (__m256i)(a - I16x16{}); }
ATTEST_EMULATED __m256i _mm256_cmpeq_epi16(__m256i a, __m256i b) { return (__m256i)((I16x16)a == (I16x16)b); }
ATTEST_EMULATED __m256i _mm256_slli_epi16(__m256i a, int n) {
  return (__m256i)((U16x16)a << static_cast<uint16_t>(n));
}
ATTEST_EMULATED __m256i _mm256_cvtepi8_epi16(__m128i a) {
  return (__m256i) __builtin_convertvector((I8x16)a, I16x16);
}
ATTEST_EMULATED __m256i _mm256_cvtepu8_epi16(__m128i a) {
  return (__m256i) __builtin_convertvector((U8x16)a, U16x16);
}
ATTEST_EMULATED __m512i _mm512_cvtepi8_epi16(__m256i a) {
  return (__m512i) __builtin_convertvector((I8x32)a, I16x32);
}
ATTEST_EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
  return (__m512i) __builtin_convertvector((I8x16)a, I32x16);
}
ATTEST_EMULATED __m512 _mm512_cvtepi32_ps(__m512i a) { return __builtin_convertvector((I32x16)a, __m512); }
// To nearest even; what does not fit, NaN too, is INT_MIN.
ATTEST_EMULATED __m512i _mm512_cvtps_epi32(__m512 a) {
  I32x16 v;
  for (int i = 0; i < 16; ++i) {
    v[i] = a[i] >= -0x1p31f && a[i] < 0x1p31f ? static_cast<int32_t>(__builtin_lrintf(a[i])) : INT32_MIN;
  }
  return (__m512i)v;
}
ATTEST_EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
  const U32x16 half = __builtin_convertvector((U16x16)a, U32x16);
  const U32x16 fields = (half & 0x7fffu) << 13;
  const __m512 rebased = (__m512)fields * 0x1p112f;  // exact, subnormals too
  const U32x16 special = (U32x16)((half & 0x7c00u) == 0x7c00u);
  const U32x16 quiet = (U32x16)((half & 0x3ffu) != 0u) & (special & 0x400000u);
  const U32x16 magnitude = (special & (fields | 0x7f800000u | quiet)) | (~special & (U32x16)rebased);
  return (__m512)(magnitude | ((half & 0x8000u) << 16));
}
// Pairs of products of 16-bit integers, added in 32 bits that wrap.
ATTEST_EMULATED __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
  const auto low = [](__m512i x) { return (U32x16)((I32x16)((U32x16)x << 16) >> 16); };
  const auto high = [](__m512i x) { return (U32x16)((I32x16)x >> 16); };
  return (__m512i)((U32x16)sum + low(a) * low(b) + high(a) * high(b));
}

// ---- moving lanes -----------------------------------------------------------------------------------------

// Each 128-bit lane of the result takes lanes of four 4-byte words from a, then from b.
template <class V>
ATTEST_EMULATED V Unpack(V a, V b, int first) {
  V v;
  for (unsigned i = 0; i < sizeof(V) / 4; i += 4) {
    v[i] = a[i + first], v[i + 1] = b[i + first];
    v[i + 2] = a[i + first + 1], v[i + 3] = b[i + first + 1];
  }
  return v;
}
template <class V>
ATTEST_EMULATED V Shuffle(V a, V b, unsigned selector) {
  V v;
  for (unsigned i = 0; i < sizeof(V) / 4; i += 4) {
    v[i] = a[i + (selector & 3)], v[i + 1] = a[i + (selector >> 2 & 3)];
    v[i + 2] = b[i + (selector >> 4 & 3)], v[i + 3] = b[i + (selector >> 6 & 3)];
  }
  return v;
}
ATTEST_EMULATED __m256 _mm256_unpacklo_ps(__m256 a, __m256 b) { return Unpack(a, b, 0); }
ATTEST_EMULATED __m256 _mm256_unpackhi_ps(__m256 a, __m256 b) { return Unpack(a, b, 2); }
ATTEST_EMULATED __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) { return Unpack(a, b, 0); }
ATTEST_EMULATED __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) { return Unpack(a, b, 2); }
ATTEST_EMULATED __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
  return (__m512i)Unpack((I32x16)a, (I32x16)b, 0);
}
ATTEST_EMULATED __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
  return (__m512i)Unpack((I32x16)a, (I32x16)b, 2);
}
ATTEST_EMULATED __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
  return __m512i{a[0], b[0], a[2], b[2], a[4], b[4], a[6], b[6]};
}
ATTEST_EMULATED __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
  return __m512i{a[1], b[1], a[3], b[3], a[5], b[5], a[7], b[7]};
}
ATTEST_EMULATED __m256 _mm256_shuffle_ps(__m256 a, __m256 b, unsigned selector) {
  return Shuffle(a, b, selector);
}
ATTEST_EMULATED __m512 _mm512_shuffle_ps(__m512 a, __m512 b, unsigned selector) {
  return Shuffle(a, b, selector);
}
// Quarters 0 and 1 of the result from a, 2 and 3 from b.
ATTEST_EMULATED __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, unsigned selector) {
  __m128i from_a[4], from_b[4], to[4];
  WriteVector(from_a, a);
  WriteVector(from_b, b);
  to[0] = from_a[selector & 3], to[1] = from_a[selector >> 2 & 3];
  to[2] = from_b[selector >> 4 & 3], to[3] = from_b[selector >> 6 & 3];
  return ReadVector<__m512i>(to);
}
// Halves of the four halves a, a, b, b; the kernels never ask for a zeroed one.
ATTEST_EMULATED __m256 _mm256_permute2f128_ps(__m256 a, __m256 b, unsigned selector) {
  __m128 from[4], to[2];
  WriteVector(from, a);
  WriteVector(from + 2, b);
  to[0] = from[selector & 3], to[1] = from[selector >> 4 & 3];
  return ReadVector<__m256>(to);
}
ATTEST_EMULATED __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b) {
  __m512 v;
  for (int i = 0; i < 16; ++i) {
    const int at = ((I32x16)index)[i];
    v[i] = (at & 16) == 0 ? a[at & 15] : b[at & 15];
  }
  return v;
}
ATTEST_EMULATED __m512i _mm512_maskz_permutex2var_epi8(__mmask64 mask, __m512i a, __m512i index, __m512i b) {
  U8x64 v{};
  for (int i = 0; i < 64; ++i) {
    const int at = ((U8x64)index)[i];
    if ((mask >> i & 1) != 0) v[i] = (at & 64) == 0 ? ((U8x64)a)[at & 63] : ((U8x64)b)[at & 63];
  }
  return (__m512i)v;
}

// ---- bf16 -------------------------------------------------------------------------------------------------

// To nearest even; subnormal inputs are zero; a NaN stays one and becomes quiet.
ATTEST_EMULATED uint16_t RoundToBf16(float a) {
  uint32_t bits;
  __builtin_memcpy(&bits, &a, 4);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  if (magnitude < 0x00800000u) return static_cast<uint16_t>(bits >> 16 & 0x8000u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
ATTEST_EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  U16x32 v;
  for (int i = 0; i < 16; ++i) v[i] = RoundToBf16(low[i]), v[16 + i] = RoundToBf16(high[i]);
  return (__m512bh)v;
}
ATTEST_EMULATED __m128bh _mm256_cvtneps_pbh(__m256 a) {
  U16x8 v;
  for (int i = 0; i < 8; ++i) v[i] = RoundToBf16(a[i]);
  return (__m128bh)v;
}

// Subnormal lanes become zeros of their sign.
ATTEST_EMULATED __m512 FlushSubnormals(__m512 a) {
  const I32x16 bits = (I32x16)a;
  const I32x16 is_subnormal = (bits & 0x7f800000) == 0;
  return (__m512)(is_subnormal ? bits & INT32_MIN : bits);
}
ATTEST_EMULATED __m512 EvenValues(__m512i pairs) { return FlushSubnormals((__m512)((U32x16)pairs << 16)); }
ATTEST_EMULATED __m512 OddValues(__m512i pairs) {
  return FlushSubnormals((__m512)((U32x16)pairs & 0xffff0000u));
}
// sum + a * b, rounded once: the product of two bf16 has 16 bits, so it and what of it matters beside a sum
// of 24 bits are exact in double. Inputs are flushed already.
ATTEST_EMULATED __m512 AddProductBf16(__m512 sum, __m512 a, __m512 b) {
  const F64x16 product = __builtin_convertvector(a, F64x16) * __builtin_convertvector(b, F64x16);
  return FlushSubnormals(__builtin_convertvector(product + __builtin_convertvector(sum, F64x16), __m512));
}
ATTEST_EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  sum = AddProductBf16(FlushSubnormals(sum), OddValues((__m512i)a), OddValues((__m512i)b));
  return AddProductBf16(sum, EvenValues((__m512i)a), EvenValues((__m512i)b));
}

// ---- tiles ------------------------------------------------------------------------------------------------

struct EmulatedTiles {
  bool configured = false;
  alignas(64) uint32_t words[8][16][16];
};
inline EmulatedTiles& TilesOfThread() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

template <class TileConfig>
void LoadTileConfig(const TileConfig* config) {
  RequireAligned(config);
  ATTEST_KERNEL_CHECK(config->palette, ==, 1);
  for (int tile = 0; tile < 8; ++tile) {  // the only shape the kernels use, and the only one emulated
    ATTEST_KERNEL_CHECK(config->column_bytes[tile], ==, 64);
    ATTEST_KERNEL_CHECK(config->rows[tile], ==, 16);
  }
  EmulatedTiles& tiles = TilesOfThread();
  tiles.configured = true;
  __builtin_memset(tiles.words, 0, sizeof(tiles.words));
}
[[maybe_unused]] inline void ReleaseTiles() { TilesOfThread().configured = false; }

template <int kTile>
struct AmxTile {
  static_assert(kTile >= 0 && kTile < 8);
  static uint32_t (*Words())[16] {
    EmulatedTiles& tiles = TilesOfThread();
    ATTEST_KERNEL_CHECK(tiles.configured, ==, true);
    return tiles.words[kTile];
  }
  static void Zero() { __builtin_memset(Words(), 0, 1024); }
  static void Load(const void* from, int64_t row_bytes) {
    uint32_t(*words)[16] = Words();
    for (int row = 0; row < 16; ++row) {
      __builtin_memcpy(words[row], static_cast<const char*>(from) + row * row_bytes, 64);
    }
  }
  static void Store(void* to, int64_t row_bytes) {
    const uint32_t(*words)[16] = Words();
    for (int row = 0; row < 16; ++row) {
      __builtin_memcpy(static_cast<char*>(to) + row * row_bytes, words[row], 64);
    }
  }
  template <int kA, int kB>
  static void AddDotBf16() {
    static_assert(kTile != kA && kTile != kB && kA != kB && kA < 8 && kB < 8);
    const uint32_t(*a)[16] = AmxTile<kA>::Words();
    const uint32_t(*b)[16] = AmxTile<kB>::Words();
    uint32_t(*c)[16] = Words();
    __m512 b_even[16];
    __m512 b_odd[16];
    for (int pair = 0; pair < 16; ++pair) {
      b_even[pair] = EvenValues(_mm512_loadu_si512(b[pair]));
      b_odd[pair] = OddValues(_mm512_loadu_si512(b[pair]));
    }
    for (int row = 0; row < 16; ++row) {
      __m512 even{};
      __m512 odd{};
      for (int pair = 0; pair < 16; ++pair) {
        const __m512i word = _mm512_set1_epi32(static_cast<int>(a[row][pair]));
        even = AddProductBf16(even, EvenValues(word), b_even[pair]);
        odd = AddProductBf16(odd, OddValues(word), b_odd[pair]);
      }
      const __m512 sum = FlushSubnormals(even + odd);
      const __m512 before = FlushSubnormals(ReadVector<__m512>(c[row]));
      WriteVector(c[row], FlushSubnormals(before + sum));
    }
  }
};

}  // namespace
}  // namespace attest
