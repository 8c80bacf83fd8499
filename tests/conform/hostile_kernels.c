/* Kernels that misbehave in every way the interface allows; the suite must survive each and name it. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <attest/conform_kernel.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int accept(const struct attest_conform_problem* p, char* reason, size_t size) {
  if (p->q_dtype == ATTEST_CONFORM_F32) return 0;
  snprintf(reason, size, "q_dtype: f32 is needed");
  return 1;
}
static int refuse_without_reason(const struct attest_conform_problem* p, char* reason, size_t size) {
  (void)p, (void)reason, (void)size;
  return 1;
}
/* A reason that fills the buffer and does not end. */
static int refuse_without_end(const struct attest_conform_problem* p, char* reason, size_t size) {
  (void)p;
  memset(reason, 'x', size);
  return 1;
}
static int crash(const struct attest_conform_call* call, char* error, size_t size) {
  (void)error, (void)size;
  if (call->problem->max_kv_len >= 3) *(volatile int*)0 = 1;
  memset(call->out, 0, 0);
  abort();
}
static int hang(const struct attest_conform_call* call, char* error, size_t size) {
  const struct timespec second = {1, 0};
  (void)call, (void)error, (void)size;
  for (;;) nanosleep(&second, NULL);
}
static int leave(const struct attest_conform_call* call, char* error, size_t size) {
  (void)call, (void)error, (void)size;
  fputs("giving up\n", stderr);
  exit(3);
}
static int fail(const struct attest_conform_call* call, char* error, size_t size) {
  (void)call;
  snprintf(error, size, "no device");
  return 1;
}
static int write_nothing(const struct attest_conform_call* call, char* error, size_t size) {
  (void)call, (void)error, (void)size;
  return 0;
}
static int write_past_the_end(const struct attest_conform_call* call, char* error, size_t size) {
  (void)error, (void)size;
  ((float*)call->out)[call->num_tokens * call->out_token_stride] = 1.0f;
  return 0;
}

#define KERNEL(name, check, run)         \
  {sizeof(struct attest_conform_kernel), \
   ATTEST_CONFORM_ABI_VERSION,           \
   ATTEST_CONFORM_ARITHMETIC_F32,        \
   name,                                 \
   check,                                \
   run}

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernels[] = {
      KERNEL("crashes", accept, crash),
      KERNEL("hangs", accept, hang),
      KERNEL("exits", accept, leave),
      KERNEL("fails", accept, fail),
      KERNEL("writes_nothing", accept, write_nothing),
      KERNEL("writes_past_the_end", accept, write_past_the_end),
      KERNEL("refuses_without_reason", refuse_without_reason, write_nothing),
      KERNEL("refuses_without_end", refuse_without_end, write_nothing),
  };
  return index >= 0 && index < (int32_t)(sizeof(kernels) / sizeof(kernels[0])) ? &kernels[index] : NULL;
}
