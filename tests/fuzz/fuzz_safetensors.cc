// Any bytes as a safetensors file and as a shard index: errors, or tensors that can be read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = attest::ParseSafetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
  if (tensors) {
    for (const attest::TensorInfo& tensor : *tensors) {
      if (tensor.size_bytes == 0) continue;
      volatile std::byte ends = tensor.data[0] ^ tensor.data[tensor.size_bytes - 1];
      (void)ends;
    }
  } else {
    ATTEST_CHECK(tensors.error().message.find('\n') == std::string::npos);
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = attest::ParseSafetensorsIndex(text, "fuzz.json");
  if (index) {
    for (const auto& [name, shard] : *index) ATTEST_CHECK(shard.find('/') == std::string::npos);
  } else {
    ATTEST_CHECK(index.error().message.find('\n') == std::string::npos);
  }
  return 0;
}
