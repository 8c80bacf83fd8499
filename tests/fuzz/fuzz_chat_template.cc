// The input is a template: parsing refuses it or rendering ends, within the limits, whatever it is.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed =
      attest::ChatTemplate::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed) return 0;
  attest::ChatTemplateInputs inputs;
  inputs.messages.push_back({.role = "system", .content = "Be brief.", .json = {}});
  inputs.messages.push_back({.role = "user", .content = "Hé 🙂", .json = {}});
  inputs.tools_json = R"([{"name": "f", "n": 1.5, "list": [1, null, "x"]}])";
  inputs.unix_time = 0;
  const auto rendered = parsed->Render(inputs);
  static_cast<void>(rendered);
  return 0;
}
