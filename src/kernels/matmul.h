// y = x W^T for weights that stay in their stored (quantised or 16-bit) form, repacked once at load for the
// path this CPU takes. Rows of W are output features, as in a checkpoint: W is [out_features, in_features].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_team.h"
#include "device/cpu.h"
#include "tensor/buffer.h"
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

// A repacked weight matrix. Owns its bytes (2 MiB pages); same size as stored, up to padding of rows to 16.
// Immutable after Pack: any number of threads may read it.
class PackedMatrix {
 public:
  struct PackOptions {
    CpuFeatures cpu;
    ComputeMode compute = ComputeMode::kFast;
    BufferArena* arena = nullptr;  // where the bytes lie; must outlive the matrix. nullptr: pages of its own
    std::string forced_kernel;     // a name of MatMulKernels(compute); "" takes the best this CPU has
    // A row's bits do not depend on how many rows are multiplied with it: one order of sums for every number
    // of rows. Leaves out the kernels that switch to bf16 when there are many.
    bool rowwise = false;
  };

  PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;
  ~PackedMatrix();

  // Stacks `parts` (same cols; dtypes may differ) along rows into one matrix, so that Q, K and V, or gate and
  // up, run as one product. The stored bytes are not needed afterwards. kInvalidArgument names the part and
  // its value, or lists the known kernels when the forced one is unknown; kUnsupported when the forced one
  // needs what this CPU lacks.
  static Expected<PackedMatrix> Pack(std::span<const StoredMatrix> parts, const PackOptions& options,
                                     ThreadTeam& team);

  [[nodiscard]] int64_t rows() const;
  [[nodiscard]] int64_t cols() const;
  [[nodiscard]] int64_t size_bytes() const;
  [[nodiscard]] std::string kernel_name() const;  // "matmul_q4_1_avx2", joined by '+' for mixed parts

  // out[cols] = row `row`, dequantised exactly as kernels/dequantize.h does. For embedding look-ups of a tied
  // matrix. Any thread.
  void DequantizeRow(int64_t row, float* out) const;

  struct Impl;
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Names that PackOptions::forced_kernel takes, best first: those this CPU can run, or all with cpu ==
// nullptr.
//   amx          kFast   bf16 tiles from 33 rows on, below as avx512_vnni
//   avx512_bf16  kFast   bf16 dot products from 9 rows on, below as avx512_vnni
//   avx512_vnni  kFast   16-bit activations, one scale per 32 columns
//   avx512       both    f32
//   avx2         kFast   16-bit activations, one scale per 32 columns
//   avx2_f32     both    f32
//   neon_i8mm    kFast   16-bit activations as two bytes, one scale per 32 columns
//   neon_dot     kFast   the same products, four bytes at a time: the same bits
//   neon         both    f32
//   portable     both    f32
// Plain types (f32, f16, bf16) are multiplied in f32 except by the bf16 kernels.
[[nodiscard]] std::vector<std::string> MatMulKernels(ComputeMode compute, const CpuFeatures* cpu);

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
// Used by one MatMul at a time.
class MatMulScratch {
 public:
  MatMulScratch();
  ~MatMulScratch();
  MatMulScratch(const MatMulScratch&) = delete;
  MatMulScratch& operator=(const MatMulScratch&) = delete;

  // Makes room for products of up to `max_tokens` rows, so that MatMul allocates nothing. Without it MatMul
  // grows the scratch itself and stops the process when the system refuses memory.
  Status Reserve(const PackedMatrix& w, int64_t max_tokens, const ThreadTeam& team);

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Runs one region on the team (call from outside a region). y does not overlap x.
//
// What a row's result depends on: its own x, W, bias and the kernel; never on values of other rows. The
// number of rows may select another instruction sequence, so the same row in batches of different sizes
// agrees to rounding (f32 sums in another order; with the bf16 kernels, bf16 against 16-bit activations), not
// to the bit, unless W was packed rowwise. A row of x that holds NaN or infinity gives a row of y that is not
// finite: nothing is hidden by rounding to integers. Values of x below 2^-100 may count as 0.
void MatMul(const PackedMatrix& w, const MatMulArgs& args, MatMulScratch& scratch, ThreadTeam& team);

}  // namespace attest
