#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/chat_messages.h"
#include "server/json_fields.h"
#include "server/logit_fields.h"
#include "server/request_limits.h"

namespace attest {
namespace {

using nlohmann::json;

constexpr int32_t kCompletionMaxTokens = 16;  // the default of /v1/completions
constexpr double kMaxTemperature = 100.0;

// Assigns a present field to `out`.
template <class T, class U>
void Set(T& out, const std::optional<U>& value) {
  if (value) out = static_cast<T>(*value);
}

// What both endpoints know but cannot do yet.
Status RefuseUnsupported(const JsonFields& fields, const json& body) {
  struct Rule {
    std::string_view name;
    std::vector<std::string_view> neutral;  // JSON values that ask for nothing; null always does
  };
  static const Rule rules[] = {
      {"suffix", {"\"\""}},
      {"length_penalty", {"1"}},
      {"early_stopping", {"false"}},
      {"spaces_between_special_tokens", {"true"}},
      {"prediction", {}},
      {"reasoning_effort", {R"("none")"}},
      {"web_search_options", {}},
      {"mm_processor_kwargs", {"{}"}},
      {"kv_transfer_params", {"{}"}},
      {"vllm_xargs", {"{}"}},
      {"guided_json", {}},
      {"guided_regex", {}},
      {"guided_choice", {}},
      {"guided_grammar", {}},
      {"guided_decoding_backend", {}},
      {"guided_whitespace_pattern", {}},
      {"logits_processors", {"[]"}},
      {"use_beam_search", {"false"}},
      {"truncate_prompt_tokens", {}},
      {"prompt_embeds", {}},
      {"return_token_ids", {"false"}},
      {"response_format", {R"({"type":"text"})"}},
      {"structured_outputs", {}},
      {"tools", {"[]"}},
      {"tool_choice", {R"("none")", R"("auto")"}},
      {"functions", {"[]"}},
      {"function_call", {R"("none")", R"("auto")"}},
      {"modalities", {R"(["text"])"}},
      {"audio", {}},
      {"moderation", {}},
      {"verbosity", {R"("medium")"}},
      {"documents", {"[]"}},
      {"chat_template", {}},
      {"continue_final_message", {"false"}},
  };
  for (const Rule& rule : rules) ATTEST_RETURN_IF_ERROR(fields.RefuseUnless(rule.name, rule.neutral));
  for (const auto& [key, value] : body.items()) {
    if (key.starts_with("guided_")) ATTEST_RETURN_IF_ERROR(fields.RefuseUnless(key, {}));
  }
  return {};
}

Expected<std::vector<std::string>> StopStrings(const JsonFields& fields) {
  std::vector<std::string> stops;
  const json* value = fields.Find("stop");
  if (value == nullptr) return stops;
  if (!value->is_string() && !value->is_array())
    return WrongType("stop", "a string or a list of strings", *value);
  if (value->size() > kMaxStops) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("stop may hold at most {} strings, not {}", kMaxStops, value->size()), "stop");
  }
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    if (!item.is_string()) return WrongType("stop", "a string or a list of strings", item);
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxStopBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("a stop string must have 1 to {} bytes, not {}", kMaxStopBytes, text.size()),
                  "stop");
    }
    stops.push_back(text);
  }
  return stops;
}

