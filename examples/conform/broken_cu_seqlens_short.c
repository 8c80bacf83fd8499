/* Broken on purpose, as a review of vLLM pull request 34570 found it: the array of sequence offsets is one
 * entry short, so the last sequence has no end.
 *
 * Build: cc -O2 -shared -fPIC broken_cu_seqlens_short.c -o cu_seqlens_short.so -lm
 * Try:   attest conform --library ./cu_seqlens_short.so */
#define BROKEN_CU_SEQLENS_SHORT
#include "naive_kernel.h"

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "broken_cu_seqlens_short",
                                                      naive_check,
                                                      naive_run};
  return index == 0 ? &kernel : NULL;
}
