#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace attest {
namespace {

constexpr size_t kFewSymbols = 40;  // up to here a scan for the best pair beats a heap

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeModel::BpeModel(const Vocabulary& vocabulary, std::span<const BpeMerge> merges, const BpeOptions& options)
    : vocabulary_(vocabulary), options_(options) {
  byte_ids_.fill(-1);
  BuildPairs(merges);
  if (options_.byte_level) {
    for (size_t byte = 0; byte < 256; ++byte) {
      std::string text;
      AppendUtf8(ByteLevelAlphabet()[byte], text);
      byte_ids_[byte] = vocabulary_.Find(text);
    }
    if (options_.ignore_merges) {
      for (int32_t id = 0; id < vocabulary_.size(); ++id) {
        byte_texts_.Append(ByteLevelToBytes(vocabulary_.Text(id)).value_or(""));
      }
      byte_texts_.BuildIndex();
    }
    return;
  }
  for (size_t byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte));
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view text = vocabulary_.Text(id);
    if (text.empty() || text.size() > 3 || static_cast<size_t>(Utf8Length(text.data())) != text.size())
      continue;
    const char32_t c = DecodeValidUtf8(text.data());
    if (c >= character_ids_.size()) character_ids_.resize(c + 1, -1);
    character_ids_[c] = vocabulary_.Find(text);
  }
  BuildWordCuts(merges);
}

void BpeModel::BuildPairs(std::span<const BpeMerge> merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(merges.size() * 2, 16));
  pairs_.assign(size, {kNoPair, kNoRank, -1});
  pair_shift_ = 64 - std::countr_zero(size);
  for (const BpeMerge& merge : merges) {
    const uint64_t key = PairKey(merge.left, merge.right);
    size_t slot = (key * 0x9E3779B97F4A7C15ULL) >> pair_shift_;
    while (pairs_[slot].key != kNoPair && pairs_[slot].key != key) slot = (slot + 1) & (size - 1);
    pairs_[slot] = {key, merge.rank,
                    merge.result};  // of equal pairs the last counts, as in the reference library
  }
}

void BpeModel::BuildWordCuts(std::span<const BpeMerge> merges) {
  if (vocabulary_.Find(kSpaceMark) < 0) return;
  for (const BpeMerge& merge : merges) {
    for (const int32_t id : {merge.left, merge.right}) {
      // Tokens that do not stand for their text: what they join cannot be read off the text.
      if (id == options_.unk_id || std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end())
        return;
    }
    if (!vocabulary_.Text(merge.right).starts_with(kSpaceMark)) continue;
    const std::string_view left = vocabulary_.Text(merge.left);
    size_t last = left.size() - 1;
    while (last > 0 && (static_cast<uint8_t>(left[last]) & 0xC0) == 0x80) --last;
    joins_space_mark_.insert(DecodeValidUtf8(left.data() + last));
  }
  joins_space_mark_.insert(0x2581);  // runs of marks stay whole
  cuts_words_ = true;
}

const BpeModel::PairSlot* BpeModel::FindPair(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  const size_t mask = pairs_.size() - 1;
  for (size_t slot = (key * 0x9E3779B97F4A7C15ULL) >> pair_shift_;; slot = (slot + 1) & mask) {
    if (pairs_[slot].key == key) return &pairs_[slot];
    if (pairs_[slot].key == kNoPair) return nullptr;
  }
}

