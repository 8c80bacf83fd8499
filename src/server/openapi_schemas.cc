#include "server/openapi_schemas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/request.h"
#include "server/openai_request.h"
#include "server/request_limits.h"
#include "server/tokenizer_routes.h"

namespace attest {
namespace {

using Kind = FieldRead::Kind;

struct Meaning {
  std::string_view field, words;
};
constexpr Meaning kMeanings[] = {
    {"model", "A served name; the first one when left out."},
    {"prompt", "Text, token ids, or a list of either. Token ids get no BOS."},
    {"messages", "The chat so far, rendered through the model's own template."},
    {"stream", "Answer as server-sent events."},
    {"stream_options", "Only with stream true."},
    {"stream_options.include_usage", "One more chunk at the end, with the usage and no choices."},
    {"stream_options.continuous_usage_stats", "The usage so far in every chunk."},
    {"echo", "The prompt precedes the text; max_tokens may then be 0."},
    {"max_tokens", "Most tokens to generate; cut to what fits behind the prompt."},
    {"max_completion_tokens", "The newer name of max_tokens; it wins."},
    {"min_tokens", "Until then nothing ends the text. At most max_tokens."},
    {"temperature", "0 is greedy."},
    {"top_p", "Draw from the smallest set of tokens whose mass reaches this."},
    {"typical_p", "Draw from the locally typical set of this mass."},
    {"min_p", "Drop tokens below this share of the best one's probability."},
    {"top_k", "Most likely tokens to draw from; 0 and -1 are all."},
    {"seed", "Same seed, same text. Sample i of a prompt draws with seed + i."},
    {"ignore_eos", "Go on after the model's own end tokens."},
    {"stop_token_ids", "End tokens beside the model's own."},
    {"presence_penalty", "Subtracted from the logits of tokens that the output holds."},
    {"frequency_penalty", "Subtracted once per time that the output holds a token."},
    {"repetition_penalty", "Divides the logits of tokens of prompt and output; 1 is off."},
    {"logit_bias", "Added to the logits, by token id."},
    {"allowed_token_ids", "Nothing else can be drawn."},
    {"bad_words", "Texts that the output never holds."},
    {"logprobs", "Completions: how many best tokens to tell. Chat: whether to tell logprobs at all."},
    {"top_logprobs", "Chat: how many best tokens to tell; with logprobs true only."},
    {"prompt_logprobs", "The same for the tokens of the prompt; not with stream true."},
    {"return_tokens_as_token_ids", "Logprobs show tokens as token_id:5."},
    {"stop", "Texts that end the output; they are no part of it."},
    {"include_stop_str_in_output", "The stop text stays in the output."},
    {"n", "Choices of each prompt."},
    {"best_of",
     "Samples of each prompt, at least n: the n likeliest per token are the choices. Not with stream."},
    {"priority", "Smaller goes first; other than 0 only with --scheduling-policy priority."},
    {"cache_salt", "Prefixes are shared only with requests of the same salt."},
    {"skip_special_tokens", "False shows special tokens as text."},
    {"add_special_tokens", "Whether the text gets the model's BOS; true for prompts, false for chats."},
    {"add_generation_prompt", "Whether the template opens the assistant's turn; true by default."},
    {"chat_template_kwargs", "Handed to the template as variables."},
    {"return_token_strs", "Also the tokens as the vocabulary spells them."},
    {"tokens", "Token ids."},
};

// Bodies on which a parser asks for every field it knows.
struct Probe {
  std::string_view schema, body;
};
constexpr Probe kProbes[] = {
    {"CompletionRequest", R"({"prompt":[0],"echo":true,"logprobs":1,"stream":true,"stream_options":{}})"},
    {"ChatCompletionRequest",
     R"({"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{}})"},
    {"TokenizeTextRequest", R"({"prompt":"a"})"},
    {"TokenizeChatRequest", R"({"messages":[{"role":"user","content":"a"}]})"},
    {"DetokenizeRequest", R"({"tokens":[0]})"},
};

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

constexpr std::string_view kMessage =
    R"({{"type":"object","required":["role"],"properties":{{
"role":{{"type":"string","minLength":1,"not":{{"enum":["tool","function"]}},"description":"developer is read as system"}},
"content":{{"anyOf":[{{"type":["string","null"]}},{{"type":"array","maxItems":{},"items":{{"type":"object","required":["type","text"],"properties":{{"type":{{"const":"text"}},"text":{{"type":"string"}}}}}}}}]}},
"tool_calls":{{"enum":[null,[]]}},"function_call":{{"type":"null"}}}}}})";