Status ReadStreamOptions(const JsonFields& fields, GenerationCall& call) {
  ATTEST_ASSIGN_OR_RETURN(const auto stream, fields.Bool("stream"));
  Set(call.stream, stream);
  const json* options = fields.Find("stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return WrongType("stream_options", "an object", *options);
  const JsonFields inner = fields.Inner("stream_options", *options);
  ATTEST_ASSIGN_OR_RETURN(const auto include_usage, inner.Bool("include_usage"));
  Set(call.include_usage, include_usage);
  ATTEST_ASSIGN_OR_RETURN(const auto continuous, inner.Bool("continuous_usage_stats"));
  Set(call.continuous_usage_stats, continuous);
  if (!call.stream && (call.include_usage || call.continuous_usage_stats)) {
    return Fail(ErrorCode::kInvalidArgument, "stream_options may only be given together with stream true",
                "stream_options");
  }
  return {};
}

// REQUIRES: call.echo is read.
Status ReadMaxTokens(const JsonFields& fields, const CallLimits& limits, GenerationCall& call) {
  SamplingParams& sampling = call.sampling;
  const int64_t least = call.echo ? 0 : 1;  // without a token and without an echo there is nothing to say
  ATTEST_ASSIGN_OR_RETURN(const auto old_name, fields.Int("max_tokens", least, limits.max_model_len));
  ATTEST_ASSIGN_OR_RETURN(const auto new_name,
                          fields.Int("max_completion_tokens", least, limits.max_model_len));
  sampling.max_tokens =
      call.is_chat ? limits.max_model_len : std::min(kCompletionMaxTokens, limits.max_model_len);
  Set(sampling.max_tokens, old_name);
  Set(sampling.max_tokens, new_name);  // the newer name wins
  ATTEST_ASSIGN_OR_RETURN(const auto min_tokens, fields.Int("min_tokens", 0, limits.max_model_len));
  Set(sampling.min_tokens, min_tokens);
  const bool is_default = !old_name && !new_name;
  if (is_default) sampling.max_tokens = std::max(sampling.max_tokens, sampling.min_tokens);
  if (sampling.min_tokens > sampling.max_tokens) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("min_tokens is {}, more than max_tokens, which is {}", sampling.min_tokens,
                            sampling.max_tokens),
                "min_tokens");
  }
  call.only_prompt = sampling.max_tokens == 0;
  if (call.only_prompt) sampling.max_tokens = 1;  // an engine always samples one
  return {};
}

// logprobs is a number of alternatives in completions; in a chat it is a switch, and top_logprobs the number.
Status ReadLogprobs(const JsonFields& fields, GenerationCall& call) {
  SamplingParams& sampling = call.sampling;
  ATTEST_ASSIGN_OR_RETURN(const auto as_ids, fields.Bool("return_tokens_as_token_ids"));
  Set(call.tokens_as_ids, as_ids);
  if (call.is_chat) {
    ATTEST_ASSIGN_OR_RETURN(const auto wanted, fields.Bool("logprobs"));
    ATTEST_ASSIGN_OR_RETURN(const auto top, fields.Int("top_logprobs", 0, kMaxTopLogprobs));
    if (wanted.value_or(false)) {
      sampling.logprobs = static_cast<int32_t>(top.value_or(0));
    } else if (top.value_or(0) > 0) {
      return Fail(ErrorCode::kInvalidArgument, "top_logprobs may only be given together with logprobs true",
                  "top_logprobs");
    }
  } else {
    ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("top_logprobs", {"0"}));
    const json* value = fields.Find("logprobs");
    if (value != nullptr && *value != json(false)) {
      ATTEST_ASSIGN_OR_RETURN(const auto top, fields.Int("logprobs", 0, kMaxTopLogprobs));
      Set(sampling.logprobs, top);
    }
  }
  ATTEST_ASSIGN_OR_RETURN(const auto prompt, fields.Int("prompt_logprobs", 0, kMaxTopLogprobs));
  if (prompt && call.stream) {
    return Fail(ErrorCode::kInvalidArgument, "prompt_logprobs may not be given together with stream true",
                "prompt_logprobs");
  }
  Set(call.prompt_logprobs, prompt);
  sampling.prompt_logprobs = call.prompt_logprobs;
  if (call.echo && sampling.logprobs) {
    sampling.prompt_logprobs = std::max(*sampling.logprobs, sampling.prompt_logprobs.value_or(0));
  }
  return {};
}