void BpeModel::Encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (options_.ignore_merges) {
    const int32_t id = options_.byte_level ? byte_texts_.Find(piece) : vocabulary_.Find(piece);
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  if (!cuts_words_) return EncodeWord(piece, scratch, ids);
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = WordEnd(piece, begin);
    EncodeWord(piece.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

size_t BpeModel::WordEnd(std::string_view piece, size_t begin) const {
  for (size_t at = begin + 1; at < piece.size();) {
    const size_t mark = piece.find(kSpaceMark, at);
    if (mark == std::string_view::npos) break;
    size_t last = mark - 1;
    while (last > begin && (static_cast<uint8_t>(piece[last]) & 0xC0) == 0x80) --last;
    if (!joins_space_mark_.contains(DecodeValidUtf8(piece.data() + last))) return mark;
    at = mark + kSpaceMark.size();
  }
  return piece.size();
}

void BpeModel::EncodeWord(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  BpeScratch::CacheEntry* entry = nullptr;
  if (word.size() <= sizeof(BpeScratch::CacheEntry::key)) {
    entry = &scratch.cache_[HashText(word) & scratch.cache_mask_];
    if (entry->length == word.size() && std::memcmp(entry->key, word.data(), word.size()) == 0) {
      ids.insert(ids.end(), entry->ids, entry->ids + entry->count);
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch.symbols_;
  symbols.clear();
  AddSymbols(word, symbols);
  if (symbols.size() <= kFewSymbols) {
    MergeFew(symbols);
  } else {
    MergeMany(scratch);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (entry != nullptr && symbols.size() <= std::size(entry->ids)) {
    entry->length = static_cast<uint8_t>(word.size());
    entry->count = static_cast<uint8_t>(symbols.size());
    std::memcpy(entry->key, word.data(), word.size());
    std::copy(symbols.begin(), symbols.end(), entry->ids);
  }
}

void BpeModel::AddSymbols(std::string_view word, std::vector<int32_t>& symbols) const {
  std::optional<int32_t> pending_unk;  // written before the next known character, or at the end
  const auto add_unknown = [&] {
    if (!options_.unk_id.has_value()) return;
    if (pending_unk.has_value() && !options_.fuse_unk) symbols.push_back(*pending_unk);
    pending_unk = options_.unk_id;
  };
  const auto add_known = [&](int32_t id) {
    if (pending_unk.has_value()) symbols.push_back(*pending_unk);
    pending_unk.reset();
    symbols.push_back(id);
  };
  if (options_.byte_level) {
    for (const char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      id >= 0 ? add_known(id) : add_unknown();
    }
  } else {
    for (size_t at = 0; at < word.size();) {
      const auto length = static_cast<size_t>(Utf8Length(word.data() + at));
      const std::string_view character = word.substr(at, length);
      at += length;
      const char32_t code_point = DecodeValidUtf8(character.data());
      const int32_t id = code_point < character_ids_.size() ? character_ids_[code_point]
                         : code_point < 0x10000             ? -1
                                                            : vocabulary_.Find(character);
      if (id >= 0) {
        add_known(id);
        continue;
      }
      const auto byte_id = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
      if (options_.byte_fallback &&
          std::all_of(character.begin(), character.end(), [&](char c) { return byte_id(c) >= 0; })) {
        // A pending unk is written after these, not before: so does the reference library.
        for (const char c : character) symbols.push_back(byte_id(c));
      } else {
        add_unknown();
      }
    }
  }
  if (pending_unk.has_value()) symbols.push_back(*pending_unk);
}

// Few symbols: scan for the lowest rank, close the gap, look up the two new pairs.
void BpeModel::MergeFew(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  if (count < 2) return;
  uint32_t ranks[kFewSymbols];
  int32_t results[kFewSymbols];
  const auto look_up = [&](size_t i) {
    const PairSlot* pair = FindPair(symbols[i], symbols[i + 1]);
    ranks[i] = pair == nullptr ? kNoRank : pair->rank;
    results[i] = pair == nullptr ? -1 : pair->result;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = results[best];
    for (size_t i = best + 1; i + 1 < count; ++i) symbols[i] = symbols[i + 1];
    // The pair right of the gap lost its left symbol and is looked up anew; the others move down.
    for (size_t i = best + 1; i + 2 < count; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols.resize(count);
}

// Many symbols: a heap of candidate pairs over a linked list. A candidate whose symbols changed since it was
// pushed no longer gives the same result token, which is how stale ones are told.
void BpeModel::MergeMany(BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols_;
  std::vector<BpeScratch::Link>& links = scratch.links_;
  std::vector<BpeScratch::Candidate>& heap = scratch.heap_;
  constexpr int32_t kMerged = -2;
  const auto count = static_cast<uint32_t>(symbols.size());
  links.resize(count);
  heap.clear();
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  for (uint32_t i = 0; i < count; ++i) {
    links[i] = {i == 0 ? count : i - 1, i + 1};
    if (i + 1 == count) break;
    if (const PairSlot* pair = FindPair(symbols[i], symbols[i + 1]))
      heap.push_back({pair->rank, i, pair->result});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](uint32_t left, uint32_t right) {
    if (const PairSlot* pair = FindPair(symbols[left], symbols[right])) {
      heap.push_back({pair->rank, left, pair->result});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const uint32_t right = links[top.at].next;
    if (symbols[top.at] == kMerged || right == count) continue;
    const PairSlot* pair = FindPair(symbols[top.at], symbols[right]);
    if (pair == nullptr || pair->result != top.result) continue;
    symbols[top.at] = top.result;
    symbols[right] = kMerged;
    const uint32_t next = links[right].next;
    links[top.at].next = next;
    if (next != count) {
      links[next].previous = top.at;
      push(top.at, next);
    }
    if (links[top.at].previous != count) push(links[top.at].previous, top.at);
  }
  std::erase(symbols, kMerged);
}

}  // namespace attest
