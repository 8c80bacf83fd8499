// The products of src/kernels/cpu for AVX-512 and AMX, compiled with the emulation of x86_emulation.h.
// matmul.cc of this program is compiled with this header, which puts them on its list as "amx_emulated" and
// so on. AVX2 is not emulated: it prepares the activations of some of them.
#pragma once

#include "kernels/cpu/matmul_path.h"

namespace attest {

extern const MatMulPath kMatMulAmxEmulated;
extern const MatMulPath kMatMulAvx512Bf16Emulated;
extern const MatMulPath kMatMulAvx512VnniEmulated;
extern const MatMulPath kMatMulAvx512Emulated;

namespace {

inline MatMulPath Named(MatMulPath path, const char* name) {
  path.name = name;
  return path;
}
const MatMulPath kEmulatedAmx = Named(kMatMulAmxEmulated, "amx_emulated");
const MatMulPath kEmulatedAvx512Bf16 = Named(kMatMulAvx512Bf16Emulated, "avx512_bf16_emulated");
const MatMulPath kEmulatedAvx512Vnni = Named(kMatMulAvx512VnniEmulated, "avx512_vnni_emulated");
const MatMulPath kEmulatedAvx512 = Named(kMatMulAvx512Emulated, "avx512_emulated");

}  // namespace
}  // namespace attest

#define ATTEST_TEST_PATHS                                                                            \
  {&kEmulatedAmx, CpuIsa::kAvx2, false, false}, {&kEmulatedAvx512Bf16, CpuIsa::kAvx2, false, false}, \
      {&kEmulatedAvx512Vnni, CpuIsa::kAvx2, false, true}, {&kEmulatedAvx512, CpuIsa::kAvx2, true, true},
