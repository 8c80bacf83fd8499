#include "server/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/request_limits.h"

namespace attest {
namespace {

using nlohmann::json;

// null, a string, or a list of {"type":"text","text":...} parts, which are joined by line feeds.
Expected<std::string> ReadContent(const JsonFields& message, const std::string& field) {
  const json* content = message.Find("content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return WrongType(field, "a string or a list of text parts", *content);
  if (content->size() > kMaxContentParts) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} may hold at most {} parts, not {}", field, kMaxContentParts, content->size()),
                field);
  }
  std::string text;
  for (const json& part : *content) {
    if (!part.is_object()) return WrongType(field, "a list of text parts", part);
    const auto type = part.find("type");
    if (type == part.end() || *type != "text") {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("{} may only hold parts of type \"text\", not {}", field,
                              type == part.end() ? "one without a type" : DescribeJson(*type)),
                  field);
    }
    const auto part_text = part.find("text");
    if (part_text == part.end() || !part_text->is_string()) {
      return WrongType(field + ".text", "a string", part_text == part.end() ? json() : *part_text);
    }
    if (!text.empty()) text += '\n';
    text += part_text->get_ref<const std::string&>();
  }
  return text;
}

Status CheckKeys(const json& object, const std::string& field) {
  if (object.size() <= kMaxTemplateKeys) return {};
  return Fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{} holds an object of {} keys, the limit is {}", field, object.size(), kMaxTemplateKeys),
      field);
}

// Counts `value` and all inside of it towards `num_values`. The body's nesting has a limit already.
Status CheckTemplateValue(const json& value, const std::string& field, size_t& num_values) {
  if (++num_values > kMaxTemplateValues) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} brings the values that the chat template sees beside roles and texts over {}",
                            field, kMaxTemplateValues),
                field);
  }
  if (value.is_object()) ATTEST_RETURN_IF_ERROR(CheckKeys(value, field));
  if (!value.is_structured()) return {};
  for (const json& item : value) ATTEST_RETURN_IF_ERROR(CheckTemplateValue(item, field, num_values));
  return {};
}

Expected<ChatMessage> ReadMessage(const json& item, size_t index, size_t& num_values) {
  const std::string field = fmt::format("messages[{}]", index);
  if (!item.is_object()) return WrongType(field, "an object", item);
  const JsonFields fields(item, field + ".");
  ATTEST_ASSIGN_OR_RETURN(auto role, fields.String("role"));
  if (!role || role->empty())
    return Fail(ErrorCode::kInvalidArgument, field + ".role is missing", field + ".role");
  if (*role == "tool" || *role == "function") {
    return Fail(ErrorCode::kUnsupported, fmt::format("{}.role \"{}\" is not supported yet", field, *role),
                field + ".role");
  }
  ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("tool_calls", {"[]"}));
  ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("function_call", {}));
  // The newer name of the same role; few templates know it.
  if (*role == "developer") role = "system";
  ATTEST_ASSIGN_OR_RETURN(auto content, ReadContent(fields, field + ".content"));
  ChatMessage message{.role = *role, .content = std::move(content), .json = {}};
  const bool has_more = std::ranges::any_of(item.items(), [](const auto& entry) {
    return entry.key() != "role" && entry.key() != "content" && !entry.value().is_null();
  });
  if (has_more) {
    ATTEST_RETURN_IF_ERROR(CheckKeys(item, field));
    for (const auto& [key, value] : item.items()) {
      if (key != "content") ATTEST_RETURN_IF_ERROR(CheckTemplateValue(value, field, num_values));
    }
    json whole = item;
    whole["role"] = message.role;
    whole["content"] = message.content;
    message.json = whole.dump();
  }
  return message;
}

}  // namespace

Expected<std::vector<int32_t>> EncodeMessages(const JsonFields& fields, const CallLimits& limits) {
  const json* messages = fields.Find("messages");
  if (messages == nullptr) return Fail(ErrorCode::kInvalidArgument, "messages is missing", "messages");
  if (!messages->is_array() || messages->empty())
    return WrongType("messages", "a list of messages", *messages);
  if (messages->size() > kMaxMessages) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("messages may hold at most {} messages, not {}", kMaxMessages, messages->size()),
                "messages");
  }
  ChatTemplateInputs inputs;
  size_t num_values = 0;
  for (size_t i = 0; i < messages->size(); ++i) {
    ATTEST_ASSIGN_OR_RETURN(auto message, ReadMessage((*messages)[i], i, num_values));
    inputs.messages.push_back(std::move(message));
  }
  ATTEST_ASSIGN_OR_RETURN(const auto generation_prompt, fields.Bool("add_generation_prompt"));
  inputs.add_generation_prompt = generation_prompt.value_or(true);
  const Tokenizer& tokenizer = limits.tokenizer;
  if (const auto bos = tokenizer.bos_id()) inputs.bos_token = std::string(tokenizer.TokenText(*bos));
  if (const auto eos = tokenizer.eos_id()) inputs.eos_token = std::string(tokenizer.TokenText(*eos));
  if (const json* extra = fields.Find("chat_template_kwargs")) {
    if (!extra->is_object()) return WrongType("chat_template_kwargs", "an object", *extra);
    ATTEST_RETURN_IF_ERROR(CheckTemplateValue(*extra, "chat_template_kwargs", num_values));
    inputs.extra_json = extra->dump();
  }
  ATTEST_ASSIGN_OR_RETURN(const auto add_special, fields.Bool("add_special_tokens"));
  if (limits.chat_template == nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "this model has no chat template: use /v1/completions, or start the server with one",
                "messages");
  }
  auto text = limits.chat_template->Render(inputs);
  if (!text) {
    return Fail(text.error().code, fmt::format("the chat template refused: {}", text.error().message),
                "messages");
  }
  ATTEST_RETURN_IF_ERROR(CheckTextSize(text->size(), "messages", limits));
  // Templates write their own BOS.
  return tokenizer.Encode(*text, {.add_special_tokens = add_special.value_or(false)});
}

}  // namespace attest