// Shapes that a parser reads by hand.
std::optional<std::string> SchemaByHand(std::string_view schema, std::string_view field,
                                        const CallLimits& limits, bool has_priorities) {
  const int64_t last_id = limits.vocab_size - 1;
  const bool empty_text_has_tokens = !limits.tokenizer.Encode("", {.add_special_tokens = true}).empty();
  const std::string text =
      fmt::format(R"({{"type":"string","minLength":{}}})", empty_text_has_tokens ? 0 : 1);
  if (field == "model") {
    std::vector<std::string> names;
    for (const std::string& name : limits.model_names) names.push_back(Quoted(name));
    return fmt::format(R"({{"enum":[{},"",null]}})", fmt::join(names, ","));
  }
  if (field == "prompt" && schema == "CompletionRequest") {
    const std::string ids = fmt::format(
        R"({{"type":"array","minItems":1,"maxItems":{},"items":{{"type":"integer","minimum":0,"maximum":{}}}}})",
        limits.max_model_len - 1, last_id);
    return fmt::format(
        R"({{"anyOf":[{0},{1},{{"type":"array","minItems":1,"maxItems":{2},"items":{0}}},{{"type":"array","minItems":1,"maxItems":{2},"items":{1}}}]}})",
        text, ids, kMaxPrompts);
  }
  // /tokenize has two forms, told apart by messages.
  if ((schema == "TokenizeTextRequest" && field == "messages") ||
      (schema == "TokenizeChatRequest" && field == "prompt")) {
    return R"({"type":"null"})";
  }
  if (field == "prompt") return R"({"type":"string"})";
  if (field == "messages") {
    return fmt::format(R"({{"type":"array","minItems":1,"maxItems":{},"items":{}}})", kMaxMessages,
                       fmt::format(kMessage, kMaxContentParts));
  }
  if (field == "stop") {
    const std::string word =
        fmt::format(R"({{"type":"string","minLength":1,"maxLength":{}}})", kMaxStopBytes);
    return fmt::format(R"({{"anyOf":[{{"type":"null"}},{},{{"type":"array","maxItems":{},"items":{}}}]}})",
                       word, kMaxStops, word);
  }
  if (field == "logit_bias") {
    return fmt::format(
        R"({{"type":["object","null"],"propertyNames":{{"pattern":"{}"}},"additionalProperties":{{"type":"number","minimum":{},"maximum":{}}}}})",
        IntegerPattern(last_id), -kMaxBias, kMaxBias);
  }
  if (field == "bad_words") {
    return fmt::format(
        R"({{"type":["array","null"],"maxItems":{},"items":{{"type":"string","maxLength":{},"pattern":"[^ ]"}}}})",
        kMaxBadWords, kMaxBadWordBytes);
  }
  if (field == "chat_template_kwargs") return R"({"type":["object","null"]})";
  if (field == "cache_salt") {
    return fmt::format(R"({{"type":["string","null"],"minLength":1,"maxLength":{}}})", kMaxSaltBytes);
  }
  if (field == "allowed_token_ids") {
    return fmt::format(
        R"({{"type":["array","null"],"minItems":1,"maxItems":{},"items":{{"type":"integer","minimum":0,"maximum":{}}}}})",
        limits.vocab_size, last_id);
  }
  if (field == "logprobs" && schema == "CompletionRequest") {
    return fmt::format(
        R"({{"anyOf":[{{"type":["integer","null"],"minimum":0,"maximum":{}}},{{"const":false}}]}})",
        kMaxTopLogprobs);
  }
  if (field == "priority" && !has_priorities) return R"({"enum":[0,null]})";
  if (field == "tokens") {
    const auto ids = std::max<int64_t>(limits.vocab_size, limits.tokenizer.vocab_size());
    return fmt::format(R"({{"type":"array","items":{{"type":"integer","minimum":0,"maximum":{}}}}})",
                       ids - 1);
  }
  return std::nullopt;
}

