/* A naive kernel that is right: every feature of the canon, in float32.
 *
 * Build: cc -O2 -shared -fPIC naive.c -o naive.so -lm
 * Try:   attest conform --library ./naive.so */
#include "naive_kernel.h"

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "example_naive",
                                                      naive_check,
                                                      naive_run};
  return index == 0 ? &kernel : NULL;
}
