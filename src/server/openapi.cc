#include "server/openapi.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/json_writer.h"
#include "server/openapi_schemas.h"

namespace attest {
namespace {

struct Operation {
  std::string_view method, path, summary;
  std::string_view request;  // schema of the body; "": none
  std::string_view answer;   // schema of status 200; "": see `media`
  std::string_view media;    // another content of status 200; "": none, and with no `answer` an empty body
};
constexpr Operation kOperations[] = {
    {"GET", "/", "The page for people: a chat, and what the engine does", "", "", "text/html"},
    {"GET", "/engine", "What the engine does now, for the page", "", "Object", ""},
    {"GET", "/docs", "This description as a page", "", "", "text/html"},
    {"GET", "/openapi.json", "This description", "", "Object", ""},
    {"GET", "/health", "200 while the engine works", "", "Health", ""},
    {"GET", "/ready", "200 while new requests are taken", "", "", ""},
    {"GET", "/version", "The version of the server", "", "Version", ""},
    {"GET", "/load", "How many requests are under way", "", "Load", ""},
    {"GET", "/metrics", "Prometheus text format 0.0.4", "", "", "text/plain"},
    {"GET", "/v1/models", "The served names", "", "ModelList", ""},
    {"GET", "/v1/models/{model_id}", "One served name; slashes in it may be percent-encoded", "", "Model",
     ""},
    {"POST", "/v1/completions", "Text for a prompt", "CompletionRequest", "Completion", "text/event-stream"},
    {"POST", "/v1/chat/completions", "Text for messages", "ChatCompletionRequest", "ChatCompletion",
     "text/event-stream"},
    {"POST", "/tokenize", "Token ids of a text or of messages", "TokenizeRequest", "Tokens", ""},
    {"POST", "/detokenize", "The text of token ids, special tokens included", "DetokenizeRequest", "Text",
     ""},
    {"GET", "/tokenizer_info", "tokenizer_config.json, flattened", "", "TokenizerInfo", ""},
    {"POST", "/start_profile", "Begins to count what steps do; false while it does", "", "Success", ""},
    {"POST", "/stop_profile", "What the steps since /start_profile did", "", "Success", ""},
    {"POST", "/reset_prefix_cache", "Forgets cached prefixes; false while anything runs", "", "Success", ""},
};

const Operation* Find(const RouteEntry& route) {
  const auto found = std::ranges::find_if(kOperations, [&](const Operation& operation) {
    return operation.method == route.method && operation.path == route.path;
  });
  return found == std::end(kOperations) ? nullptr : found;
}

constexpr std::string_view kHeaders =
    R"("headers":{"X-Request-Id":{"$ref":"#/components/headers/RequestId"}})";

std::string Content(std::string_view media, std::string_view schema) {
  return schema.empty()
             ? fmt::format(R"("{}":{{"schema":{{"type":"string"}}}})", media)
             : fmt::format(R"("{}":{{"schema":{{"$ref":"#/components/schemas/{}"}}}})", media, schema);
}

void AppendError(JsonWriter& json, std::string_view status, std::string_view words,
                 std::string_view extra_schema = {}) {
  const std::string schema =
      extra_schema.empty()
          ? R"({"$ref":"#/components/schemas/Error"})"
          : fmt::format(
                R"({{"anyOf":[{{"$ref":"#/components/schemas/Error"}},{{"$ref":"#/components/schemas/{}"}}]}})",
                extra_schema);
  json.Key(status).BeginObject().Key("description").String(words);
  json.Key("content").Raw(fmt::format(R"({{"application/json":{{"schema":{}}}}},{})", schema, kHeaders));
  json.EndObject();
}

void AppendOperation(JsonWriter& json, const RouteEntry& route, const ApiDescriptionInputs& inputs,
                     const CallLimits& limits) {
  static constexpr Operation kUndescribed{};
  const Operation* found = Find(route);
  const Operation& operation = found == nullptr ? kUndescribed : *found;
  std::string method(route.method), id = method + std::string(route.path);
  for (char& c : method) c = static_cast<char>(c | 0x20);
  for (char& c : id) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_word) c = '_';
  }
  json.Key(method).BeginObject().Key("operationId").String(id).Key("summary").String(operation.summary);
  const bool has_body = !operation.request.empty();
  if (route.path.find('{') != std::string_view::npos) {
    json.Key("parameters").BeginArray().BeginObject().Key("name").String("model_id");
    json.Key("in").String("path").Key("required").Bool(true);
    json.Key("schema").Raw(R"({"type":"string","minLength":1})");
    if (!limits.model_names.empty()) json.Key("example").String(limits.model_names.front());
    json.EndObject().EndArray();
  }
  if (has_body) {
    json.Key("requestBody")
        .Raw(fmt::format(R"({{"required":true,"content":{{{}}}}})",
                         Content("application/json", operation.request)));
  }
  const bool needs_key = inputs.has_keys && route.wants_key;
  if (needs_key) json.Key("security").Raw(R"([{"bearer":[]}])");

