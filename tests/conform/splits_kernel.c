/* The naive kernel, except that it merges seven parts of the keys wrongly: only asking for a number of splits
 * finds it. */
#include "../../examples/conform/naive_kernel.h"

static int run(const struct attest_conform_call* call, char* error, size_t error_size) {
  const int status = naive_run(call, error, error_size);
  if (status == 0 && call->num_splits == 7 && call->num_tokens > 0 &&
      call->problem->out_dtype == ATTEST_CONFORM_F32)
    ((float*)call->out)[0] *= 0.5f;
  return status;
}

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "seven_splits",
                                                      naive_check,
                                                      run};
  return index == 0 ? &kernel : NULL;
}
