#include "device/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace attest {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUpToHugePage(size_t size_bytes) {
  return (size_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// "MemAvailable:   123 kB" -> bytes.
std::optional<int64_t> ReadKilobyteLine(const std::filesystem::path& path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    if (word == key) {
      int64_t value = 0;
      if (in >> value) return value * 1024;
      return std::nullopt;
    }
    in.ignore(1 << 16, '\n');
  }
  return std::nullopt;
}

// A cgroup file holds one number, or "max" for no limit.
std::optional<int64_t> ReadNumber(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string text;
  if (!(in >> text) || text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  if (text.size() > 18) return std::nullopt;  // v1 writes a number near 2^63 for "no limit"
  return std::stoll(text);
}

// Page cache counts as used but is given back under pressure.
int64_t ReclaimableBytes(const std::filesystem::path& stat_file) {
  std::ifstream in(stat_file);
  std::string key;
  int64_t value = 0, reclaimable = 0;
  while (in >> key >> value) {
    if (key == "inactive_file" || key == "active_file") reclaimable += value;
  }
  return reclaimable;
}

// The path of this process inside its cgroup hierarchy ("/system.slice/x"), or "" when unknown.
std::string OwnCgroup(const std::filesystem::path& proc_dir) {
  std::ifstream in(proc_dir / "self/cgroup");
  std::string line, found;
  while (std::getline(in, line)) {
    if (line.starts_with("0::")) return line.substr(3);
    if (const size_t at = line.find(":memory:"); at != std::string::npos) found = line.substr(at + 8);
  }
  return found;
}

void ApplyCgroupLimit(const std::filesystem::path& dir, MemoryStatus& status) {
  struct Names {
    const char* limit;
    const char* usage;
  };
  for (const Names names :
       {Names{"memory.max", "memory.current"}, Names{"memory.limit_in_bytes", "memory.usage_in_bytes"}}) {
    const auto limit = ReadNumber(dir / names.limit);
    if (!limit) continue;
    const int64_t used = ReadNumber(dir / names.usage).value_or(0) - ReclaimableBytes(dir / "memory.stat");
    status.total_bytes = std::min(status.total_bytes, *limit);
    status.available_bytes =
        std::min(status.available_bytes, std::max<int64_t>(0, *limit - std::max<int64_t>(0, used)));
  }
}

}  // namespace

Expected<MemoryStatus> ReadMemoryStatus(const std::filesystem::path& proc_dir,
                                        const std::filesystem::path& cgroup_dir) {
  const auto total = ReadKilobyteLine(proc_dir / "meminfo", "MemTotal:");
  const auto available = ReadKilobyteLine(proc_dir / "meminfo", "MemAvailable:");
  if (!total || !available) {
    return Fail(ErrorCode::kIo,
                fmt::format("{}: no MemTotal or MemAvailable", (proc_dir / "meminfo").string()));
  }
  MemoryStatus status{.total_bytes = *total, .available_bytes = *available};
  // Every ancestor's limit counts; walk from our own group to the root.
  for (const char* root : {"", "memory"}) {
    std::filesystem::path own = OwnCgroup(proc_dir);
    for (;;) {
      ApplyCgroupLimit(cgroup_dir / root / own.relative_path(), status);
      if (!own.has_relative_path()) break;
      own = own.parent_path();
    }
  }
  return status;
}

int64_t ResidentBytes() { return ReadKilobyteLine("/proc/self/status", "VmRSS:").value_or(0); }

void* AllocatePages(size_t size_bytes) {
  const size_t rounded = RoundUpToHugePage(std::max<size_t>(size_bytes, 1));
  // Map one huge page more than needed, then give back what lies outside the aligned range.
  void* mapped =
      mmap(nullptr, rounded + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > begin) munmap(mapped, aligned - begin);
  const uintptr_t end = begin + rounded + kHugePageBytes;
  if (end > aligned + rounded) munmap(reinterpret_cast<void*>(aligned + rounded), end - aligned - rounded);
  auto* data = reinterpret_cast<void*>(aligned);
  madvise(data, rounded, MADV_HUGEPAGE);  // a wish: 4 KiB pages are slower, not wrong
  return data;
}

void FreePages(void* data, size_t size_bytes) {
  if (data != nullptr) munmap(data, RoundUpToHugePage(std::max<size_t>(size_bytes, 1)));
}

}  // namespace attest
