// What the front end reads from a model's files: tokenizer, chat template, end tokens, default sampling.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace attest {

struct TextAssets {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;  // absent: the model has none
  std::string chat_template_text;             // its source, or empty
  std::string tokenizer_config_json;          // tokenizer_config.json; made from the keys of a GGUF file
  std::vector<int32_t> eos_ids;               // end a generation: the config's and the tokenizer's
  SamplingParams default_sampling;            // from generation_config.json
};

// What replaces the model's own files; "" keeps them.
struct TextSources {
  std::string chat_template_file = {};
  std::filesystem::path tokenizer = {};    // a folder or a .gguf file, also for the chat template
  std::string generation_config = "auto";  // auto: the model's; vllm: none; a folder or a file
};
// Errors name the file and the field.
[[nodiscard]] Expected<TextAssets> LoadTextAssets(const Checkpoint& checkpoint, const ModelConfig& config,
                                                  const TextSources& sources);
// The tokenizer alone, for models whose architecture this build cannot run.
[[nodiscard]] Expected<std::unique_ptr<Tokenizer>> LoadTokenizer(const Checkpoint& checkpoint);

// The prompt ids of a chat: the template's text, encoded without adding BOS or EOS (the template writes its
// own).
[[nodiscard]] Expected<std::vector<int32_t>> EncodeChat(const TextAssets& assets,
                                                        const std::vector<ChatMessage>& messages);

}  // namespace attest
