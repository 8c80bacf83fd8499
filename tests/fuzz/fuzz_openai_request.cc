// The body of a request: every parser either refuses it with one line that names what is wrong, or gives a
// call whose every value is within the limits that the engine relies on. Bytes alone seldom become JSON, so
// the first one chooses what the others are: a body, the rest of one, or choices of fields and values.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "server/json_writer.h"
#include "server/openai_request.h"
#include "server/request_limits.h"
#include "server/tokenizer_routes.h"
#include "tests/support/fake_tokenizer.h"

namespace {

using attest::CallLimits;
using attest::GenerationCall;

constexpr int64_t kVocab = 300;
constexpr int32_t kContext = 64;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckIds(const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (const int32_t id : ids) Require(id >= 0 && id < vocab_size);
}

void Check(const GenerationCall& call) {
  Require(!call.prompts.empty() && call.prompts.size() <= attest::kMaxPrompts && call.n >= 1);
  Require(call.prompts.size() * static_cast<size_t>(call.n) <= 128);
  Require(call.stop.size() <= attest::kMaxStops);
  for (const std::string& stop : call.stop) Require(!stop.empty() && stop.size() <= attest::kMaxStopBytes);
  for (size_t p = 0; p < call.prompts.size(); ++p) {
    Require(!call.prompts[p].empty() && call.prompts[p].size() < static_cast<size_t>(kContext));
    CheckIds(call.prompts[p], kVocab);
    const attest::SamplingParams sampling = attest::SamplingOf(call, p, call.n - 1, kContext);
    Require(sampling.max_tokens >= 1 && sampling.min_tokens >= 0 &&
            sampling.min_tokens <= sampling.max_tokens);
    Require(std::ssize(call.prompts[p]) + sampling.max_tokens <= kContext);
    Require(sampling.temperature >= 0 && std::isfinite(sampling.temperature));
    Require(sampling.top_p > 0 && sampling.top_p <= 1 && sampling.typical_p > 0 && sampling.typical_p <= 1);
    Require(sampling.min_p >= 0 && sampling.min_p <= 1 && sampling.top_k >= 0);
    Require(sampling.repetition_penalty >= 0.0099f && std::isfinite(sampling.repetition_penalty));
    Require(std::abs(sampling.presence_penalty) <= 2 && std::abs(sampling.frequency_penalty) <= 2);
    for (const attest::IdBias& bias : sampling.logit_bias) {
      Require(bias.id >= 0 && bias.id < kVocab && std::abs(bias.bias) <= 100);
    }
    CheckIds(sampling.allowed_token_ids, kVocab);
    CheckIds(sampling.stop_token_ids, kVocab);
    for (const auto& word : sampling.bad_words) {
      Require(!word.empty());
      CheckIds(word, kVocab);
    }
    Require(sampling.logprobs.value_or(0) >= 0 && sampling.logprobs.value_or(0) <= attest::kMaxTopLogprobs);
    Require(sampling.prompt_logprobs.value_or(0) <= attest::kMaxTopLogprobs);
  }
  Require(call.echo_texts.size() == (call.echo ? call.prompts.size() : 0));
}

template <class T>
bool IsFine(const attest::Expected<T>& result) {
  if (result) return true;
  Require(!result.error().message.empty() && result.error().message.size() < 4096);
  Require(result.error().message.find('\n') == std::string::npos);
  return false;
}

// Chooses with the bytes it is given; with 0 when they are used up.
class BodyMaker {
 public:
  explicit BodyMaker(std::string_view choices) : choices_(choices) {}

  std::string Object(int depth = 0) {
    std::string out = "{";
    for (size_t left = depth == 0 ? 12 : Below(4); left > 0 && !choices_.empty(); --left) {
      if (out.size() > 1) out += ',';
      attest::AppendJsonString(out, depth == 0 || Below(2) == 0 ? Of(kNames) : Of(kInnerNames));
      out += ':';
      out += Value(depth + 1);
    }
    return out + "}";
  }