  json.Key("responses").BeginObject();
  const bool is_health = route.path == "/health";
  const bool has_json = !operation.answer.empty() && (!is_health || inputs.has_health_details);
  std::string content;
  if (has_json) content = Content("application/json", operation.answer);
  if (!operation.media.empty()) {
    const bool is_stream = operation.media == "text/event-stream";
    content +=
        fmt::format("{}{}", has_json ? "," : "",
                    Content(operation.media, is_stream ? std::string(operation.answer) + "Event" : ""));
  }
  json.Key("200").Raw(content.empty() ? fmt::format(R"({{"description":"Yes",{}}})", kHeaders)
                                      : fmt::format(R"({{"description":"The answer","content":{{{}}},{}}})",
                                                    content, kHeaders));
  if (has_body) AppendError(json, "400", "A field is wrong or not supported, or the body is not JSON");
  if (needs_key) AppendError(json, "401", "The key is missing or wrong");
  if (has_body || route.path.find('{') != std::string_view::npos) {
    AppendError(json, "404", "No such model");
  }
  if (has_body) AppendError(json, "413", "The body is too large");
  if (has_body) AppendError(json, "500", "The engine failed");
  if (has_body || is_health || route.path == "/ready") {
    AppendError(json, "503", "The queue is full, the engine has stopped, or the server drains",
                is_health && inputs.has_health_details ? "Health" : "");
  }
  AppendError(json, "default", "Any other error, such as a request that is no HTTP");
  json.EndObject().EndObject();
}

}  // namespace

std::string_view SummaryOf(const RouteEntry& route) {
  const Operation* operation = Find(route);
  return operation == nullptr ? std::string_view() : operation->summary;
}

std::string OpenApiJson(const ApiDescriptionInputs& inputs, const CallLimits& limits) {
  std::string out;
  JsonWriter json(out);
  json.BeginObject().Key("openapi").String("3.1.0").Key("info").BeginObject();
  json.Key("title").String("attest").Key("version").String(inputs.version);
  json.Key("description")
      .String(
          "An LLM server with the OpenAI API. A field that is null is a field left out; fields that are not "
          "known "
          "are skipped. HEAD is answered as GET without a body. Every response carries X-Request-Id.");
  json.EndObject().Key("paths").BeginObject();
  for (size_t i = 0; i < inputs.routes.size(); ++i) {
    const RouteEntry& route = inputs.routes[i];
    const auto same_path = [&](const RouteEntry& other) { return other.path == route.path; };
    const auto end = inputs.routes.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(inputs.routes.begin(), end, same_path)) continue;  // written with the first of its path
    json.Key(route.path).BeginObject();
    for (const RouteEntry& other : inputs.routes) {
      if (same_path(other)) AppendOperation(json, other, inputs, limits);
    }
    json.EndObject();
  }
  json.EndObject().Key("components").BeginObject();
  json.Key("headers").Raw(
      R"({"RequestId":{"description":"The request's own when sane, else a new one.","schema":{"type":"string"}}})");
  if (inputs.has_keys) {
    json.Key("securitySchemes").Raw(R"({"bearer":{"type":"http","scheme":"bearer"}})");
  }
  json.Key("schemas").BeginObject().Key("Object").Raw(R"({"type":"object"})");
  AppendSchemas(json, limits, inputs.has_priorities);
  json.EndObject().EndObject().EndObject();
  return out;
}

}  // namespace attest
