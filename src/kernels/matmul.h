// y = x W^T for weights that stay in their stored (quantised or 16-bit) form, repacked once at load for the
// path this CPU takes. Rows of W are output features, as in a checkpoint: W is [out_features, in_features].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/thread_team.h"
#include "device/cpu.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace attest {

// How products are computed. kPrecise keeps every product in float32 (dequantised weights times f32
// activations): it separates bugs from rounding. kFast may round activations to bf16, or to 16-bit integers
// (two int8 halves) with one scale per block, never to plain 8 bits.
enum class ComputeMode { kFast, kPrecise };

// A weight matrix as it lies in a file: rows of whole blocks, dense.
struct StoredMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;  // out_features
  int64_t cols = 0;  // in_features, a multiple of BlockElements(dtype)
};

class MatMulKernel;  // one implementation (ISA x weight type)

// A repacked weight matrix. Owns its bytes (2 MiB pages); same size as stored, up to padding of rows.
class PackedMatrix {
 public:
  PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;
  ~PackedMatrix();

  // Stacks `parts` (same cols; dtypes may differ) along rows into one matrix, so that Q, K and V, or gate and
  // up, run as one product. `isa` forces a path by level; the best of `cpu` when it is nullopt-like (see
  // PackOptions).
  struct PackOptions {
    CpuFeatures cpu;
    ComputeMode compute = ComputeMode::kFast;
    std::string
        forced_kernel;  // "" chooses; an unknown or unsupported name is an error that lists the known ones
  };
  static Expected<PackedMatrix> Pack(std::span<const StoredMatrix> parts, const PackOptions& options,
                                     ThreadTeam& team);

  [[nodiscard]] int64_t rows() const;
  [[nodiscard]] int64_t cols() const;
  [[nodiscard]] int64_t size_bytes() const;
  [[nodiscard]] std::string kernel_name() const;  // "matmul_q4_1_avx2", joined by '+' for mixed parts

  // out[cols] = row `row`, dequantised. For embedding look-ups of a tied matrix. Any thread.
  void DequantizeRow(int64_t row, float* out) const;

  struct Impl;
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

enum class MatMulEpilogue {
  kStore,  // y = x W^T
  kAdd,    // y += x W^T (residual stream)
};

struct MatMulArgs {
  View<const float, 2> x;       // [num_tokens, cols], last stride 1
  View<float, 2> y;             // [num_tokens, rows], last stride 1
  const float* bias = nullptr;  // [rows], added before the epilogue
  MatMulEpilogue epilogue = MatMulEpilogue::kStore;
};

// Scratch that lives as long as the caller wants to reuse it (quantised activations, dequantised panels).
class MatMulScratch {
 public:
  MatMulScratch();
  ~MatMulScratch();
  MatMulScratch(const MatMulScratch&) = delete;
  MatMulScratch& operator=(const MatMulScratch&) = delete;
  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Runs one region on the team (call from outside a region). For a given weight matrix and kernel, the result
// of a row does not depend on the other rows beyond rounding.
void MatMul(const PackedMatrix& w, const MatMulArgs& args, MatMulScratch& scratch, ThreadTeam& team);

}  // namespace attest
