// The body of a request: every parser either refuses it with one line that names what is wrong, or gives a
// call whose every value is within the limits that the engine relies on.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

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
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto call = attest::ParseCompletionCall(body, limits); IsFine(call)) Check(*call);
  if (const auto call = attest::ParseChatCall(body, limits); IsFine(call)) Check(*call);
  (void)IsFine(attest::Tokenize(body, limits));
  (void)IsFine(attest::Detokenize(body, limits));
  return 0;
}
