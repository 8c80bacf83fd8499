// Single instructions on plain arrays, compiled twice: with the real intrinsics and with the emulation.
#pragma once

#include <cstdint>

namespace attest {

struct InstructionProbe {
  // out = sum + the two products of each pair of bf16; 16 lanes
  void (*dot_bf16)(const float* sum, const uint32_t* a, const uint32_t* b, float* out);
  // 32 values to bf16; the first 8 again, by the narrow instruction
  void (*round_to_bf16)(const float* from, uint16_t* wide, uint16_t* narrow);
  void (*round_to_int)(const float* from, int32_t* to);  // 16 lanes
  void (*half_to_float)(const uint16_t* from, float* to);
  void (*fused)(const float* a, const float* b, const float* c, float* fma, float* fms, float* fnma);
  void (*reduce)(const float* from, float* sum, float* max);  // 16 lanes
  // The pairs of fixed-point weights of the AMX kernel's softmax: byte table, 16-bit maximum and difference.
  void (*fixed_point_weights)(const float* a, const float* b, float scale, float max, uint32_t* pairs);
  void (*transpose)(uint32_t* words);  // 16 x 16
};

extern const InstructionProbe kRealProbe;  // run only where the CPU has AVX512_BF16 and AVX512_VBMI
extern const InstructionProbe kEmulatedProbe;

// c += a * b, one tile product: c is 16 x 16 f32, a and b 16 x 16 pairs of bf16.
using TileProbe = void (*)(const uint32_t* a, const uint32_t* b, float* c);
void RealTileProduct(const uint32_t* a, const uint32_t* b, float* c);  // run only where the CPU has AMX
void EmulatedTileProduct(const uint32_t* a, const uint32_t* b, float* c);

}  // namespace attest
