// A few threads for work that would hold the I/O thread up: parsing and tokenizing a large body takes
// milliseconds, and every open stream would wait for it. Owned by the frontend.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace attest {

class WorkerPool {
 public:
  // REQUIRES: num_threads >= 1.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();  // runs what is queued, then joins

  // Any thread. Tasks start in order; they must not throw.
  void Enqueue(std::move_only_function<void()> task);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::move_only_function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                              // guarded by mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace attest
