// A model's own chat template (Jinja) rendered as Hugging Face does: trim_blocks, lstrip_blocks, loop
// controls, tojson without HTML escapes, raise_exception and strftime_now. Templates come from model files,
// so they run with step and output limits and no I/O. Immutable after Parse; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace attest {

struct ChatMessage {
  std::string role;
  std::string content;
  // Whole message as JSON when it has more than role and content (tool calls, names, content parts); else
  // empty.
  std::string json;
};

struct ChatTemplateInputs {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::string tools_json;            // JSON array, or empty for none
  std::string extra_json;            // JSON object merged into the variables (chat_template_kwargs), or empty
  std::optional<int64_t> unix_time;  // what strftime_now shows; the clock when absent
};

class ChatTemplate {
 public:
  // kUnsupported names the construct and its line; kInvalidArgument is a syntax error with its line.
  static Expected<ChatTemplate> Parse(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // kInvalidArgument carries raise_exception's message, or the undefined name or type error with its line;
  // kResourceExhausted when a limit is hit.
  [[nodiscard]] Expected<std::string> Render(const ChatTemplateInputs& inputs) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attest
