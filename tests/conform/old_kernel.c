/* A library built against another version of the interface. */
#include <attest/conform_kernel.h>

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION + 1,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "old",
                                                      0,
                                                      0};
  return index == 0 ? &kernel : NULL;
}
