#include "engine/limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

namespace attest {
namespace {

class NullSink final : public TokenSink {
  void OnToken(int32_t) override {}
  void OnFinish(FinishReason, std::optional<int32_t>, const Error*) override {}
};

EngineOptions LimitOptions() {
  return {.block_size = 16,
          .num_blocks = 100,
          .max_model_len = 64,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 32,
          .vocab_size = 100};
}

// "field: message" of the refusal, "" when accepted.
template <class Change>
std::string Refusal(Change change, const EngineOptions& options = LimitOptions()) {
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 5;
  request.sink = std::make_unique<NullSink>();
  change(request);
  const Status status = CheckRequest(request, options);
  if (status) return "";
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  return status.error().field + ": " + status.error().message;
}

TEST(Limits, AcceptsARequestWithinThem) {
  EXPECT_EQ(Refusal([](Request&) {}), "");
  EXPECT_EQ(Refusal([](Request& r) {
              r.prompt.assign(63, 99);
              r.sampling.max_tokens = 1;
            }),
            "");
}

// 10 blocks of 4, steps of 8 tokens: a full layer bounds a request to 40 tokens, one that sees 9 does not.
TEST(Limits, AWindowInEveryLayerTakesTheBoundOfThePoolAway) {
  EngineOptions options = LimitOptions();
  options.block_size = 4;
  options.num_blocks = 11;
  options.max_num_batched_tokens = 8;
  const auto prompt_of_60 = [](Request& r) { r.prompt.assign(60, 1), r.sampling.max_tokens = 1; };
  EXPECT_EQ(Refusal(prompt_of_60, options),
            "prompt: the prompt has 60 tokens; the KV cache holds 40 (10 blocks of 4)");
  options.kv_windows = {9};
  EXPECT_EQ(Refusal(prompt_of_60, options), "");
  options.kv_windows = {std::nullopt, 9};  // the second group takes five of the ten
  EXPECT_EQ(Refusal(prompt_of_60, options),
            "prompt: the prompt has 60 tokens; the KV cache holds 20 (10 blocks of 4)");
  options.kv_windows = {0};
  EXPECT_EQ(CheckOptions(options).error().message, "kv_windows holds 0; a window has at least 1 token");
  options.kv_windows = {};
  EXPECT_EQ(CheckOptions(options).error().field, "kv_windows");
}

TEST(Limits, NameTheFieldTheValueAndTheLimit) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Refusal([](Request& r) { r.prompt.clear(); }),
            "prompt: the prompt has 0 tokens; at least 1 is needed");
  EXPECT_EQ(Refusal([](Request& r) { r.prompt = {5, -1}; }),
            "prompt: prompt[1] is -1, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.prompt = {100}; }),
            "prompt: prompt[0] is 100, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.prompt.assign(64, 1); }),
            "prompt: the prompt has 64 tokens; max_model_len 64 leaves room for at most 63");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.max_tokens = 62; }),
            "max_tokens: max_tokens 62 and a prompt of 3 tokens pass max_model_len 64; at most 61 fit");
  EXPECT_EQ(
      Refusal([](Request& r) { r.sampling.max_tokens = std::numeric_limits<int32_t>::max(); }),
      "max_tokens: max_tokens 2147483647 and a prompt of 3 tokens pass max_model_len 64; at most 61 fit");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.max_tokens = 0; }),
            "max_tokens: max_tokens 0 is out of range: at least 1");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.temperature = -0.5f; }),
            "temperature: temperature -0.5 is not a number >= 0");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.temperature = kNan; }),
            "temperature: temperature nan is not a number >= 0");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.temperature = kInf; }),
            "temperature: temperature inf is not a number >= 0");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.top_k = -1; }),
            "top_k: top_k -1 is negative; 0 turns it off");
  for (const float bad : {0.0f, -1.0f, 1.5f, kNan, kInf}) {
    EXPECT_EQ(Refusal([bad](Request& r) { r.sampling.top_p = bad; }).substr(0, 6), "top_p:") << bad;
  }
  for (const float bad : {-0.1f, 1.5f, kNan, kInf}) {
    EXPECT_EQ(Refusal([bad](Request& r) { r.sampling.min_p = bad; }).substr(0, 6), "min_p:") << bad;
  }
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.min_tokens = 6; }),
            "min_tokens: min_tokens 6 is out of range [0, max_tokens = 5]");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.min_tokens = -1; }),
            "min_tokens: min_tokens -1 is out of range [0, max_tokens = 5]");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.stop_token_ids = {1, 100}; }),
            "stop_token_ids: stop_token_ids[1] is 100, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.eos_ids = {-7}; }),
            "eos_ids: eos_ids[0] is -7, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.logprobs = 21; }),
            "logprobs: logprobs 21 is out of range [0, 20]");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.prompt_logprobs = -1; }),
            "prompt_logprobs: prompt_logprobs -1 is out of range [0, 20]");
  for (const float bad : {0.0f, -1.0f, 1.5f, kNan}) {
    EXPECT_EQ(Refusal([bad](Request& r) { r.sampling.typical_p = bad; }).substr(0, 10), "typical_p:") << bad;
  }
  for (const float bad : {0.0f, -1.0f, kNan, kInf}) {
    EXPECT_EQ(Refusal([bad](Request& r) { r.sampling.repetition_penalty = bad; }),
              fmt::format("repetition_penalty: repetition_penalty {} is not a number > 0", bad));
  }
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.presence_penalty = kInf; }),
            "presence_penalty: presence_penalty inf is not finite");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.frequency_penalty = kNan; }),
            "frequency_penalty: frequency_penalty nan is not finite");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.logit_bias = {{.id = 5, .bias = kInf}}; }),
            "logit_bias: logit_bias of id 5 is inf, not finite");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.logit_bias = {{.id = 100, .bias = 1}}; }),
            "logit_bias: logit_bias[0] is 100, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.allowed_token_ids = {-1}; }),
            "allowed_token_ids: allowed_token_ids[0] is -1, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.bad_words = {{1}, {}}; }),
            "bad_words: bad_words holds a word of 0 tokens");
  EXPECT_EQ(Refusal([](Request& r) { r.sampling.bad_words = {{1, 100}}; }),
            "bad_words: bad_words[1] is 100, not a token id in [0, 100)");
  EXPECT_EQ(Refusal([](Request& r) { r.sink.reset(); }), "sink: the request has no sink");
  EXPECT_EQ(Refusal([](Request& r) { r.priority = -3; }),
            "priority: priority is -3, but the scheduling policy is fcfs: it must be 0");
  EngineOptions by_priority = LimitOptions();
  by_priority.policy = SchedulingPolicy::kPriority;
  EXPECT_EQ(Refusal([](Request& r) { r.priority = -3; }, by_priority), "");
}

