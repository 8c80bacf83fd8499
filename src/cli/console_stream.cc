#include "cli/console_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace attest {
namespace {

using Clock = std::chrono::steady_clock;

// What the engine thread hands to the printing thread.
struct Channel {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<int32_t> tokens;
  std::optional<FinishReason> finished;
  std::optional<Error> error;
};

class ConsoleSink final : public TokenSink {
 public:
  explicit ConsoleSink(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  void OnToken(int32_t token) override {
    const std::lock_guard lock(channel_->mutex);
    channel_->tokens.push_back(token);
    channel_->changed.notify_one();
  }
  void OnFinish(FinishReason reason, std::optional<int32_t>, const Error* error) override {
    const std::lock_guard lock(channel_->mutex);
    channel_->finished = reason;
    if (error != nullptr) channel_->error = *error;
    channel_->changed.notify_one();
  }

 private:
  std::shared_ptr<Channel> channel_;
};

void Print(const std::string& piece, std::string& all) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
  all += piece;
}

}  // namespace

Expected<StreamResult> StreamToConsole(Engine& engine, const Tokenizer& tokenizer,
                                       std::vector<int32_t> prompt, const SamplingParams& sampling,
                                       const std::vector<int32_t>& eos_ids) {
  const auto channel = std::make_shared<Channel>();
  IncrementalDecoder decoder(tokenizer, /*skip_special_tokens=*/true, prompt);
  const Clock::time_point submitted = Clock::now();
  Clock::time_point first, last;
  ATTEST_RETURN_IF_ERROR(engine.Submit(Request{.prompt = std::move(prompt),
                                               .sampling = sampling,
                                               .eos_ids = eos_ids,
                                               .sink = std::make_unique<ConsoleSink>(channel)}));
  StreamResult result;
  for (bool done = false; !done;) {
    std::deque<int32_t> tokens;
    {
      std::unique_lock lock(channel->mutex);
      channel->changed.wait(lock, [&] { return !channel->tokens.empty() || channel->finished; });
      tokens.swap(channel->tokens);
      done = channel->finished.has_value();
    }
    for (const int32_t token : tokens) {
      last = Clock::now();
      if (result.generated_tokens++ == 0) first = last;
      Print(decoder.Append(token), result.text);
    }
  }
  Print(decoder.Finish(), result.text);
  if (channel->error) return std::unexpected(*channel->error);
  result.reason = *channel->finished;
  if (result.generated_tokens > 0) {
    result.seconds_to_first_token = std::chrono::duration<double>(first - submitted).count();
    result.decode_seconds = std::chrono::duration<double>(last - first).count();
  }
  return result;
}

Expected<SamplingParams> ToSamplingParams(const SamplingFlags& flags, size_t prompt_tokens,
                                          int32_t max_model_len) {
  const auto room = static_cast<int64_t>(max_model_len) - static_cast<int64_t>(prompt_tokens);
  if (room < 1) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the prompt has {} tokens, the longest context is {}", prompt_tokens, max_model_len),
        "prompt");
  }
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(flags.temperature);
  sampling.top_p = static_cast<float>(flags.top_p);
  sampling.top_k = flags.top_k;
  sampling.min_p = static_cast<float>(flags.min_p);
  sampling.seed = flags.seed;
  sampling.max_tokens = static_cast<int32_t>(std::min<int64_t>(flags.max_tokens, room));
  return sampling;
}

}  // namespace attest
