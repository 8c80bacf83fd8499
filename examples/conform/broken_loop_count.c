/* Broken on purpose, as a decode kernel was (vLLM pull request 34570): the loop count head_dim / 16 / 4 in
 * integers is 0 for a head of 32, and 80 fills only 64 dims.
 *
 * Build: cc -O2 -shared -fPIC broken_loop_count.c -o loop_count.so -lm
 * Try:   attest conform --library ./loop_count.so */
#define BROKEN_LOOP_COUNT
#include "naive_kernel.h"

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "broken_loop_count",
                                                      naive_check,
                                                      naive_run};
  return index == 0 ? &kernel : NULL;
}
