// Byte-pair encoding of one piece of text: symbols are merged in order of rank, leftmost first among equals.
// Immutable after Build; each thread brings its own BpeScratch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "text/vocabulary.h"

namespace attest {

// What SentencePiece writes for a space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t result;
  uint32_t rank;  // lower merges first
};

struct BpeOptions {
  bool byte_level = false;  // pieces are raw bytes and tokens are written in GPT-2's alphabet
  bool byte_fallback = false;
  bool fuse_unk = false;
  bool ignore_merges = false;     // a piece that is a token is that token, whatever the merges say
  std::optional<int32_t> unk_id;  // without it, what has no token vanishes
};

// Working memory of one encoding thread: a bounded cache of piece -> ids and the merge buffers. Belongs to
// one model.
class BpeScratch {
 public:
  // As many cache entries as the vocabulary has tokens, within bounds; a power of two.
  explicit BpeScratch(int32_t vocab_size)
      : cache_mask_(std::bit_ceil(std::clamp(static_cast<size_t>(vocab_size), kMinEntries, kMaxEntries)) - 1),
        cache_(std::make_unique<CacheEntry[]>(cache_mask_ + 1)) {}

  // Gives back what one huge piece needed: 24 bytes and more for each of its bytes, which nobody needs again.
  void Trim() {
    if (symbols_.capacity() <= kKeptSymbols && heap_.capacity() <= kKeptSymbols) return;
    // Assigning {} would keep the memory.
    std::vector<int32_t>().swap(symbols_);
    std::vector<Candidate>().swap(heap_);
    std::vector<Link>().swap(links_);
  }

 private:
  friend class BpeModel;
  static constexpr size_t kMinEntries = 1 << 8;
  static constexpr size_t kMaxEntries = 1 << 15;  // 2 MiB; a new piece evicts the one in its place
  static constexpr size_t kKeptSymbols = 1 << 16;
  struct alignas(64) CacheEntry {
    uint8_t length = 0;  // 0 is empty
    uint8_t count = 0;
    char key[30];
    int32_t ids[8];
  };
  struct Candidate {
    uint32_t rank;
    uint32_t at;
    int32_t result;
  };
  struct Link {
    uint32_t previous;
    uint32_t next;
  };
  size_t cache_mask_;
  std::unique_ptr<CacheEntry[]> cache_;
  std::vector<int32_t> symbols_;
  std::vector<Candidate> heap_;
  std::vector<Link> links_;
};

class BpeModel {
 public:
  // `vocabulary` must outlive the model. REQUIRES: merges hold ids of the vocabulary.
  BpeModel(const Vocabulary& vocabulary, std::span<const BpeMerge> merges, const BpeOptions& options);

  // Appends the ids of `piece`. REQUIRES: valid UTF-8. O(n log n) in its length.
  void Encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct PairSlot {
    uint64_t key;
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  void BuildPairs(std::span<const BpeMerge> merges);
  void BuildWordCuts(std::span<const BpeMerge> merges);
  [[nodiscard]] const PairSlot* FindPair(int32_t left, int32_t right) const;
  [[nodiscard]] size_t WordEnd(std::string_view piece, size_t begin) const;
  void EncodeWord(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void AddSymbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void MergeFew(std::vector<int32_t>& symbols) const;
  void MergeMany(BpeScratch& scratch) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_;  // byte_level: of each byte; byte_fallback: of <0x00> to <0xFF>
  // Character models: ids of code points, as far as the vocabulary goes below 0x10000.
  std::vector<int32_t> character_ids_;
  Vocabulary byte_texts_;        // byte_level with ignore_merges: tokens as bytes; "" where not mappable
  std::vector<PairSlot> pairs_;  // open addressing, at most half full
  int pair_shift_ = 0;
  // Character models on whole texts: no merge joins a code point outside this set with a following U+2581, so
  // the text can be cut there and its words cached, with the same result.
  bool cuts_words_ = false;
  std::unordered_set<char32_t> joins_space_mark_;
};

}  // namespace attest
