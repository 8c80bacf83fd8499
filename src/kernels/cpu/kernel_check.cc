#include "kernels/cpu/kernel_check.h"

#include <string>

#include "base/check.h"

namespace attest {

void KernelCheckFailed(const char* file, int line, const char* what, int64_t a, int64_t b) {
  CheckFailed(file, line, internal::DescribeCheck(what, a, b));
}

}  // namespace attest