 private:
  static constexpr auto kNames = std::to_array<std::string_view>({"prompt",
                                                                  "messages",
                                                                  "model",
                                                                  "max_tokens",
                                                                  "n",
                                                                  "stop",
                                                                  "stream",
                                                                  "stream_options",
                                                                  "temperature",
                                                                  "top_p",
                                                                  "top_k",
                                                                  "min_p",
                                                                  "typical_p",
                                                                  "seed",
                                                                  "presence_penalty",
                                                                  "logprobs",
                                                                  "top_logprobs",
                                                                  "frequency_penalty",
                                                                  "echo",
                                                                  "prompt_logprobs",
                                                                  "repetition_penalty",
                                                                  "logit_bias",
                                                                  "bad_words",
                                                                  "allowed_token_ids",
                                                                  "min_tokens",
                                                                  "ignore_eos",
                                                                  "stop_token_ids",
                                                                  "best_of",
                                                                  "priority",
                                                                  "max_completion_tokens",
                                                                  "cache_salt",
                                                                  "tools",
                                                                  "add_special_tokens",
                                                                  "tokens",
                                                                  "response_format",
                                                                  "return_tokens_as_token_ids",
                                                                  "guided_x",
                                                                  "tool_choice",
                                                                  "add_generation_prompt",
                                                                  "chat_template",
                                                                  "documents",
                                                                  "chat_template_kwargs",
                                                                  "use_beam_search",
                                                                  "suffix",
                                                                  "include_stop_str_in_output",
                                                                  "skip_special_tokens"});
  static constexpr auto kInnerNames = std::to_array<std::string_view>(
      {"role", "content", "type", "text", "name", "tool_calls", "include_usage", "continuous_usage_stats",
       "extra", "0", "1", "299", "300", "-1", "05"});
  static constexpr auto kWords = std::to_array<std::string_view>({"null",
                                                                  "true",
                                                                  "false",
                                                                  "0",
                                                                  "1",
                                                                  "2",
                                                                  "-1",
                                                                  "16",
                                                                  "63",
                                                                  "64",
                                                                  "65",
                                                                  "128",
                                                                  "129",
                                                                  "299",
                                                                  "300",
                                                                  "1.5",
                                                                  "0.5",
                                                                  "1e99",
                                                                  "-1e99",
                                                                  "1e-60",
                                                                  "1.0",
                                                                  "-0.0",
                                                                  "9223372036854775807",
                                                                  "9223372036854775808",
                                                                  "-9223372036854775808",
                                                                  "18446744073709551616",
                                                                  "[]",
                                                                  "{}",
                                                                  "\"\"",
                                                                  "\"a\"",
                                                                  "\"m\"",
                                                                  "\"user\"",
                                                                  "\"text\"",
                                                                  "\"none\"",
                                                                  "[1]",
                                                                  R"([[1,2],[3]])",
                                                                  R"(["a","b"])",
                                                                  R"([{"role":"user","content":"a"}])",
                                                                  R"([{"type":"text","text":"a"}])",
                                                                  R"({"1":1})",
                                                                  R"({"include_usage":true})"});

  size_t Below(size_t end) {
    if (choices_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(choices_.front());
    choices_.remove_prefix(1);
    return byte % end;
  }
  template <size_t N>
  std::string_view Of(const std::array<std::string_view, N>& all) {
    return all[Below(N)];
  }
  std::string Value(int depth) {
    const size_t kind = Below(depth < 5 ? 8 : 6);
    if (kind < 5) return std::string(Of(kWords));
    std::string out;
    if (kind == 5) {
      const size_t length = std::min(Below(40), choices_.size());
      attest::AppendJsonString(out, choices_.substr(0, length));
      choices_.remove_prefix(length);
      return out;
    }
    if (kind == 6) return Object(depth);
    for (size_t left = Below(5); left > 0; --left) out += (out.empty() ? "" : ",") + Value(depth + 1);
    return "[" + out + "]";
  }

  std::string_view choices_;
};

std::string MakeBody(std::string_view data) {
  static constexpr auto kAround = std::to_array<std::pair<std::string_view, std::string_view>>(
      {{"", ""},
       {R"({"prompt":)", "}"},
       {R"({"prompt":"a",)", "}"},
       {R"({"messages":[)", "]}"},
       {R"({"messages":[{"role":"user","content":"a"}],)", "}"},
       {R"({"tokens":)", "}"}});
  const size_t mode = data.empty() ? 0 : static_cast<unsigned char>(data.front()) % (2 * kAround.size());
  if (!data.empty()) data.remove_prefix(1);
  if (mode >= kAround.size()) return BodyMaker(data).Object();
  return std::string(kAround[mode].first).append(data).append(kAround[mode].second);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const attest::testing::FakeTokenizer tokenizer({"the", " quick"});
  static const auto chat_template = attest::ChatTemplate::Parse(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.name %}({{ m.name }}){% endif %}{% endfor "
      "%}"
      "{% if add_generation_prompt %}[assistant]{% endif %}{{ extra }}");
  static const CallLimits limits{.tokenizer = tokenizer,
                                 .chat_template = &*chat_template,
                                 .model_names = {"m", "n"},
                                 .default_sampling = {},
                                 .max_model_len = kContext,
                                 .vocab_size = kVocab,
                                 .max_choices = 128};
  const std::string body = MakeBody(std::string_view(reinterpret_cast<const char*>(data), size));
  if (const auto call = attest::ParseCompletionCall(body, limits); IsFine(call)) Check(*call);
  if (const auto call = attest::ParseChatCall(body, limits); IsFine(call)) Check(*call);
  (void)IsFine(attest::Tokenize(body, limits));
  (void)IsFine(attest::Detokenize(body, limits));
  return 0;
}
