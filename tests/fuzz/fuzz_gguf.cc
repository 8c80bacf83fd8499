// Any bytes as a GGUF file: an error or a file whose every entry and tensor can be read.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = attest::GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) {
    ATTEST_CHECK(file.error().message.find('\n') == std::string::npos);
    return 0;
  }
  for (const attest::GgufEntry& entry : file->metadata()) {
    (void)file->FindInt(entry.key);
    (void)file->FindFloat(entry.key);
    (void)file->FindBool(entry.key);
    (void)file->FindInts(entry.key);
    (void)file->FindFloats(entry.key);
    uint64_t bytes = 0;
    if (const auto text = file->FindString(entry.key); text && *text) bytes += (*text)->size();
    if (const auto texts = file->FindStrings(entry.key); texts && *texts) {
      for (const auto text : **texts) bytes += text.size() + (text.empty() ? 0u : text.back() == 'x');
    }
    ATTEST_CHECK_LE(bytes, 2 * size);
  }
  for (const attest::TensorInfo& tensor : file->tensors()) {
    // The sanitizer watches the ends of every tensor.
    volatile std::byte ends = tensor.data[0] ^ tensor.data[tensor.size_bytes - 1];
    (void)ends;
  }
  return 0;
}