std::string SchemaOf(const FieldRead& read) {
  switch (read.kind) {
    case Kind::kBool:
      return R"({"type":["boolean","null"]})";
    case Kind::kInt:
      return fmt::format(R"({{"type":["integer","null"],"minimum":{},"maximum":{}}})", read.min, read.max);
    case Kind::kNumber:
      return fmt::format(R"({{"type":["number","null"],"{}":{},"maximum":{}}})",
                         read.is_above_min ? "exclusiveMinimum" : "minimum", read.min_number,
                         read.max_number);
    case Kind::kString:
      return R"({"type":["string","null"]})";
    case Kind::kIds:
      return fmt::format(
          R"({{"type":["array","null"],"maxItems":{},"items":{{"type":"integer","minimum":{},"maximum":{}}}}})",
          read.max_size, read.min, read.max);
    case Kind::kFixed: {
      std::string values = "null";
      for (const std::string& value : read.neutral) values += "," + value;
      return fmt::format(R"({{"enum":[{}]}})", values);
    }
    case Kind::kOther:
      break;
  }
  return "{}";
}

// `schema` with a description as its first key.
std::string Described(std::string_view words, std::string_view schema) {
  if (words.empty()) return std::string(schema);
  return fmt::format(R"({{"description":{}{}{})", Quoted(words), schema == "{}" ? "" : ",", schema.substr(1));
}

void AppendRequestSchema(JsonWriter& json, const Probe& probe, const CallLimits& limits,
                         bool has_priorities) {
  const FieldReads reads = ReadsOf(probe.schema, limits);
  const auto write = [&](const FieldRead& read, std::string_view name) {
    const bool is_refused = read.kind == Kind::kFixed;
    const std::string schema =
        SchemaByHand(probe.schema, read.name, limits, has_priorities).value_or(SchemaOf(read));
    const std::string_view words = MeaningOf(read.name);
    json.Key(name).Raw(Described(is_refused && words.empty() ? "Not supported yet." : words, schema));
  };
  json.Key(probe.schema).BeginObject().Key("type").String("object");
  const bool is_chat = probe.schema.find("Chat") != std::string_view::npos;
  json.Key("required").BeginArray();
  json.String(is_chat ? "messages" : probe.schema == "DetokenizeRequest" ? "tokens" : "prompt").EndArray();
  json.Key("properties").BeginObject();
  for (const FieldRead& read : reads) {
    if (read.name.find('.') != std::string::npos) continue;
    const std::string prefix = read.name + ".";
    const auto is_inner = [&](const FieldRead& other) { return other.name.starts_with(prefix); };
    if (std::ranges::none_of(reads, is_inner)) {
      write(read, read.name);
      continue;
    }
    json.Key(read.name).BeginObject().Key("description").String(MeaningOf(read.name));
    json.Key("type").Raw(R"(["object","null"])").Key("properties").BeginObject();
    for (const FieldRead& inner : reads) {
      if (is_inner(inner)) write(inner, std::string_view(inner.name).substr(prefix.size()));
    }
    json.EndObject().EndObject();
  }
  json.EndObject();
  if (probe.schema.starts_with("Completion") || probe.schema.starts_with("ChatCompletion")) {
    // What fields ask of each other.
    json.Key("patternProperties").Raw(R"({"^guided_":{"type":"null"}})");
    json.Key("allOf").BeginArray();
    json.Raw(
        R"({"anyOf":[{"properties":{"stream_options":{"properties":{"include_usage":{"enum":[false,null]},"continuous_usage_stats":{"enum":[false,null]}}}}},{"properties":{"stream":{"const":true}},"required":["stream"]}]})");
    json.Raw(
        R"({"anyOf":[{"properties":{"prompt_logprobs":{"type":"null"}}},{"properties":{"stream":{"enum":[false,null]}}}]})");
    json.Raw(
        is_chat
            ? R"({"anyOf":[{"properties":{"top_logprobs":{"enum":[0,null]}}},{"properties":{"logprobs":{"const":true}},"required":["logprobs"]}]})"
            : R"({"anyOf":[{"properties":{"max_tokens":{"minimum":1},"max_completion_tokens":{"minimum":1}}},{"properties":{"echo":{"const":true}},"required":["echo"]}]})");
    json.EndArray();
  }
  json.EndObject();
}

