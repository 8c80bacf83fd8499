// Row boundaries of a batch of sequences: cu_seqlens. The type guarantees n + 1 entries, first 0, monotone,
// last == total. (vLLM PR #34570's review found an array one entry short; here it cannot be built.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace attest {

class CuSeqlens {
 public:
  CuSeqlens() : offsets_{0} {}

  // From one length per sequence. kInvalidArgument names the sequence whose length is negative or where the
  // sum passes 2^31 - 1.
  static Expected<CuSeqlens> FromLengths(std::span<const int32_t> lengths);
  // From ready offsets; kInvalidArgument names the entry that breaks a guarantee, and `total` when the last
  // entry differs from it.
  static Expected<CuSeqlens> FromOffsets(std::span<const int32_t> offsets, int64_t total);

  [[nodiscard]] int num_seqs() const { return static_cast<int>(offsets_.size()) - 1; }
  [[nodiscard]] int32_t begin(int seq) const { return offsets_[static_cast<size_t>(seq)]; }
  [[nodiscard]] int32_t end(int seq) const { return offsets_[static_cast<size_t>(seq) + 1]; }
  [[nodiscard]] int32_t length(int seq) const { return end(seq) - begin(seq); }
  [[nodiscard]] int32_t total() const { return offsets_.back(); }
  // [num_seqs + 1]
  [[nodiscard]] std::span<const int32_t> offsets() const { return offsets_; }

 private:
  std::vector<int32_t> offsets_;
};

}  // namespace attest
