#include "cache/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace attest {

BlockHash HashBytes(std::span<const std::byte> bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {.low = hash.low64, .high = hash.high64};
}

std::string JoinCacheKeys(std::span<const CacheKey> keys) {
  std::string joined;
  for (const CacheKey& key : keys) {
    for (const std::string_view part : {key.label, key.value}) {
      joined += std::to_string(part.size());
      joined += ':';
      joined += part;
    }
  }
  return joined;
}

PrefixCache::PrefixCache(const PrefixCacheOptions& options, BlockPool& pool)
    : options_(options),
      block_size_(static_cast<size_t>(options.block_size)),
      pool_(pool),
      records_(static_cast<size_t>(pool.num_blocks())),
      tokens_(records_.size() * block_size_) {
  ATTEST_CHECK_GT(options.block_size, 0);
  pool_.OnEvict(this, [this](int32_t block) {
    if (!Knows(block)) return;  // another cache's
    if (options_.remembers_evicted) Remember(block);
    Drop(block);
  });
}

PrefixCache::~PrefixCache() {
  Clear();
  pool_.OnEvict(this, nullptr);
}

std::span<int32_t> PrefixCache::TokensOf(int32_t block) {
  return std::span(tokens_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
}

void PrefixCache::Hash(PrefixChain& chain, std::span<const int32_t> tokens, size_t num_blocks) const {
  if (chain.hashes.size() >= num_blocks) return;
  BlockHash parent = chain.hashes.empty() ? options_.hash(std::as_bytes(std::span(chain.keys)), options_.seed)
                                          : chain.hashes.back();
  std::vector<std::byte> bytes(sizeof(BlockHash) + block_size_ * sizeof(int32_t));
  while (chain.hashes.size() < num_blocks) {
    const auto ids = std::as_bytes(tokens.subspan(chain.hashes.size() * block_size_, block_size_));
    const auto at = std::ranges::copy(std::as_bytes(std::span(&parent, 1)), bytes.begin()).out;
    std::ranges::copy(ids, at);
    parent = options_.hash(bytes, options_.seed);
    chain.hashes.push_back(parent);
  }
}

PrefixCache::Found PrefixCache::Lookup(const PrefixChain& chain, size_t i, uint64_t parent,
                                       std::span<const int32_t> tokens) {
  const auto wanted = tokens.subspan(i * block_size_, block_size_);
  const auto is_it = [&](const Record& found, std::span<const int32_t> its_tokens) {
    return found.parent == parent && (parent != 0 || found.keys == chain.keys) &&
           std::ranges::equal(its_tokens, wanted);
  };
  const auto [begin, end] = index_.equal_range(chain.hashes[i]);
  for (auto it = begin; it != end; ++it) {
    const Record& found = record(it->second);
    if (is_it(found, TokensOf(it->second))) return {.node = found.node, .block = it->second};
  }
  const auto [first, last] = remembered_.equal_range(chain.hashes[i]);
  for (auto it = first; it != last; ++it) {
    if (is_it(it->second.record, it->second.tokens)) return {.node = it->second.record.node};
  }
  return {};
}

std::vector<int32_t> PrefixCache::Find(PrefixChain& chain, std::span<const int32_t> tokens,
                                       int32_t max_tokens) {
  ATTEST_CHECK_EQ(chain.published, 0);
  chain.epoch = epoch_;
  std::vector<int32_t> blocks;
  const size_t most = std::min(tokens.size(), static_cast<size_t>(max_tokens)) / block_size_;
  uint64_t parent = 0;
  while (blocks.size() < most) {
    Hash(chain, tokens, blocks.size() + 1);
    const Found found = Lookup(chain, blocks.size(), parent, tokens);
    if (found.node == 0) break;
    parent = found.node;
    blocks.push_back(found.block);
  }
  return blocks;
}

void PrefixCache::Use(PrefixChain& chain, std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    if (block == kNullBlock) continue;
    ATTEST_CHECK(Knows(block));
    pool_.Share(block);
  }
  ATTEST_CHECK(blocks.empty() || blocks.back() != kNullBlock);
  chain.published = static_cast<int32_t>(blocks.size());
  chain.tip = blocks.empty() ? 0 : record(blocks.back()).node;
}

void PrefixCache::Publish(PrefixChain& chain, std::span<const int32_t> computed,
                          std::span<const int32_t> blocks) {
  if (chain.epoch != epoch_) return;
  const size_t full = computed.size() / block_size_;
  ATTEST_CHECK_LE(full, blocks.size());
  Hash(chain, computed, full);
  for (auto i = static_cast<size_t>(chain.published); i < full; ++i) {
    const int32_t block = blocks[i];
    ATTEST_CHECK(!Knows(block));
    const Found same = Lookup(chain, i, chain.tip, computed);
    Record& entry = records_[static_cast<size_t>(block)];
    entry.hash = chain.hashes[i];
    entry.node = same.node != 0 ? same.node : ++last_node_;
    entry.parent = chain.tip;
    if (i == 0) entry.keys = chain.keys;
    std::ranges::copy(computed.subspan(i * block_size_, block_size_), TokensOf(block).begin());
    index_.emplace(entry.hash, block);
    pool_.Keep(block);
    chain.tip = entry.node;
    ++chain.published;
  }
}

void PrefixCache::Withdraw(PrefixChain& chain, std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    if (!Knows(block)) continue;
    pool_.Unkeep(block);
    Drop(block);
  }
  chain.epoch = 0;
}

void PrefixCache::Detach(PrefixChain& chain) {
  chain.published = 0;
  chain.tip = 0;
}

void PrefixCache::Truncate(PrefixChain& chain, size_t num_blocks) {
  ATTEST_CHECK_EQ(chain.published, 0);
  if (chain.hashes.size() > num_blocks) chain.hashes.resize(num_blocks);
}

void PrefixCache::Remember(int32_t block) {
  const Record& entry = record(block);
  const auto [begin, end] = remembered_.equal_range(entry.hash);
  const bool is_known =
      std::any_of(begin, end, [&](const auto& item) { return item.second.record.node == entry.node; });
  if (is_known) return;
  remembered_.emplace(entry.hash,
                      Memory{.record = entry, .tokens = {TokensOf(block).begin(), TokensOf(block).end()}});
  oldest_remembered_.emplace_back(entry.hash, entry.node);
  if (oldest_remembered_.size() <= records_.size()) return;
  const auto [hash, node] = oldest_remembered_.front();
  oldest_remembered_.pop_front();
  const auto [first, last] = remembered_.equal_range(hash);
  const auto it =
      std::find_if(first, last, [&](const auto& item) { return item.second.record.node == node; });
  ATTEST_CHECK(it != last);
  remembered_.erase(it);
}

void PrefixCache::Drop(int32_t block) {
  Record& entry = records_[static_cast<size_t>(block)];
  ATTEST_CHECK(entry.node != 0);
  const auto [begin, end] = index_.equal_range(entry.hash);
  const auto it = std::find_if(begin, end, [block](const auto& item) { return item.second == block; });
  ATTEST_CHECK(it != end);
  index_.erase(it);
  entry = {};
}

void PrefixCache::Clear() {
  // From the last to the first, each to the head of the free list: it then ascends again.
  for (auto block = static_cast<int32_t>(records_.size()) - 1; block > kNullBlock; --block) {
    if (!Knows(block)) continue;
    pool_.Unkeep(block);
    records_[static_cast<size_t>(block)] = {};
  }
  index_.clear();
  remembered_.clear();
  oldest_remembered_.clear();
  ++epoch_;
}

}  // namespace attest
