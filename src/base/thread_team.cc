#include "base/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "base/check.h"

namespace attest {
namespace {

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// CPUs this process may run on, in order.
std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);  // best effort: an unpinned thread is slower, not wrong
}

// Spins until `done()` holds or about `spin_us` have passed.
template <class Done>
bool SpinUntil(int spin_us, Done done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      CpuRelax();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
  }
}

}  // namespace

ThreadTeam::ThreadTeam(const ThreadTeamOptions& options)
    : num_threads_(options.num_threads), spin_us_(options.spin_us) {
  ATTEST_CHECK_GE(num_threads_, 1);
  if (options.pin) cpus_ = AllowedCpus();
  if (static_cast<int>(cpus_.size()) < num_threads_) cpus_.clear();
  // The caller keeps its own affinity unless it asks (PinCaller): it may be a test or a user's thread.
  const auto end_workers = [this] {  // they are joined on the way out
    stopping_.store(true, std::memory_order_release);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    generation_.notify_all();
  };
  for (int rank = 1; rank < num_threads_; ++rank) {
    const int cpu = cpus_.empty() ? -1 : cpus_[static_cast<size_t>(rank)];
    try {
      workers_.emplace_back([this, rank, cpu] {
        if (cpu >= 0) PinTo(cpu);
        Work(rank);
      });
    } catch (const std::system_error& error) {
      end_workers();
      throw std::system_error(error.code(),
                              "thread " + std::to_string(rank + 1) + " of " + std::to_string(num_threads_));
    } catch (...) {  // memory
      end_workers();
      throw;
    }
  }
}

void ThreadTeam::PinCaller() {
  if (!cpus_.empty()) PinTo(cpus_[0]);
}

ThreadTeam::~ThreadTeam() {
  stopping_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  generation_.notify_all();
}

void ThreadTeam::RunErased(Task task, void* context) {
  if (num_threads_ == 1) {
    task(context, 0);
    return;
  }
  task_ = task;
  context_ = context;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
  task(context, 0);
  // Ranks have equal work by construction, so the end is near; yield only when the machine is oversubscribed.
  while (!SpinUntil(spin_us_, [this] { return running_.load(std::memory_order_acquire) == 0; })) {
    std::this_thread::yield();
  }
}

void ThreadTeam::Work(int rank) {
  for (uint32_t seen = 0;;) {
    auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!SpinUntil(spin_us_, changed)) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      generation_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      if (!changed()) continue;
    }
    ++seen;
    if (stopping_.load(std::memory_order_acquire)) return;
    task_(context_, rank);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadTeam::Barrier() {
  if (num_threads_ == 1) return;
  const uint32_t generation = barrier_generation_.load(std::memory_order_acquire);
  if (barrier_arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    barrier_arrived_.store(0, std::memory_order_relaxed);
    barrier_generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  while (!SpinUntil(spin_us_,
                    [&] { return barrier_generation_.load(std::memory_order_acquire) != generation; })) {
    std::this_thread::yield();
  }
}

IndexRange PartitionRange(int64_t total, int rank, int size, int64_t granule) {
  ATTEST_CHECK_GT(size, 0);
  ATTEST_CHECK_GT(granule, 0);
  const int64_t granules = (total + granule - 1) / granule;
  const int64_t begin = granules * rank / size * granule;
  const int64_t end = granules * (rank + 1) / size * granule;
  return {std::min(begin, total), std::min(end, total)};
}

}  // namespace attest