Status ReadChoices(const JsonFields& fields, GenerationCall& call) {
  ATTEST_ASSIGN_OR_RETURN(const auto n, fields.Int("n", 1, kMaxChoicesPerPrompt));
  Set(call.n, n);
  ATTEST_ASSIGN_OR_RETURN(const auto best_of, fields.Int("best_of", 1, kMaxChoicesPerPrompt));
  call.best_of = call.n;
  Set(call.best_of, best_of);
  if (call.best_of < call.n) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("best_of is {}, less than n, which is {}", call.best_of, call.n), "best_of");
  }
  if (call.best_of > call.n && call.stream) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("best_of {} with n {} may not be given together with stream true: which are the "
                            "best is known at the end",
                            call.best_of, call.n),
                "best_of");
  }
  return {};
}

// A share in (0, 1]. One too small for a float still keeps the best token, as every other one does.
Status ReadMass(const JsonFields& fields, const char* name, float& out) {
  ATTEST_ASSIGN_OR_RETURN(const auto value, fields.NumberAbove(name, 0, 1));
  if (value) out = std::max(static_cast<float>(*value), std::numeric_limits<float>::min());
  return {};
}

Status ReadSampling(const JsonFields& fields, const CallLimits& limits, GenerationCall& call) {
  SamplingParams& sampling = call.sampling;
  sampling = limits.default_sampling;
  ATTEST_RETURN_IF_ERROR(ReadMaxTokens(fields, limits, call));
  ATTEST_ASSIGN_OR_RETURN(const auto temperature, fields.Number("temperature", 0, kMaxTemperature));
  Set(sampling.temperature, temperature);
  ATTEST_RETURN_IF_ERROR(ReadMass(fields, "top_p", sampling.top_p));
  ATTEST_ASSIGN_OR_RETURN(const auto min_p, fields.Number("min_p", 0, 1));
  Set(sampling.min_p, min_p);
  ATTEST_RETURN_IF_ERROR(ReadMass(fields, "typical_p", sampling.typical_p));
  ATTEST_ASSIGN_OR_RETURN(const auto top_k, fields.Int("top_k", -1, std::numeric_limits<int32_t>::max()));
  if (top_k) sampling.top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));  // -1 is off, as 0
  ATTEST_ASSIGN_OR_RETURN(const auto seed, fields.Int("seed", std::numeric_limits<int64_t>::min(),
                                                      std::numeric_limits<int64_t>::max()));
  if (seed) sampling.seed = seed;
  ATTEST_ASSIGN_OR_RETURN(const auto ignore_eos, fields.Bool("ignore_eos"));
  Set(sampling.ignore_eos, ignore_eos);
  ATTEST_ASSIGN_OR_RETURN(sampling.stop_token_ids,
                          fields.Ids("stop_token_ids", limits.vocab_size, kMaxStopTokenIds));
  return ReadLogitFields(fields, limits, sampling);
}

// Everything but the prompt.
Expected<GenerationCall> ReadCommon(const json& body, bool is_chat, const CallLimits& limits) {
  const JsonFields fields(body, {}, limits.reads);
  GenerationCall call;
  call.is_chat = is_chat;
  ATTEST_ASSIGN_OR_RETURN(call.model, ServedModelName(fields, limits));
  ATTEST_RETURN_IF_ERROR(RefuseUnsupported(fields, body));
  ATTEST_RETURN_IF_ERROR(ReadStreamOptions(fields, call));
  if (is_chat) {
    ATTEST_RETURN_IF_ERROR(fields.RefuseUnless("echo", {"false"}));
  } else {
    ATTEST_ASSIGN_OR_RETURN(const auto echo, fields.Bool("echo"));
    Set(call.echo, echo);
  }
  ATTEST_RETURN_IF_ERROR(ReadSampling(fields, limits, call));
  ATTEST_RETURN_IF_ERROR(ReadLogprobs(fields, call));
  ATTEST_ASSIGN_OR_RETURN(call.stop, StopStrings(fields));
  ATTEST_RETURN_IF_ERROR(ReadChoices(fields, call));
  ATTEST_ASSIGN_OR_RETURN(const auto priority, fields.Int("priority", std::numeric_limits<int32_t>::min(),
                                                          std::numeric_limits<int32_t>::max()));
  Set(call.priority, priority);
  ATTEST_ASSIGN_OR_RETURN(const auto salt, fields.String("cache_salt"));
  if (salt && (salt->empty() || salt->size() > kMaxSaltBytes)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache_salt must have 1 to {} bytes, not {}", kMaxSaltBytes, salt->size()),
                "cache_salt");
  }
  call.cache_salt = salt.value_or("");
  ATTEST_ASSIGN_OR_RETURN(const auto keep_stop, fields.Bool("include_stop_str_in_output"));
  Set(call.keep_stop_text, keep_stop);
  ATTEST_ASSIGN_OR_RETURN(const auto skip_special, fields.Bool("skip_special_tokens"));
  Set(call.skip_special_tokens, skip_special);
  return call;
}

