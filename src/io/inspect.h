// What a checkpoint is made of, in numbers. Plain data; printing is the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "io/checkpoint.h"
#include "tensor/dtype.h"

namespace attest {

struct DTypeSummary {
  DType dtype = DType::kF32;
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

struct CheckpointSummary {
  CheckpointFormat format = CheckpointFormat::kGguf;
  std::vector<DTypeSummary> dtypes;  // only those present, in DType order
  int64_t tensors = 0;
  int64_t elements = 0;      // parameters: a quantised weight counts once
  int64_t tensor_bytes = 0;  // of tensor data
  int64_t file_bytes = 0;    // of all files: tensor data, metadata, padding
};

[[nodiscard]] CheckpointSummary Summarize(const Checkpoint& checkpoint);

}  // namespace attest
