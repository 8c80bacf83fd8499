#include "engine/prefix_caches.h"

#include <optional>

namespace attest {

PrefixCaches::PrefixCaches(const EngineOptions& options, BlockPool& pool, uint64_t seed,
                           BlockHash (*hash)(std::span<const std::byte>, uint64_t)) {
  if (!options.prefix_caching) return;
  for (const std::optional<int32_t>& window : options.kv_windows) {
    caches_.push_back(
        std::make_unique<PrefixCache>(PrefixCacheOptions{.block_size = options.block_size,
                                                         .remembers_evicted = window.has_value(),
                                                         .seed = seed,
                                                         .hash = hash},
                                      pool));
  }
}

std::vector<PrefixCache*> PrefixCaches::pointers() const {
  std::vector<PrefixCache*> pointers;
  for (const auto& cache : caches_) pointers.push_back(cache.get());
  return pointers;
}

}  // namespace attest
