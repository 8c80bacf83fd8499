#include "device/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace attest {
namespace {

#if defined(__x86_64__)

struct CpuidRegisters {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidRegisters Cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  CpuidRegisters r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool Bit(uint32_t value, int bit) { return ((value >> bit) & 1u) != 0; }

// Extended control register 0: which register files the operating system saves.
uint64_t ReadXcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool RequestAmxPermission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

std::string BrandString() {
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const CpuidRegisters r = Cpuid(0x80000002u + i);
    std::memcpy(text + 16 * i, &r, 16);
  }
  std::string brand(text);
  while (!brand.empty() && brand.back() == ' ') brand.pop_back();
  return brand;
}

#endif

int AllowedCpuCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

const char* CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Vnni:
      return "avx512_vnni";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
    case CpuIsa::kAmx:
      return "amx";
    case CpuIsa::kNeon:
      return "neon";
    case CpuIsa::kNeonBf16:
      return "neon_bf16";
    case CpuIsa::kNeonDot:
      return "neon_dot";
    case CpuIsa::kNeonI8mm:
      return "neon_i8mm";
  }
  return "unknown";
}

bool HasIsa(const CpuFeatures& cpu, CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return true;
    case CpuIsa::kAvx2:
      return cpu.avx2;
    case CpuIsa::kAvx512:
      return cpu.avx512;
    case CpuIsa::kAvx512Vnni:
      return cpu.avx512 && cpu.avx512_vnni;
    case CpuIsa::kAvx512Bf16:
      return HasIsa(cpu, CpuIsa::kAvx512Vnni) && cpu.avx512_bf16;
    case CpuIsa::kAmx:
      return HasIsa(cpu, CpuIsa::kAvx512Bf16) && cpu.avx512_vbmi && cpu.amx_tile && cpu.amx_bf16 &&
             cpu.amx_int8;
    case CpuIsa::kNeon:
      return cpu.neon;
    case CpuIsa::kNeonBf16:
      return cpu.neon && cpu.arm_bf16;
    case CpuIsa::kNeonDot:
      return cpu.neon && cpu.arm_dotprod;
    case CpuIsa::kNeonI8mm:
      return cpu.neon && cpu.arm_dotprod && cpu.arm_i8mm;
  }
  return false;
}

std::vector<CpuIsa> IsasOf(const CpuFeatures& cpu) {
  std::vector<CpuIsa> isas;
  for (CpuIsa isa :
       {CpuIsa::kAmx, CpuIsa::kAvx512Bf16, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvx2,
        CpuIsa::kNeonI8mm, CpuIsa::kNeonDot, CpuIsa::kNeonBf16, CpuIsa::kNeon, CpuIsa::kPortable}) {
    if (HasIsa(cpu, isa)) isas.push_back(isa);
  }
  return isas;
}

CpuFeatures DetectCpu() {
  CpuFeatures cpu;
  cpu.logical_cpus = AllowedCpuCount();
#if defined(__x86_64__)
  cpu.brand = BrandString();
  const CpuidRegisters leaf1 = Cpuid(1);
  if (!Bit(leaf1.ecx, 27)) return cpu;  // no OSXSAVE: wide registers are not saved
  const uint64_t xcr0 = ReadXcr0();
  const bool ymm_saved = (xcr0 & 0x6) == 0x6;
  const bool zmm_saved = (xcr0 & 0xe6) == 0xe6;
  const bool tiles_saved = (xcr0 & 0x60000) == 0x60000;
  const CpuidRegisters leaf7 = Cpuid(7, 0);
  const CpuidRegisters leaf7_1 = Cpuid(7, 1);
  cpu.avx2 = ymm_saved && Bit(leaf7.ebx, 5) && Bit(leaf7.ebx, 8) && Bit(leaf1.ecx, 12) && Bit(leaf1.ecx, 29);
  cpu.avx_vnni = cpu.avx2 && Bit(leaf7_1.eax, 4);
  cpu.avx512 = zmm_saved && cpu.avx2 && Bit(leaf7.ebx, 16) && Bit(leaf7.ebx, 17) && Bit(leaf7.ebx, 28) &&
               Bit(leaf7.ebx, 30) && Bit(leaf7.ebx, 31);
  if (cpu.avx512) {
    cpu.avx512_vbmi = Bit(leaf7.ecx, 1);
    cpu.avx512_vnni = Bit(leaf7.ecx, 11);
    cpu.avx512_bf16 = Bit(leaf7_1.eax, 5);
    cpu.avx512_fp16 = Bit(leaf7.edx, 23);
    if (tiles_saved && Bit(leaf7.edx, 24) && RequestAmxPermission()) {
      cpu.amx_tile = true;
      cpu.amx_bf16 = Bit(leaf7.edx, 22);
      cpu.amx_int8 = Bit(leaf7.edx, 25);
    }
  }
#elif defined(__aarch64__)
  cpu.brand = "aarch64";
  cpu.neon = true;
  cpu.arm_dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  cpu.arm_bf16 = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  cpu.arm_i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
  return cpu;
}

std::string DescribeCpu(const CpuFeatures& cpu) {
  std::string text;
  auto add = [&](bool has, const char* name) {
    if (!has) return;
    if (!text.empty()) text += ' ';
    text += name;
  };
  add(cpu.avx2, "avx2");
  add(cpu.avx_vnni, "avx_vnni");
  add(cpu.avx512, "avx512");
  add(cpu.avx512_vnni, "avx512_vnni");
  add(cpu.avx512_bf16, "avx512_bf16");
  add(cpu.avx512_fp16, "avx512_fp16");
  add(cpu.avx512_vbmi, "avx512_vbmi");
  add(cpu.amx_tile, "amx_tile");
  add(cpu.amx_bf16, "amx_bf16");
  add(cpu.amx_int8, "amx_int8");
  add(cpu.neon, "neon");
  add(cpu.arm_dotprod, "arm_dotprod");
  add(cpu.arm_bf16, "arm_bf16");
  add(cpu.arm_i8mm, "arm_i8mm");
  return text.empty() ? "portable" : text;
}

}  // namespace attest