constexpr std::pair<std::string_view, std::string_view> kAnswers[] = {
    {"Error", R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",
"required":["message","type","param","code"],"properties":{"message":{"type":"string"},"type":{"type":"string"},
"param":{"type":["string","null"],"description":"The field that is wrong."},
"code":{"type":"integer","description":"The HTTP status."}}}}})"},
    {"Usage",
     R"({"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"],"properties":{
"prompt_tokens":{"type":"integer"},"completion_tokens":{"type":"integer"},"total_tokens":{"type":"integer"},
"prompt_tokens_details":{"type":"object","required":["cached_tokens"],"properties":{"cached_tokens":{"type":"integer"}}}}})"},
    {"FinishReason", R"({"enum":["stop","length","abort","error"]})"},
    {"StopReason",
     R"({"type":["string","integer","null"],"description":"The stop text or the stop token id that ended it."})"},
    {"PromptLogprobs",
     R"({"type":"array","items":{"type":["object","null"],"additionalProperties":{"type":"object",
"required":["logprob","rank","decoded_token"],"properties":{"logprob":{"type":"number"},"rank":{"type":"integer"},
"decoded_token":{"type":"string"}}}}})"},
    {"CompletionLogprobs",
     R"({"type":["object","null"],"required":["tokens","token_logprobs","top_logprobs","text_offset"],"properties":{
"tokens":{"type":"array","items":{"type":"string"}},"token_logprobs":{"type":"array","items":{"type":["number","null"]}},
"top_logprobs":{"type":"array","items":{"type":["object","null"],"additionalProperties":{"type":"number"}}},
"text_offset":{"type":"array","items":{"type":"integer"}}}})"},
    {"Completion",
     R"({"type":"object","required":["id","object","created","model","choices","usage"],"properties":{
"id":{"type":"string"},"object":{"const":"text_completion"},"created":{"type":"integer"},"model":{"type":"string"},
"choices":{"type":"array","items":{"type":"object","required":["index","text","logprobs","finish_reason","stop_reason"],
"properties":{"index":{"type":"integer"},"text":{"type":"string"},
"logprobs":{"$ref":"#/components/schemas/CompletionLogprobs"},
"finish_reason":{"$ref":"#/components/schemas/FinishReason"},"stop_reason":{"$ref":"#/components/schemas/StopReason"},
"prompt_logprobs":{"$ref":"#/components/schemas/PromptLogprobs"}}}},
"usage":{"$ref":"#/components/schemas/Usage"}}})"},
    {"CompletionChunk",
     R"({"type":"object","required":["id","object","created","model","choices"],"properties":{
"id":{"type":"string"},"object":{"const":"text_completion"},"created":{"type":"integer"},"model":{"type":"string"},
"choices":{"type":"array","items":{"type":"object","required":["index","text","logprobs","finish_reason"],
"properties":{"index":{"type":"integer"},"text":{"type":"string"},
"logprobs":{"$ref":"#/components/schemas/CompletionLogprobs"},
"finish_reason":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/FinishReason"}]},
"stop_reason":{"$ref":"#/components/schemas/StopReason"}}}},"usage":{"$ref":"#/components/schemas/Usage"}}})"},
    {"TokenLogprob",
     R"({"type":"object","required":["token","logprob","bytes"],"properties":{"token":{"type":"string"},
"logprob":{"type":"number"},"bytes":{"type":["array","null"],"items":{"type":"integer","minimum":0,"maximum":255}}}})"},
    {"ChatLogprobs", R"({"type":["object","null"],"required":["content"],
"properties":{"content":{"type":"array","items":{"allOf":[{"$ref":"#/components/schemas/TokenLogprob"},
{"type":"object","required":["top_logprobs"],"properties":{"top_logprobs":{"type":"array",
"items":{"$ref":"#/components/schemas/TokenLogprob"}}}}]}}}})"},
    {"ChatCompletion",
     R"({"type":"object","required":["id","object","created","model","choices","usage"],"properties":{
"id":{"type":"string"},"object":{"const":"chat.completion"},"created":{"type":"integer"},"model":{"type":"string"},
"choices":{"type":"array","items":{"type":"object","required":["index","message","logprobs","finish_reason","stop_reason"],
"properties":{"index":{"type":"integer"},"message":{"type":"object","required":["role","content"],"properties":{
"role":{"const":"assistant"},"content":{"type":"string"}}},"logprobs":{"$ref":"#/components/schemas/ChatLogprobs"},
"finish_reason":{"$ref":"#/components/schemas/FinishReason"},"stop_reason":{"$ref":"#/components/schemas/StopReason"}}}},
"usage":{"$ref":"#/components/schemas/Usage"},"prompt_logprobs":{"$ref":"#/components/schemas/PromptLogprobs"}}})"},
    {"ChatCompletionChunk",
     R"({"type":"object","required":["id","object","created","model","choices"],"properties":{
"id":{"type":"string"},"object":{"const":"chat.completion.chunk"},"created":{"type":"integer"},"model":{"type":"string"},
"choices":{"type":"array","items":{"type":"object","required":["index","delta","logprobs","finish_reason"],
"properties":{"index":{"type":"integer"},"delta":{"type":"object","properties":{
"role":{"const":"assistant"},"content":{"type":"string"}}},"logprobs":{"$ref":"#/components/schemas/ChatLogprobs"},
"finish_reason":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/FinishReason"}]},
"stop_reason":{"$ref":"#/components/schemas/StopReason"}}}},"usage":{"$ref":"#/components/schemas/Usage"}}})"},
    // One event of a stream: before OpenAPI 3.2 the schema of text/event-stream speaks of each.
    {"CompletionEvent",
     R"({"type":"object","required":["data"],"properties":{"data":{"anyOf":[{"const":"[DONE]"},
{"type":"string","contentMediaType":"application/json","contentSchema":{"anyOf":[
{"$ref":"#/components/schemas/CompletionChunk"},{"$ref":"#/components/schemas/Error"}]}}]}}})"},
    {"ChatCompletionEvent",
     R"({"type":"object","required":["data"],"properties":{"data":{"anyOf":[{"const":"[DONE]"},
{"type":"string","contentMediaType":"application/json","contentSchema":{"anyOf":[
{"$ref":"#/components/schemas/ChatCompletionChunk"},{"$ref":"#/components/schemas/Error"}]}}]}}})"},
    {"Model",
     R"({"type":"object","required":["id","object","created","owned_by","root","parent","max_model_len","permission"],
"properties":{"id":{"type":"string"},"object":{"const":"model"},"created":{"type":"integer"},"owned_by":{"type":"string"},
"root":{"type":"string"},"parent":{"type":"null"},"max_model_len":{"type":"integer"},"permission":{"type":"array"}}})"},
    {"ModelList", R"({"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},
