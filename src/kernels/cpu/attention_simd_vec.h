// The vector types the attention kernels are written over, one struct per register width with the same
// members, and the two functions softmax needs: 2^t and tanh. Arm's is in attention_simd_neon.h.
//
// Include only from files compiled for the instruction set (attention_*_avx2.cc and wider): everything has
// internal linkage, so that nothing compiled with wide instructions can be linked into baseline code.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include "kernels/cpu/x86_intrinsics.h"
#endif

#include <cstdint>

#define ATTEST_UNROLL _Pragma("GCC unroll 16")

namespace attest {
namespace {

// Stored values travel as raw bits here. bf16: the upper half of a float.
using Bf16Bits = uint16_t;
struct F16Bits {
  uint16_t bits;
};
struct E4M3Bits {
  uint8_t bits;
};
struct E5M2Bits {
  uint8_t bits;
};
struct I8Value {
  int8_t value;
};
// Whether WidenFirst and WidenSecond of a type give even and odd elements instead of halves.
template <class KvT>
inline constexpr bool kEvenThenOdd = false;
template <>
inline constexpr bool kEvenThenOdd<Bf16Bits> = true;
// fp8 e4m3 is widened as f16 of a 2^8th part: both have the same fraction and sign, and f16 has one more bit
// of exponent, with a bias of 15 against 7.
constexpr float kE4M3FromHalf = 256.0f;

constexpr float kMinusInf = -__builtin_inff();
// The running maximum of a row that has seen no key: finite, so that (-inf) - m stays -inf and never NaN.
constexpr float kNoMax = -1.7e38f;

[[maybe_unused]] inline int MinInt(int a, int b) { return a < b ? a : b; }
[[maybe_unused]] inline int64_t Min64(int64_t a, int64_t b) { return a < b ? a : b; }
[[maybe_unused]] inline int MaxInt(int a, int b) { return a > b ? a : b; }
[[maybe_unused]] inline int RoundUp(int n, int to) { return (n + to - 1) / to * to; }

#if !defined(__aarch64__)
// x[i][j] becomes x[j][i].
[[maybe_unused]] inline void Transpose8x8(__m256* x) {
  __m256 a[8];
  __m256 b[8];
  ATTEST_UNROLL for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  ATTEST_UNROLL for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  ATTEST_UNROLL for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

// What rows are transposed in: kSize rows of kSize dims.
struct Block8 {
  using T = __m256;
  static constexpr int kSize = 8;
  static T Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, T a) { _mm256_storeu_ps(p, a); }
  static T Scale(T a, float factor) { return _mm256_mul_ps(a, _mm256_set1_ps(factor)); }
  static void Transpose(T* x) { Transpose8x8(x); }
};

#if !defined(ATTEST_X86_EMULATION)
struct Avx2Vec {
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;
  using Block = Block8;
  using F = __m256;
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static F Set1(float a) { return _mm256_set1_ps(a); }
  static F Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static F Zero() { return _mm256_setzero_ps(); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Msub(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  static F Nmadd(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }  // b when either is NaN
  static F Abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F CopySign(F magnitude, F sign) {
    const F bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
  }
  static F SelectLess(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static bool AnyGreater(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  // The bits of `a` moved 23 places left: an integer in the low bits becomes an exponent.
  static F BitsToExponent(F a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23)); }
  // s where begin <= key < end in the lane, -inf elsewhere.
  static F MaskKey(F s, int key, const int32_t* begin, const int32_t* end) {
    const __m256i k = _mm256_set1_epi32(key);
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(begin));
    const __m256i e = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(end));
    const __m256i visible = _mm256_andnot_si256(_mm256_cmpgt_epi32(b, k), _mm256_cmpgt_epi32(e, k));
    return _mm256_blendv_ps(_mm256_set1_ps(kMinusInf), s, _mm256_castsi256_ps(visible));
  }
  static float ReduceMax(F a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  static float ReduceAdd(F a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  // The sums of four vectors.
  static __m128 ReduceAdd4(F a, F b, F c, F d) {
    const F ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));  // a b a b
    const F cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const F abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
  static void StoreSums4(float* to, F a, F b, F c, F d) { _mm_storeu_ps(to, ReduceAdd4(a, b, c, d)); }
  // kLanes consecutive values.
  static F Widen(const float* p) { return Load(p); }
  static F Widen(const Bf16Bits* p) {
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  }
  static F Widen(const F16Bits* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F Widen(const E4M3Bits* p) {
    const __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    __m128i half = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
    // 0x7f and 0xff are NaN.
    const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
    half = _mm_or_si128(half, _mm_and_si128(is_nan, _mm_set1_epi16(0x7c00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(kE4M3FromHalf));
  }
  static F Widen(const E5M2Bits* p) {  // the upper half of an f16
    const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_slli_epi16(x, 8));
  }
  static F Widen(const I8Value* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  // The first and second half of 2 * kLanes values in the cheapest order of the type: bf16 even elements then
  // odd ones (a shift and a mask instead of two widening shuffles), the others as they lie.
  template <class KvT>
  static F WidenFirst(const KvT* p) {
    return Widen(p);
  }
  template <class KvT>
  static F WidenSecond(const KvT* p) {
    return Widen(p + kLanes);
  }
  static F WidenFirst(const Bf16Bits* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  }
  static F WidenSecond(const Bf16Bits* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // Two vectors of consecutive values become the even ones and the odd ones, and back.
  static void Deinterleave(F* a, F* b) {
    const F even = _mm256_shuffle_ps(*a, *b, 0x88);  // a0 a2 b0 b2 | a4 a6 b4 b6
    const F odd = _mm256_shuffle_ps(*a, *b, 0xdd);
    *a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    *b = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
  }
  static void Interleave(F* even, F* odd) {
    const F low = _mm256_unpacklo_ps(*even, *odd);
    const F high = _mm256_unpackhi_ps(*even, *odd);
    *even = _mm256_permute2f128_ps(low, high, 0x20);
    *odd = _mm256_permute2f128_ps(low, high, 0x31);
  }
  // A broadcast the compiler cannot keep for a second use: where 12 sums leave four registers free it would,
  // and spill sums for it.
  static F BroadcastAgain(const float* p) {
    F a;
    asm volatile("vbroadcastss %1, %0" : "=x"(a) : "m"(*p));
    return a;
  }
};

#endif

#if defined(__AVX512F__) || defined(ATTEST_X86_EMULATION)
struct Avx512Vec {
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;
  using Block = Block8;
  using F = __m512;
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F Set1(float a) { return _mm512_set1_ps(a); }
  static F Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static F Zero() { return _mm512_setzero_ps(); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Msub(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  static F Nmadd(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }  // b when either is NaN
  static F Abs(F a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
  static F CopySign(F magnitude, F sign) {
    const F bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
  }
  static F SelectLess(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static bool AnyGreater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static F BitsToExponent(F a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23)); }
  static F MaskKey(F s, int key, const int32_t* begin, const int32_t* end) {
    const __m512i k = _mm512_set1_epi32(key);
    const __mmask16 from = _mm512_cmple_epi32_mask(_mm512_loadu_si512(begin), k);
    const __mmask16 visible = _mm512_mask_cmpgt_epi32_mask(from, _mm512_loadu_si512(end), k);
    return _mm512_mask_blend_ps(visible, _mm512_set1_ps(kMinusInf), s);
  }
  static float ReduceMax(F a) { return _mm512_reduce_max_ps(a); }
  static float ReduceAdd(F a) { return _mm512_reduce_add_ps(a); }
  static __m128 ReduceAdd4(F a, F b, F c, F d) {
    const F ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const F cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const F abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
  static void StoreSums4(float* to, F a, F b, F c, F d) { _mm_storeu_ps(to, ReduceAdd4(a, b, c, d)); }
  static F Widen(const float* p) { return Load(p); }
  static F Widen(const Bf16Bits* p) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  }
  static F Widen(const F16Bits* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F Widen(const E4M3Bits* p) {
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
    const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
    half = _mm256_or_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7c00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(kE4M3FromHalf));
  }
  static F Widen(const E5M2Bits* p) {
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_slli_epi16(x, 8));
  }
  static F Widen(const I8Value* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  template <class KvT>
  static F WidenFirst(const KvT* p) {
    return Widen(p);
  }
  template <class KvT>
  static F WidenSecond(const KvT* p) {
    return Widen(p + kLanes);
  }
  static F WidenFirst(const Bf16Bits* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static F WidenSecond(const Bf16Bits* p) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high));
  }
  static void Deinterleave(F* a, F* b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const F first = *a;
    *a = _mm512_permutex2var_ps(first, even, *b);
    *b = _mm512_permutex2var_ps(first, odd, *b);
  }
  static void Interleave(F* even, F* odd) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const F first = *even;
    *even = _mm512_permutex2var_ps(first, low, *odd);
    *odd = _mm512_permutex2var_ps(first, high, *odd);
  }
  // 32 registers: none is short.
  static F BroadcastAgain(const float* p) { return Broadcast(p); }
};
#endif
#endif  // !__aarch64__

// 2^t for t <= 127, and exactly 0 for t <= -126.5 (masked scores are -inf). Relative error 1.6e-7: a degree 5
// minimax polynomial (9.2e-8) on [-1/2, 1/2]; the rounding constant leaves n + 127 in the low bits.
template <class V>
inline typename V::F Exp2(typename V::F t) {
  using F = typename V::F;
  const F round = V::Set1(12582912.0f + 127.0f);  // 1.5 * 2^23 + exponent bias
  t = V::Max(V::Set1(-127.0f), t);                // operand order keeps NaN
  const F biased = V::Add(t, round);
  const F f = V::Sub(t, V::Sub(biased, round));
  F p = V::Set1(0.0013264727f);
  p = V::Fma(p, f, V::Set1(0.009671513f));
  p = V::Fma(p, f, V::Set1(0.055507336f));
  p = V::Fma(p, f, V::Set1(0.24022242f));
  p = V::Fma(p, f, V::Set1(0.693147f));
  p = V::Fma(p, f, V::Set1(1.0f));
  return V::Mul(p, V::BitsToExponent(biased));
}

// The same with a degree 3 polynomial: relative error 1.0e-4.
template <class V>
inline typename V::F Exp2Degree3(typename V::F t) {
  using F = typename V::F;
  const F round = V::Set1(12582912.0f + 127.0f);
  t = V::Max(V::Set1(-127.0f), t);
  const F biased = V::Add(t, round);
  const F f = V::Sub(t, V::Sub(biased, round));
  F p = V::Set1(0.05500893f);
  p = V::Fma(p, f, V::Set1(0.24221097f));
  p = V::Fma(p, f, V::Set1(0.6932829f));
  p = V::Fma(p, f, V::Set1(1.0f));
  return V::Mul(p, V::BitsToExponent(biased));
}

// tanh with relative error below 3e-7: an odd polynomial below 0.625 (there 1 - 2 / (e^2x + 1) would cancel),
// the exponential form above. Saturates at 1.
template <class V>
inline typename V::F Tanh(typename V::F x) {
  using F = typename V::F;
  const F a = V::Abs(x);
  const F z = V::Mul(x, x);
  F p = V::Set1(-5.70498872745e-3f);
  p = V::Fma(p, z, V::Set1(2.06390887954e-2f));
  p = V::Fma(p, z, V::Set1(-5.37397155531e-2f));
  p = V::Fma(p, z, V::Set1(1.33314422036e-1f));
  p = V::Fma(p, z, V::Set1(-3.33332819422e-1f));
  const F small = V::Fma(V::Mul(p, z), x, x);
  // e^-2a avoids overflow: tanh a = (1 - e^-2a) / (1 + e^-2a).
  const F e = Exp2<V>(V::Mul(a, V::Set1(-2.885390081777927f)));
  const F big = V::CopySign(V::Div(V::Sub(V::Set1(1.0f), e), V::Add(V::Set1(1.0f), e)), x);
  return V::SelectLess(a, V::Set1(0.625f), small, big);
}

}  // namespace
}  // namespace attest

#if defined(__aarch64__)
#include "kernels/cpu/attention_simd_neon.h"
#endif
