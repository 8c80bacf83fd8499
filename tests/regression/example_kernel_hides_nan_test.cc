// The example kernel that is meant to be right rounded a NaN of the largest fraction to -0 when it stored
// bf16, and asked frexp and lrint for a NaN's exponent and fraction when it stored f16.
#include <gtest/gtest.h>

#include <bit>

#include "examples/conform/naive_kernel.h"
#include "tensor/dtype.h"

namespace attest {
namespace {

[[maybe_unused]] constexpr auto* kCheck = &naive_check;
[[maybe_unused]] constexpr auto* kRun = &naive_run;

TEST(ExampleKernel, StoresANanAsANan) {
  for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    uint16_t stored = 0;
    naive_store(&stored, ATTEST_CONFORM_BF16, 0, std::bit_cast<float>(bits));
    EXPECT_NE(ToFloat(bf16{stored}), ToFloat(bf16{stored})) << std::hex << bits;
    naive_store(&stored, ATTEST_CONFORM_F16, 0, std::bit_cast<float>(bits));
    EXPECT_NE(ToFloat(f16{stored}), ToFloat(f16{stored})) << std::hex << bits;
  }
}

}  // namespace
}  // namespace attest