"data":{"type":"array","items":{"$ref":"#/components/schemas/Model"}}}})"},
    {"Tokens", R"({"type":"object","required":["count","max_model_len","tokens","token_strs"],"properties":{
"count":{"type":"integer"},"max_model_len":{"type":"integer"},"tokens":{"type":"array","items":{"type":"integer"}},
"token_strs":{"type":["array","null"],"items":{"type":"string"}}}})"},
    {"Text", R"({"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"}}})"},
    {"TokenizerInfo", R"({"type":"object","required":["tokenizer_class"],"properties":{
"tokenizer_class":{"type":"string"},"bos_token":{"type":["string","null"]},"eos_token":{"type":["string","null"]},
"pad_token":{"type":["string","null"]},"chat_template":{"type":"string"}},
"description":"tokenizer_config.json with every token as a plain string."})"},
    {"Health", R"({"type":"object","required":["status","attention"],"properties":{
"status":{"enum":["ok","degraded","failing","stopped"]},"reason":{"type":"string"},"attention":{"type":"object",
"required":["verify_rate","on_mismatch","rows_checked","mismatches","quarantined","kernels","cases_written","cases_failed"],
"properties":{"verify_rate":{"type":["number","null"]},"on_mismatch":{"type":"string"},"rows_checked":{"type":"integer"},
"mismatches":{"type":"integer"},"quarantined":{"type":"array","items":{"type":"string"}},"kernels":{"type":"array",
"items":{"type":"object"}},"cases_written":{"type":"integer"},"cases_failed":{"type":"integer"}}}}})"},
    {"Version", R"({"type":"object","required":["version"],"properties":{"version":{"type":"string"}}})"},
    {"Load", R"({"type":"object","required":["server_load"],"properties":{"server_load":{"type":"integer",
"description":"Generation requests under way."}}})"},
    {"Success", R"({"type":"object","required":["success"],"properties":{"success":{"type":"boolean"}}})"},
};

}  // namespace

