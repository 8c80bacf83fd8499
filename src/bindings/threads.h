// The library's threads behind the C handle, and work spread over them.
#pragma once

#include <attest/attention_c.h>

#include <mutex>

#include "base/thread_team.h"

struct attest_threads {
  explicit attest_threads(const attest::ThreadTeamOptions& options) : team(options) {}
  std::mutex mutex;  // runs take turns: a team runs one region at a time
  attest::ThreadTeam team;
};

namespace attest::bindings {

// fn(begin, end) over parts of [0, total): on the calling thread when `threads` is null or the work is small.
template <class Fn>
void ForRanges(attest_threads* threads, int64_t total, int64_t min_per_thread, Fn fn) {
  if (threads == nullptr || threads->team.size() == 1 || total <= min_per_thread) {
    fn(int64_t{0}, total);
    return;
  }
  const std::lock_guard lock(threads->mutex);
  threads->team.Run([&](int rank) {
    const IndexRange range = PartitionRange(total, rank, threads->team.size());
    if (range.size() > 0) fn(range.begin, range.end);
  });
}

}  // namespace attest::bindings
