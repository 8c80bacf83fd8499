// Host memory: how much is free for us, and allocations on 2 MiB pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/error.h"

namespace attest {

struct MemoryStatus {
  int64_t total_bytes = 0;      // of the machine or of our cgroup, whichever is smaller
  int64_t available_bytes = 0;  // that can still be allocated without swapping, cgroup limits included
};

// Reads <proc>/meminfo and the cgroup (v2, then v1) of this process. Paths are parameters for tests.
[[nodiscard]] Expected<MemoryStatus> ReadMemoryStatus(
    const std::filesystem::path& proc_dir = "/proc",
    const std::filesystem::path& cgroup_dir = "/sys/fs/cgroup");

// Resident bytes of this process (VmRSS).
[[nodiscard]] int64_t ResidentBytes();

// Zero-filled, 2 MiB aligned, MADV_HUGEPAGE, not yet resident: pages appear on first touch.
// Returns nullptr when the system refuses. Release with FreePages and the same size.
[[nodiscard]] void* AllocatePages(size_t size_bytes);
void FreePages(void* data, size_t size_bytes);

}  // namespace attest
