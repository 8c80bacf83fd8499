#include "text/chat_template.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace attest {
namespace {

using Json = nlohmann::ordered_json;

jinja::Value FromJson(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value > static_cast<uint64_t>(INT64_MAX)) return static_cast<double>(value);
      return static_cast<int64_t>(value);
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      jinja::List list;
      for (const Json& item : json) list.push_back(FromJson(item));
      return list;
    }
    case Json::value_t::object: {
      jinja::Dict dict;
      for (const auto& [key, value] : json.items()) dict.emplace_back(key, FromJson(value));
      return dict;
    }
    default:
      return jinja::None{};
  }
}

Expected<Json> ParseJson(const std::string& text, const char* field) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{} is not valid JSON", field), field);
  return json;
}

Expected<jinja::Dict> Variables(const ChatTemplateInputs& inputs) {
  jinja::List messages;
  for (const ChatMessage& message : inputs.messages) {
    if (message.json.empty()) {
      messages.emplace_back(jinja::Dict{{"role", message.role}, {"content", message.content}});
    } else {
      ATTEST_ASSIGN_OR_RETURN(const Json json, ParseJson(message.json, "messages"));
      messages.push_back(FromJson(json));
    }
  }
  jinja::Dict variables = {
      {"messages", std::move(messages)}, {"tools", jinja::None{}},
      {"documents", jinja::None{}},      {"add_generation_prompt", inputs.add_generation_prompt},
      {"bos_token", inputs.bos_token},   {"eos_token", inputs.eos_token}};
  if (!inputs.tools_json.empty()) {
    ATTEST_ASSIGN_OR_RETURN(const Json json, ParseJson(inputs.tools_json, "tools"));
    jinja::SetKey(variables, "tools", FromJson(json));
  }
  if (!inputs.extra_json.empty()) {
    ATTEST_ASSIGN_OR_RETURN(const Json json, ParseJson(inputs.extra_json, "chat_template_kwargs"));
    if (!json.is_object()) {
      return Fail(ErrorCode::kInvalidArgument, "chat_template_kwargs is not a JSON object",
                  "chat_template_kwargs");
    }
    for (const auto& [key, value] : json.items()) jinja::SetKey(variables, key, FromJson(value));
  }
  return variables;
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Expected<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  ATTEST_ASSIGN_OR_RETURN(jinja::Body body, jinja::Parse(source));
  return ChatTemplate(std::make_unique<Impl>(Impl{std::move(body)}));
}

Expected<std::string> ChatTemplate::Render(const ChatTemplateInputs& inputs) const {
  ATTEST_ASSIGN_OR_RETURN(const jinja::Dict variables, Variables(inputs));
  const int64_t now = inputs.unix_time.value_or(
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  try {
    return jinja::Run(impl_->body, variables, now, jinja::Limits{});
  } catch (const jinja::RenderError& error) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("chat template line {}: {}", error.line, error.what()), "messages");
  }
}

}  // namespace attest
