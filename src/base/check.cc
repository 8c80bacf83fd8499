#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace attest {

void CheckFailed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "attest: check failed at %s:%d: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace attest
