// What this CPU can do, asked once and passed by value. Paths are chosen by these bits, never by a model
// name.
#pragma once

#include <string>
#include <vector>

namespace attest {

struct CpuFeatures {
  // x86-64. Each bit means: the CPU has it AND the operating system saves its registers.
  bool avx2 = false;    // with fma, f16c and bmi2
  bool avx512 = false;  // f, bw, vl, dq, cd
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool avx512_vbmi = false;
  bool avx_vnni = false;
  bool amx_tile = false;  // tile registers usable: permission was asked for and granted
  bool amx_bf16 = false;
  bool amx_int8 = false;
  // Arm.
  bool neon = false;
  bool arm_dotprod = false;
  bool arm_bf16 = false;
  bool arm_i8mm = false;

  std::string brand;     // for people and reports only
  int logical_cpus = 1;  // that this process may run on
};

// The instruction-set level a kernel is written for: what the files that end in its name are compiled with
// (cmake/AttestTargets.cmake), no less, since the compiler may use all of it. Each level includes those
// before it of the same processor family, except that kNeonBf16 includes kNeon alone; kAmx has AVX512_VBMI,
// too.
enum class CpuIsa {
  kPortable,
  kAvx2,
  kAvx512,
  kAvx512Vnni,
  kAvx512Bf16,
  kAmx,
  kNeon,
  kNeonBf16,
  kNeonDot,
  kNeonI8mm
};

[[nodiscard]] const char* CpuIsaName(CpuIsa isa);  // "portable", "avx2", "avx512", ...
[[nodiscard]] bool HasIsa(const CpuFeatures& cpu, CpuIsa isa);
[[nodiscard]] std::vector<CpuIsa> IsasOf(const CpuFeatures& cpu);  // best first, kPortable last

// Asks the CPU and, for AMX, asks Linux for permission to use tile registers (inherited by threads created
// later, so call it before making a ThreadTeam).
[[nodiscard]] CpuFeatures DetectCpu();

// The words of `attest kernels`: "avx2 fma f16c" and so on.
[[nodiscard]] std::string DescribeCpu(const CpuFeatures& cpu);

}  // namespace attest
