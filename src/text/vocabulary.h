// Token texts by id and ids by text, in one block of memory. Filled once, then immutable; any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attest {

// Quick and well mixed; not for untrusted tables that grow without bound (ours hold the vocabulary alone).
[[nodiscard]] inline uint64_t HashText(std::string_view text) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
  const auto mix = [](uint64_t x) {
    const auto wide = static_cast<unsigned __int128>(x) * kFactor;
    return static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
  };
  uint64_t hash = text.size() + 1;
  const char* p = text.data();
  size_t left = text.size();
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    hash = mix(hash ^ word);
  }
  uint64_t tail = 0;
  if (left > 0) std::memcpy(&tail, p, left);
  return mix(hash ^ tail);
}

class Vocabulary {
 public:
  // Takes texts in order of their ids. Ids are the positions.
  void Append(std::string_view text);
  // Builds the index. With equal texts the last one wins.
  void BuildIndex();

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(begin_.size()) - 1; }
  // REQUIRES: id in [0, size).
  [[nodiscard]] std::string_view Text(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(texts_).substr(begin_[i], begin_[i + 1] - begin_[i]);
  }
  // -1 when absent. Empty texts are not indexed.
  [[nodiscard]] int32_t Find(std::string_view text) const;

 private:
  std::string texts_;
  std::vector<uint32_t> begin_ = {0};
  std::vector<int32_t> slots_;  // power of two, at most half full; -1 is empty
};

}  // namespace attest
