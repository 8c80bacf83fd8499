#include "io/inspect.h"

#include <map>

namespace attest {

CheckpointSummary Summarize(const Checkpoint& checkpoint) {
  CheckpointSummary summary;
  summary.format = checkpoint.format();
  summary.file_bytes = checkpoint.file_bytes();
  std::map<DType, DTypeSummary> by_dtype;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    int64_t elements = 1;  // cannot overflow: the readers bounded the product
    for (const int64_t dim : tensor.shape) elements *= dim;
    DTypeSummary& entry = by_dtype[tensor.dtype];
    entry.dtype = tensor.dtype;
    ++entry.tensors;
    entry.elements += elements;
    entry.bytes += tensor.size_bytes;
    ++summary.tensors;
    summary.elements += elements;
    summary.tensor_bytes += tensor.size_bytes;
  }
  for (const auto& [dtype, entry] : by_dtype) summary.dtypes.push_back(entry);
  return summary;
}

}  // namespace attest
