// The prefix caches of an engine, one per KV group (cache/kv_groups.h): which blocks of a group may be shared
// depends on what its window leaves, so each has its own. Engine thread only.
#pragma once

#include <memory>
#include <vector>

#include "cache/block_pool.h"
#include "cache/prefix_cache.h"
#include "engine/engine.h"

namespace attest {

class PrefixCaches {
 public:
  // None when options.prefix_caching is off. `pool` outlives them.
  PrefixCaches(const EngineOptions& options, BlockPool& pool, uint64_t seed,
               BlockHash (*hash)(std::span<const std::byte>, uint64_t) = &HashBytes);

  [[nodiscard]] bool empty() const { return caches_.empty(); }
  [[nodiscard]] const std::vector<std::unique_ptr<PrefixCache>>& all() const { return caches_; }
  [[nodiscard]] std::vector<PrefixCache*> pointers() const;
  void Clear() {
    for (const auto& cache : caches_) cache->Clear();
  }

 private:
  std::vector<std::unique_ptr<PrefixCache>> caches_;
};

}  // namespace attest
