// Time for tests that bound work: the processor's, not the clock's. What else the machine does hardly counts.
// Linux.
#pragma once

#include <ctime>

namespace attest {

inline double CpuSeconds(clockid_t of) {
  timespec time{};
  ::clock_gettime(of, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
// What `action` takes of the calling thread.
template <class Action>
double ThreadCpuSeconds(Action action) {
  const double begin = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
  action();
  return CpuSeconds(CLOCK_THREAD_CPUTIME_ID) - begin;
}
// And of the whole process: of a server in it, too.
template <class Action>
double ProcessCpuSeconds(Action action) {
  const double begin = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
  action();
  return CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - begin;
}

}  // namespace attest
