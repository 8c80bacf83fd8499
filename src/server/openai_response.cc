#include "server/openai_response.h"

#include "server/api_error.h"
#include "server/json_writer.h"

namespace attest {
namespace {

constexpr std::string_view kData = "data: ";

void AppendUsage(JsonWriter& json, const Usage& usage) {
  json.Key("usage").BeginObject();
  json.Key("prompt_tokens").Int(usage.prompt_tokens);
  json.Key("total_tokens").Int(usage.prompt_tokens + usage.completion_tokens);
  json.Key("completion_tokens").Int(usage.completion_tokens);
  json.Key("prompt_tokens_details").BeginObject().Key("cached_tokens").Int(usage.cached_tokens).EndObject();
  json.EndObject();
}

void AppendFinish(JsonWriter& json, FinishReason finish, const StopReason& stop_reason) {
  json.Key("finish_reason").String(FinishReasonName(finish)).Key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&stop_reason)) {
    json.String(*text);
  } else if (const auto* id = std::get_if<int32_t>(&stop_reason)) {
    json.Int(*id);
  } else {
    json.Null();
  }
}

// Ends the list of choices and the document.
void CloseDocument(std::string& out, const Usage* usage) {
  out += ']';
  if (usage != nullptr) {
    out += ',';
    JsonWriter json(out);
    AppendUsage(json, *usage);
  }
  out += '}';
}

}  // namespace

ResponseWriter::ResponseWriter(bool is_chat, bool is_stream, std::string_view request_id,
                               std::string_view model, int64_t created_unix_seconds)
    : is_chat_(is_chat) {
  const std::string_view object = !is_chat    ? "text_completion"
                                  : is_stream ? "chat.completion.chunk"
                                              : "chat.completion";
  JsonWriter json(head_);
  json.BeginObject().Key("id").String(std::string(is_chat ? "chatcmpl-" : "cmpl-").append(request_id));
  json.Key("object").String(object).Key("created").Int(created_unix_seconds);
  json.Key("model").String(model).Key("choices").BeginArray();
}

std::string ResponseWriter::RoleEvent(int32_t index, const Usage* usage) const {
  std::string out(kData);
  out += head_;
  JsonWriter json(out);
  json.BeginObject().Key("index").Int(index).Key("delta").BeginObject();
  json.Key("role").String("assistant").Key("content").String("").EndObject();
  json.Key("logprobs").Null().Key("finish_reason").Null().EndObject();
  CloseDocument(out, usage);
  return out += "\n\n";
}

std::string ResponseWriter::TextEvent(int32_t index, std::string_view text, std::string_view logprobs,
                                      const Usage* usage) const {
  std::string out;
  out.reserve(head_.size() + text.size() + logprobs.size() + 160);
  out += kData;
  out += head_;
  JsonWriter json(out);
  json.BeginObject().Key("index").Int(index);
  if (is_chat_) {
    json.Key("delta").BeginObject().Key("content").String(text).EndObject();
  } else {
    json.Key("text").String(text);
  }
  json.Key("logprobs").Raw(logprobs).Key("finish_reason").Null().EndObject();
  CloseDocument(out, usage);
  return out += "\n\n";
}

std::string ResponseWriter::FinishEvent(int32_t index, FinishReason finish, const StopReason& stop_reason,
                                        const Usage* usage) const {
  std::string out(kData);
  out += head_;
  JsonWriter json(out);
  json.BeginObject().Key("index").Int(index);
  if (is_chat_) {
    json.Key("delta").BeginObject().EndObject();
  } else {
    json.Key("text").String("");
  }
  json.Key("logprobs").Null();
  AppendFinish(json, finish, stop_reason);
  json.EndObject();
  CloseDocument(out, usage);
  return out += "\n\n";
}

std::string ResponseWriter::UsageEvent(const Usage& usage) const {
  std::string out(kData);
  out += head_;
  CloseDocument(out, &usage);
  return out += "\n\n";
}

std::string ResponseWriter::ErrorEvent(int status, std::string_view message) {
  return std::string(kData) + ErrorBody(status, message) + "\n\n";
}

std::string ResponseWriter::Response(const std::vector<ChoiceResult>& choices, const Usage& usage) const {
  std::string out = head_;
  JsonWriter json(out);
  for (size_t i = 0; i < choices.size(); ++i) {
    json.BeginObject().Key("index").Int(static_cast<int64_t>(i));
    if (is_chat_) {
      json.Key("message").BeginObject().Key("role").String("assistant");
      json.Key("content").String(choices[i].text).EndObject();
    } else {
      json.Key("text").String(choices[i].text);
    }
    json.Key("logprobs").Raw(choices[i].logprobs);
    AppendFinish(json, choices[i].finish, choices[i].stop_reason);
    if (!is_chat_ && !choices[i].prompt_logprobs.empty()) {
      json.Key("prompt_logprobs").Raw(choices[i].prompt_logprobs);
    }
    json.EndObject();
  }
  CloseDocument(out, &usage);
  if (is_chat_ && !choices.empty() && !choices[0].prompt_logprobs.empty()) {
    // A chat has one prompt, so it stands beside the choices.
    out.pop_back();
    out += ",\"prompt_logprobs\":";
    out += choices[0].prompt_logprobs;
    out += '}';
  }
  return out;
}

namespace {

void AppendModel(JsonWriter& json, const ServedModel& model) {
  json.BeginObject().Key("id").String(model.id).Key("object").String("model");
  json.Key("created").Int(model.created_unix_seconds).Key("owned_by").String("attest");
  json.Key("root").String(model.root).Key("parent").Null();
  json.Key("max_model_len").Int(model.max_model_len).Key("permission").BeginArray().EndArray();
  json.EndObject();
}

}  // namespace

std::string ModelJson(const ServedModel& model) {
  std::string out;
  JsonWriter json(out);
  AppendModel(json, model);
  return out;
}

std::string ModelListJson(const std::vector<ServedModel>& models) {
  std::string out;
  JsonWriter json(out);
  json.BeginObject().Key("object").String("list").Key("data").BeginArray();
  for (const ServedModel& model : models) AppendModel(json, model);
  json.EndArray().EndObject();
  return out;
}

}  // namespace attest