Status CheckPrompt(const std::vector<int32_t>& ids, const CallLimits& limits, const std::string& field) {
  if (ids.empty()) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{} must not be empty", field), field);
  }
  if (ids.size() >= static_cast<size_t>(limits.max_model_len)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} has {} tokens, but the context holds {} including at least one of output",
                            field, ids.size(), limits.max_model_len),
                field);
  }
  return {};
}

// What every sample has of its own, whatever it says: its prompt, and what it is held to.
size_t BytesOfSamples(const GenerationCall& call) {
  const SamplingParams& sampling = call.sampling;
  size_t each = sizeof(int32_t) * (sampling.allowed_token_ids.size() + sampling.stop_token_ids.size()) +
                sizeof(IdBias) * sampling.logit_bias.size();
  for (const std::vector<int32_t>& word : sampling.bad_words)
    each += sizeof(word) + sizeof(int32_t) * word.size();
  for (const std::string& stop : call.stop) each += (1 + sizeof(size_t)) * stop.size();  // see StopMatcher
  size_t all = each * call.prompts.size();
  for (const std::vector<int32_t>& ids : call.prompts) all += sizeof(int32_t) * ids.size();
  for (const std::string& text : call.echo_texts) all += text.size();
  return all * static_cast<size_t>(call.best_of);
}

Status CheckSamples(const GenerationCall& call, const CallLimits& limits) {
  const size_t samples = call.prompts.size() * static_cast<size_t>(call.best_of);
  const char* const name = call.best_of > call.n ? "best_of" : "n";
  if (samples > static_cast<size_t>(limits.max_choices)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} prompts with {} = {} are {} choices, the limit is {}", call.prompts.size(),
                            name, call.best_of, samples, limits.max_choices),
                name);
  }
  if (const size_t bytes = BytesOfSamples(call); bytes > kMaxSampleBytes) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the prompts, ids, words and stop strings of {} prompts with {} = {} would take {} "
                    "bytes, the limit is {}",
                    call.prompts.size(), name, call.best_of, bytes, kMaxSampleBytes),
        name);
  }
  return {};
}