// 13 blocks of 8, one of them reserved: 96 slots. A prompt of 96 runs if it wants one token, whose K and V
// are never needed; 97 to 104 tokens would be counted as fitting by whoever forgets the reserved block, and
// would wait for ever (bug case C30: prompts in a narrow range of lengths admitted and never run).
TEST(Limits, C30CountTheReservedBlock) {
  EngineOptions options = LimitOptions();
  options.block_size = 8;
  options.num_blocks = 13;
  options.max_model_len = 1000;
  const auto refusal = [&options](size_t prompt_len, int32_t max_tokens) {
    return Refusal(
        [&](Request& r) {
          r.prompt.assign(prompt_len, 1);
          r.sampling.max_tokens = max_tokens;
        },
        options);
  };
  EXPECT_EQ(refusal(96, 1), "");
  EXPECT_EQ(refusal(90, 7), "");
  EXPECT_EQ(
      refusal(96, 2),
      "max_tokens: max_tokens 2 and a prompt of 96 tokens need 97 KV slots; the cache holds 96 (12 blocks of "
      "8), so at most 1 fit");
  for (size_t length = 97; length <= 104; ++length) {
    EXPECT_EQ(refusal(length, 1), "prompt: the prompt has " + std::to_string(length) +
                                      " tokens; the KV cache holds 96 (12 blocks of 8)");
  }
}

TEST(Limits, NameAnEngineOptionOutOfRange) {
  const auto field_of = [](auto change) {
    EngineOptions options = LimitOptions();
    change(options);
    const Status status = CheckOptions(options);
    return status ? std::string("none") : status.error().field;
  };
  EXPECT_EQ(field_of([](EngineOptions&) {}), "none");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.block_size = 0; }), "block_size");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.num_blocks = 1; }), "num_blocks");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.max_model_len = 1; }), "max_model_len");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.max_model_len = 1 << 30; }), "none");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.max_model_len = (1 << 30) + 1; }), "max_model_len");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.max_num_seqs = 0; }), "max_num_seqs");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.max_num_batched_tokens = 0; }), "max_num_batched_tokens");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.max_queue = 0; }), "max_queue");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.vocab_size = 0; }), "vocab_size");
  EXPECT_EQ(field_of([](EngineOptions& o) { o.long_prefill_tokens = -1; }), "long_prefill_tokens");
}

}  // namespace
}  // namespace attest
