// A fixed team of pinned threads that run one function together: the only parallelism below the engine.
// A region costs about 0.3 us with spinning workers; workers that find no region for `spin_us` sleep on a
// futex.
//
// Owned by whoever computes (the engine thread, a test). Run() is called by one thread at a time, which
// becomes rank 0. Regions do not nest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace attest {

struct ThreadTeamOptions {
  int num_threads = 1;  // >= 1, the caller included
  bool pin = true;      // bind rank i to the i-th CPU this process may use
  int spin_us = 200;    // how long an idle worker spins before it sleeps
};

class ThreadTeam {
 public:
  explicit ThreadTeam(const ThreadTeamOptions& options);  // std::system_error: the system refused a thread
  explicit ThreadTeam(int num_threads) : ThreadTeam(ThreadTeamOptions{.num_threads = num_threads}) {}
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  [[nodiscard]] int size() const { return num_threads_; }

  // Calls fn(rank) once on each rank in [0, size()), concurrently, and returns when all have returned.
  // What ranks wrote before returning is visible to the caller, and what the caller wrote before to all
  // ranks. REQUIRES: fn does not throw.
  template <class Fn>
  void Run(Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    RunErased([](void* context, int rank) { (*static_cast<Callable*>(context))(rank); },
              const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  // Binds the calling thread to the CPU of rank 0. For a thread that does nothing but drive this team (the
  // engine thread); a caller that is not bound may be moved by the kernel onto a worker's CPU.
  void PinCaller();

  // Inside a region: returns when every rank has arrived. All ranks must call it the same number of times.
  void Barrier();

 private:
  using Task = void (*)(void* context, int rank);
  void RunErased(Task task, void* context);
  void Work(int rank);

  const int num_threads_;
  const int spin_us_;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> barrier_arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_generation_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::vector<int> cpus_;  // CPU of each rank, empty when not pinned
  Task task_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::jthread> workers_;
};

// The half-open range of `total` items that `rank` of `size` owns when they are cut into contiguous parts
// whose lengths differ by at most `granule` (each begin is a multiple of it). Ranges of all ranks cover [0,
// total).
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
};
[[nodiscard]] IndexRange PartitionRange(int64_t total, int rank, int size, int64_t granule = 1);

}  // namespace attest
