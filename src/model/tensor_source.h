// Takes tensors out of a checkpoint by name, checking name, type and shape together, and keeps count: what
// nobody took is an error at the end (bug class "the norm had another name and was skipped").
//
// Lives during one load, on the loading thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/checkpoint.h"
#include "kernels/matmul.h"

namespace attest {

// How rows of Q and K lie inside a head.
enum class HeadRowOrder {
  kHalfSplit,    // rotary pairs are rows (i, i + head_dim / 2), as Hugging Face stores them
  kInterleaved,  // rotary pairs are rows (2 i, 2 i + 1), as GGUF files of architecture llama store them
};

class TensorSource {
 public:
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;
  // `plain_dtype`: matrices of another plain type (f32, f16, bf16) are converted to it; quantised ones stay.
  TensorSource(const Checkpoint& checkpoint, std::optional<DType> plain_dtype, const Progress& progress);

  [[nodiscard]] bool Has(std::string_view name) const { return checkpoint_.FindTensor(name) != nullptr; }

  // A matrix [rows, cols] as stored (or converted); its bytes stay in the mapping (or a copy) until Release.
  // kNotFound, or kCorruptFile naming the tensor, what it is and what was expected.
  Expected<StoredMatrix> Matrix(const std::string& name, int64_t rows, int64_t cols);

  // The same for Q or K with `heads` heads, its rows put back into half-split order: whole stored rows move,
  // nothing is quantised again. The bytes live until Release.
  Expected<StoredMatrix> HeadMatrix(const std::string& name, int64_t rows, int64_t cols, int heads,
                                    HeadRowOrder order);

  // A vector of f32, f16 or bf16 as f32 (norm weights, biases).
  Expected<std::vector<float>> Vector(const std::string& name, int64_t size);
  Expected<std::vector<float>> HeadVector(const std::string& name, int64_t size, int heads,
                                          HeadRowOrder order);

  // Marks a tensor as known and not needed.
  void Ignore(std::string_view name) { taken_.emplace(name); }

  // The matrices handed out since the last Release are packed: their file pages and copies may go.
  void Release();

  // Every tensor was taken, or ends in one of `ignored_suffixes`; else kUnsupported names the first that was
  // not and counts the rest.
  [[nodiscard]] Status CheckAllTaken(std::initializer_list<std::string_view> ignored_suffixes) const;

 private:
  Expected<const TensorInfo*> Take(const std::string& name, const std::vector<int64_t>& shape);

  const Checkpoint& checkpoint_;
  const std::optional<DType> plain_dtype_;
  const Progress& progress_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
  std::set<std::string, std::less<>> taken_;
  std::vector<const TensorInfo*> in_use_;
  std::vector<std::vector<std::byte>> copies_;  // reordered or converted
};

}  // namespace attest
