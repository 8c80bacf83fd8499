/* Broken on purpose, as a sliding-window decode was (flashinfer pull request 234): a window that counts keys
 * to the left is taken as a count of all keys, and 0 as no window.
 *
 * Build: cc -O2 -shared -fPIC broken_window_off_by_one.c -o window_off_by_one.so -lm
 * Try:   attest conform --library ./window_off_by_one.so */
#define BROKEN_WINDOW_OFF_BY_ONE
#include "naive_kernel.h"

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "broken_window_off_by_one",
                                                      naive_check,
                                                      naive_run};
  return index == 0 ? &kernel : NULL;
}
