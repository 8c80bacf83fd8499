// The vector type of the Arm attention kernels: four floats, the same members as those of
// attention_simd_vec.h, which includes this file.
#pragma once

#include <arm_neon.h>

namespace attest {
namespace {

// What rows are transposed in: kSize rows of kSize dims.
struct Block4 {
  using T = float32x4_t;
  static constexpr int kSize = 4;
  static T Load(const float* p) { return vld1q_f32(p); }
  static void Store(float* p, T a) { vst1q_f32(p, a); }
  static T Scale(T a, float factor) { return vmulq_n_f32(a, factor); }
  // x[i][j] becomes x[j][i].
  static void Transpose(T* x) {
    const float32x4x2_t low = vtrnq_f32(x[0], x[1]);
    const float32x4x2_t high = vtrnq_f32(x[2], x[3]);
    ATTEST_UNROLL for (int i = 0; i < 2; ++i) {
      x[i] = vcombine_f32(vget_low_f32(low.val[i]), vget_low_f32(high.val[i]));
      x[i + 2] = vcombine_f32(vget_high_f32(low.val[i]), vget_high_f32(high.val[i]));
    }
  }
};

struct NeonVec {
  static constexpr int kLanes = 4;
  static constexpr int kRegisters = 32;
  using Block = Block4;
  using F = float32x4_t;
  static F Load(const float* p) { return vld1q_f32(p); }
  static void Store(float* p, F a) { vst1q_f32(p, a); }
  static F Set1(float a) { return vdupq_n_f32(a); }
  static F Broadcast(const float* p) { return vld1q_dup_f32(p); }
  static F Zero() { return vdupq_n_f32(0.0f); }
  static F Add(F a, F b) { return vaddq_f32(a, b); }
  static F Sub(F a, F b) { return vsubq_f32(a, b); }
  static F Mul(F a, F b) { return vmulq_f32(a, b); }
  static F Div(F a, F b) { return vdivq_f32(a, b); }
  static F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F Msub(F a, F b, F c) { return vfmaq_f32(vnegq_f32(c), a, b); }
  static F Nmadd(F a, F b, F c) { return vfmsq_f32(c, a, b); }
  // b when either is NaN, as on x86; FMAX would return the NaN from both sides.
  static F Max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F Abs(F a) { return vabsq_f32(a); }
  static F CopySign(F magnitude, F sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
  static F SelectLess(F a, F b, F yes, F no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
  static bool AnyGreater(F a, F b) { return vmaxvq_u32(vcgtq_f32(a, b)) != 0; }
  // The bits of `a` moved 23 places left: an integer in the low bits becomes an exponent.
  static F BitsToExponent(F a) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 23)); }
  // s where begin <= key < end in the lane, -inf elsewhere.
  static F MaskKey(F s, int key, const int32_t* begin, const int32_t* end) {
    const int32x4_t k = vdupq_n_s32(key);
    const uint32x4_t visible = vandq_u32(vcgeq_s32(k, vld1q_s32(begin)), vcgtq_s32(vld1q_s32(end), k));
    return vbslq_f32(visible, s, vdupq_n_f32(kMinusInf));
  }
  static float ReduceMax(F a) { return vmaxnmvq_f32(a); }  // of the numbers, when some are NaN
  static float ReduceAdd(F a) { return vaddvq_f32(a); }
  // The sums of four vectors.
  static void StoreSums4(float* to, F a, F b, F c, F d) {
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
  }
  // kLanes consecutive values.
  static F Widen(const float* p) { return Load(p); }
  static F Widen(const Bf16Bits* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static F Widen(const F16Bits* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
  }
  static F Widen(const E4M3Bits* p) {
    uint16x4_t half =
        vand_u16(vshl_n_u16(vreinterpret_u16_s16(vget_low_s16(vmovl_s8(Load4(p)))), 7), vdup_n_u16(0xbf80));
    // 0x7f and 0xff are NaN.
    const uint16x4_t is_nan = vceq_u16(vand_u16(half, vdup_n_u16(0x7fff)), vdup_n_u16(0x3f80));
    half = vorr_u16(half, vand_u16(is_nan, vdup_n_u16(0x7c00)));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), kE4M3FromHalf);
  }
  static F Widen(const E5M2Bits* p) {  // the upper half of an f16
    const uint16x4_t x = vget_low_u16(vmovl_u8(vreinterpret_u8_s8(Load4(p))));
    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(x, 8)));
  }
  static F Widen(const I8Value* p) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(Load4(p))))); }
  static int8x8_t Load4(const void* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    return vreinterpret_s8_u32(vdup_n_u32(bytes));
  }
  // The first and second half of 2 * kLanes values in the cheapest order of the type: bf16 even elements then
  // odd ones, the others as they lie.
  template <class KvT>
  static F WidenFirst(const KvT* p) {
    return Widen(p);
  }
  template <class KvT>
  static F WidenSecond(const KvT* p) {
    return Widen(p + kLanes);
  }
  static F WidenFirst(const Bf16Bits* p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(p)), 16));
  }
  static F WidenSecond(const Bf16Bits* p) {
    const uint32x4_t high = vdupq_n_u32(0xffff0000u);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(p)), high));
  }
  // Two vectors of consecutive values become the even ones and the odd ones, and back.
  static void Deinterleave(F* a, F* b) {
    const F first = *a;
    *a = vuzp1q_f32(first, *b);
    *b = vuzp2q_f32(first, *b);
  }
  static void Interleave(F* even, F* odd) {
    const F first = *even;
    *even = vzip1q_f32(first, *odd);
    *odd = vzip2q_f32(first, *odd);
  }
  // 32 registers: none is short.
  static F BroadcastAgain(const float* p) { return Broadcast(p); }
};

}  // namespace
}  // namespace attest
