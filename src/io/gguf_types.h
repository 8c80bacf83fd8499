// Tensor type numbers of GGUF and what attest makes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace attest {

[[nodiscard]] std::optional<DType> GgufTensorType(uint32_t id);  // nullopt: not supported
// For messages: "39 (MXFP4)", or the bare number of a type nobody has named yet.
[[nodiscard]] std::string DescribeGgufTensorType(uint32_t id);
[[nodiscard]] std::string SupportedGgufTensorTypes();  // "F32 (0), F16 (1), ..."

}  // namespace attest