int64_t NumCodePoints(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
Status ReadPrompts(const JsonFields& fields, const CallLimits& limits, GenerationCall& call) {
  const json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return Fail(ErrorCode::kInvalidArgument, "prompt is missing", "prompt");
  ATTEST_ASSIGN_OR_RETURN(const auto add_special, fields.Bool("add_special_tokens"));
  // Text of a user is text: a special token spelled out in it is still recognised, as in the servers that
  // clients are written for.
  const EncodeOptions encode{.add_special_tokens = add_special.value_or(true)};
  const bool wants_offsets = call.sampling.logprobs.has_value() && !call.echo;
  const auto add_text = [&](const json& item) -> Status {
    const auto& text = item.get_ref<const std::string&>();
    ATTEST_RETURN_IF_ERROR(CheckTextSize(text.size(), "prompt", limits));
    call.prompts.push_back(limits.tokenizer.Encode(text, encode));
    if (wants_offsets) call.prompt_lengths.push_back(NumCodePoints(text));
    if (call.echo) call.echo_texts.push_back(text);
    return CheckPrompt(call.prompts.back(), limits, "prompt");
  };
  const auto add_ids = [&](const json& item) -> Status {
    ATTEST_ASSIGN_OR_RETURN(auto ids, IdsFromJson(item, limits.vocab_size, kMaxListedIds, "prompt"));
    ATTEST_RETURN_IF_ERROR(CheckPrompt(ids, limits, "prompt"));  // before its text, which may be long
    if (call.echo || wants_offsets) {
      std::string text = limits.tokenizer.Decode(ids, /*skip_special_tokens=*/false);
      if (wants_offsets) call.prompt_lengths.push_back(NumCodePoints(text));
      if (call.echo) call.echo_texts.push_back(std::move(text));
    }
    call.prompts.push_back(std::move(ids));
    return {};
  };
  constexpr std::string_view kShapes =
      "a string, a list of strings, a list of token ids or a list of such lists";
  if (prompt->is_string()) {
    ATTEST_RETURN_IF_ERROR(add_text(*prompt));
  } else if (!prompt->is_array() || prompt->empty()) {
    return WrongType("prompt", kShapes, *prompt);
  } else if (const json& first = prompt->front(); first.is_number()) {
    ATTEST_RETURN_IF_ERROR(add_ids(*prompt));
  } else {
    if (prompt->size() > kMaxPrompts) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("prompt may hold at most {} prompts, not {}", kMaxPrompts, prompt->size()),
                  "prompt");
    }
    for (const json& item : *prompt) {
      if (item.type() != first.type() || !(item.is_string() || item.is_array())) {
        return WrongType("prompt", kShapes, item);
      }
      ATTEST_RETURN_IF_ERROR(item.is_string() ? add_text(item) : add_ids(item));
    }
  }
  return {};
}

Expected<GenerationCall> ParseCall(std::string_view text, bool is_chat, const CallLimits& limits) {
  ATTEST_ASSIGN_OR_RETURN(const json body, ParseJsonObject(text));
  ATTEST_ASSIGN_OR_RETURN(GenerationCall call, ReadCommon(body, is_chat, limits));
  const JsonFields fields(body, {}, limits.reads);
  if (is_chat) {
    ATTEST_ASSIGN_OR_RETURN(auto ids, EncodeMessages(fields, limits));
    ATTEST_RETURN_IF_ERROR(CheckPrompt(ids, limits, "messages"));
    call.prompts.push_back(std::move(ids));
  } else {
    ATTEST_RETURN_IF_ERROR(ReadPrompts(fields, limits, call));
  }
  ATTEST_RETURN_IF_ERROR(CheckSamples(call, limits));
  return call;
}

}  // namespace

Expected<GenerationCall> ParseCompletionCall(std::string_view body, const CallLimits& limits) {
  return ParseCall(body, /*is_chat=*/false, limits);
}

Expected<GenerationCall> ParseChatCall(std::string_view body, const CallLimits& limits) {
  return ParseCall(body, /*is_chat=*/true, limits);
}

SamplingParams SamplingOf(const GenerationCall& call, size_t prompt, int32_t sample, int32_t max_model_len) {
  SamplingParams sampling = call.sampling;
  const auto prompt_tokens = static_cast<int32_t>(call.prompts[prompt].size());
  sampling.max_tokens = std::min(sampling.max_tokens, max_model_len - prompt_tokens);
  sampling.min_tokens = std::min(sampling.min_tokens, sampling.max_tokens);
  if (sample > 0) sampling.prompt_logprobs.reset();
  if (call.best_of > call.n && !sampling.logprobs) sampling.logprobs = 0;  // to tell which are the best
  // Unsigned, so that the largest seed wraps round instead of overflowing.
  if (sampling.seed) {
    sampling.seed =
        static_cast<int64_t>(static_cast<uint64_t>(*sampling.seed) + static_cast<uint64_t>(sample));
  }
  return sampling;
}

}  // namespace attest
