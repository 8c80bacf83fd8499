// tokenizer.json from anyone: either an error in one line, or a tokenizer that encodes and decodes without
// harm. The input is the document; what follows a zero byte, if there is one, is the text to encode.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view document = input.substr(0, zero);
  std::string text = "a  b<s>\n 12 'll \xE4\xBD\xA0\xFF";
  if (zero != std::string_view::npos) text = input.substr(zero + 1);

  const auto tokenizer = attest::Tokenizer::FromTokenizerJson(document);
  if (!tokenizer.has_value()) {
    if (tokenizer.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const bool parse : {true, false}) {
    const std::vector<int32_t> ids = (*tokenizer)->Encode(text, {.parse_special_tokens = parse});
    for (const int32_t id : ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
      (void)(*tokenizer)->TokenBytes(id);
    }
    const std::string whole = (*tokenizer)->Decode(ids, parse);
    attest::IncrementalDecoder decoder(**tokenizer, parse);
    std::string joined;
    for (const int32_t id : ids) joined += decoder.Append(id);
    joined += decoder.Finish();
    if (joined != whole || !attest::IsValidUtf8(whole)) std::abort();
  }
  return 0;
}
