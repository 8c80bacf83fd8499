/* Broken on purpose, as a ROCm route was (vLLM pull request 28670): the shortest query length of the batch
 * serves as an inclusive skip threshold, so the shortest sequences are never computed.
 *
 * Build: cc -O2 -shared -fPIC broken_skip_threshold.c -o skip_threshold.so -lm
 * Try:   attest conform --library ./skip_threshold.so */
#define BROKEN_SKIP_THRESHOLD
#include "naive_kernel.h"

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "broken_skip_threshold",
                                                      naive_check,
                                                      naive_run};
  return index == 0 ? &kernel : NULL;
}
