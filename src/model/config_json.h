// Reads a ModelConfig from the text of a Hugging Face config.json. Strict: a missing required key, an unknown
// rope type, or a key about rope, windows, norms or softcaps that nothing here read is an error that names
// the key and its value, because each of those has made an engine serve plausible nonsense. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "model/config.h"

namespace attest {

struct JsonConfigInput {
  std::string_view config;             // text of config.json
  std::string_view generation_config;  // text of generation_config.json, "" when the folder has none
  bool has_lm_head = false;            // the checkpoint holds lm_head.weight
  std::string name;                    // for people, when config.json names none
};

// Accepts the spellings of transformers 4 (rope_theta + rope_scaling{type|rope_type}) and 5
// (rope_parameters). kUnsupported: another architecture or a feature this decoder lacks. kCorruptFile:
// missing or ill-typed keys.
[[nodiscard]] Expected<ModelConfig> ConfigFromJson(const JsonConfigInput& input);

}  // namespace attest
