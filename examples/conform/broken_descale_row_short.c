/* Broken on purpose: one row of descales too few is copied, so the last sequence of the batch is computed
 * with a scale of 1.
 *
 * Build: cc -O2 -shared -fPIC broken_descale_row_short.c -o descale_row_short.so -lm
 * Try:   attest conform --library ./descale_row_short.so */
#define BROKEN_DESCALE_ROW_SHORT
#include "naive_kernel.h"

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "broken_descale_row_short",
                                                      naive_check,
                                                      naive_run};
  return index == 0 ? &kernel : NULL;
}
