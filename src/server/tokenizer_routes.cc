#include "server/tokenizer_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "server/chat_messages.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/request_limits.h"

namespace attest {
namespace {

using nlohmann::json;

// The ids a client may name: the model's, and those of a tokenizer that knows more.
int64_t NumIds(const CallLimits& limits) {
  return std::max<int64_t>(limits.vocab_size, limits.tokenizer.vocab_size());
}

Expected<std::vector<int32_t>> EncodeText(const JsonFields& fields, const CallLimits& limits) {
  ATTEST_ASSIGN_OR_RETURN(const auto prompt, fields.String("prompt"));
  if (!prompt) {
    return Fail(ErrorCode::kInvalidArgument, "prompt is missing: give a prompt (a string) or messages",
                "prompt");
  }
  ATTEST_RETURN_IF_ERROR(CheckTextSize(prompt->size(), "prompt", limits));
  ATTEST_ASSIGN_OR_RETURN(const auto add_special, fields.Bool("add_special_tokens"));
  return limits.tokenizer.Encode(*prompt, {.add_special_tokens = add_special.value_or(true)});
}

Expected<std::vector<int32_t>> EncodeChatForm(const JsonFields& fields, const CallLimits& limits) {
  if (fields.Find("prompt") != nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "prompt and messages cannot both be given", "messages");
  }
  ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("continue_final_message", {"false"}));
  ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("chat_template", {}));
  ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("tools", {"[]"}));
  return EncodeMessages(fields, limits);
}

}  // namespace

Expected<std::string> Tokenize(std::string_view body, const CallLimits& limits) {
  ATTEST_ASSIGN_OR_RETURN(const json object, ParseJsonObject(body));
  const JsonFields fields(object, {}, limits.reads);
  ATTEST_RETURN_IF_ERROR(ServedModelName(fields, limits));
  ATTEST_ASSIGN_OR_RETURN(const auto wants_strings, fields.Bool("return_token_strs"));
  ATTEST_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, fields.Find("messages") != nullptr
                                                              ? EncodeChatForm(fields, limits)
                                                              : EncodeText(fields, limits));
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("count").Int(static_cast<int64_t>(ids.size()));
  writer.Key("max_model_len").Int(limits.max_model_len).Key("tokens").BeginArray();
  for (const int32_t id : ids) writer.Int(id);
  writer.EndArray().Key("token_strs");
  if (wants_strings.value_or(false)) {
    writer.BeginArray();
    for (const int32_t id : ids) writer.String(limits.tokenizer.TokenText(id));
    writer.EndArray();
  } else {
    writer.Null();
  }
  writer.EndObject();
  return out;
}

Expected<std::string> Detokenize(std::string_view body, const CallLimits& limits) {
  ATTEST_ASSIGN_OR_RETURN(const json object, ParseJsonObject(body));
  const JsonFields fields(object, {}, limits.reads);
  ATTEST_RETURN_IF_ERROR(ServedModelName(fields, limits));
  if (fields.Find("tokens") == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "tokens is missing", "tokens");
  }
  ATTEST_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          fields.Ids("tokens", NumIds(limits), kMaxListedIds));
  // Four million times the longest token of a vocabulary are a gigabyte.
  size_t bytes = 0;
  for (const int32_t id : ids) {
    if (id < limits.tokenizer.vocab_size()) bytes += limits.tokenizer.TokenText(id).size();
  }
  ATTEST_RETURN_IF_ERROR(CheckTextSize(bytes, "tokens", limits));
  std::string out;
  JsonWriter(out)
      .BeginObject()
      .Key("prompt")
      .String(limits.tokenizer.Decode(ids, /*skip_special_tokens=*/false))
      .EndObject();
  return out;
}

std::string TokenizerInfoJson(const Tokenizer& tokenizer, std::string_view tokenizer_config_json,
                              std::string_view chat_template) {
  json info = json::parse(tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  if (!info.is_object()) info = json::object();
  // Tables as long as the vocabulary's tail, which nobody reads here.
  info.erase("added_tokens_decoder");
  // Some configs hold {"content": "</s>", "lstrip": false, ...} where clients read a string.
  for (auto& [key, value] : info.items()) {
    if (!value.is_object()) continue;
    if (const auto content = value.find("content"); content != value.end() && content->is_string()) {
      value = json(content->get<std::string>());
    }
  }
  const auto set_token = [&](const char* key, std::optional<int32_t> id) {
    if (id) info[key] = std::string(tokenizer.TokenText(*id));
  };
  set_token("bos_token", tokenizer.bos_id());
  set_token("eos_token", tokenizer.eos_id());
  if (!info.contains("tokenizer_class") || !info["tokenizer_class"].is_string()) {
    info["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
  if (chat_template.empty()) {
    info.erase("chat_template");
  } else {
    info["chat_template"] = std::string(chat_template);
  }
  return info.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

}  // namespace attest