std::string_view MeaningOf(std::string_view field) {
  const auto found = std::ranges::find(kMeanings, field, &Meaning::field);
  return found == std::end(kMeanings) ? std::string_view() : found->words;
}

FieldReads ReadsOf(std::string_view schema, const CallLimits& limits) {
  const auto probe = std::ranges::find(kProbes, schema, &Probe::schema);
  ATTEST_CHECK(probe != std::end(kProbes));
  FieldReads reads;
  CallLimits recording = limits;
  recording.reads = &reads;
  // Whether the probe itself could be served does not matter: a model may have no chat template.
  if (schema == "CompletionRequest") {
    (void)ParseCompletionCall(probe->body, recording);
  } else if (schema == "ChatCompletionRequest") {
    (void)ParseChatCall(probe->body, recording);
  } else if (schema == "DetokenizeRequest") {
    (void)Detokenize(probe->body, recording);
  } else {
    (void)Tokenize(probe->body, recording);
  }
  return reads;
}

std::string IntegerPattern(int64_t max) {
  ATTEST_CHECK(max >= 0);
  const std::string digits = std::to_string(max);
  const size_t length = digits.size();
  std::vector<std::string> ways = {digits};
  if (length > 1) {
    ways.push_back("[0-9]");
    if (length > 2) ways.push_back(fmt::format("[1-9][0-9]{{1,{}}}", length - 2));
  }
  // As long as `max`, and smaller first at digit i.
  for (size_t i = 0; i < length; ++i) {
    const char lowest = i == 0 && length > 1 ? '1' : '0';
    if (digits[i] <= lowest) continue;
    std::string way = digits.substr(0, i) + fmt::format("[{}-{}]", lowest, static_cast<char>(digits[i] - 1));
    if (const size_t rest = length - 1 - i; rest > 0) way += fmt::format("[0-9]{{{}}}", rest);
    ways.push_back(std::move(way));
  }
  return fmt::format("^({})$", fmt::join(ways, "|"));
}

void AppendSchemas(JsonWriter& json, const CallLimits& limits, bool has_priorities) {
  for (const Probe& probe : kProbes) AppendRequestSchema(json, probe, limits, has_priorities);
  json.Key("TokenizeRequest")
      .Raw(
          R"({"anyOf":[{"$ref":"#/components/schemas/TokenizeTextRequest"},{"$ref":"#/components/schemas/TokenizeChatRequest"}]})");
  for (const auto& [name, schema] : kAnswers) json.Key(name).Raw(schema);
}

}  // namespace attest
