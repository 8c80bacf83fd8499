#include "server/token_queue.h"

#include <utility>

namespace attest {

class TokenQueue::Sink final : public TokenSink {
 public:
  Sink(TokenQueue& queue, GenerationId generation, int32_t choice, bool may_retract)
      : queue_(queue), generation_(generation), choice_(choice), may_retract_(may_retract) {
    queue_.num_sinks_.fetch_add(1);
  }
  ~Sink() override {
    std::atomic<int64_t>& count = queue_.num_sinks_;
    // The notifying load of the queue may not follow its destruction: AwaitSinks takes the mutex last.
    const std::lock_guard lock(queue_.mutex_);
    if (count.fetch_sub(1) == 1) count.notify_all();
  }

  void OnPromptDone(int32_t cached_tokens) override {
    TokenEvent event;
    event.generation = generation_;
    event.choice = choice_;
    event.cached = cached_tokens;
    queue_.Push(std::move(event));
  }
  void OnToken(int32_t token) override {
    TokenEvent event;
    event.generation = generation_;
    event.choice = choice_;
    event.token = token;
    event.logprobs = std::move(logprobs_);
    queue_.Push(std::move(event));
  }
  void OnLogprobs(TokenLogprobs logprobs) override {
    logprobs_ = std::make_unique<TokenLogprobs>(std::move(logprobs));
  }
  void OnPromptLogprobs(std::vector<TokenLogprobs> logprobs) override {
    TokenEvent event;
    event.generation = generation_;
    event.choice = choice_;
    event.prompt_logprobs = std::make_unique<std::vector<TokenLogprobs>>(std::move(logprobs));
    queue_.Push(std::move(event));
  }
  bool Retract() override {
    if (!may_retract_) return false;
    TokenEvent event;
    event.generation = generation_;
    event.choice = choice_;
    event.retract = true;
    queue_.Push(std::move(event));
    return true;
  }
  void OnFinish(FinishReason reason, std::optional<int32_t> stop_token, const Error* error) override {
    TokenEvent event;
    event.generation = generation_;
    event.choice = choice_;
    event.reason = reason;
    event.stop_token = stop_token;
    event.logprobs = std::move(logprobs_);
    if (error != nullptr) event.error = std::make_unique<Error>(*error);
    queue_.Push(std::move(event));
  }

 private:
  TokenQueue& queue_;
  const GenerationId generation_;
  const int32_t choice_;
  std::unique_ptr<TokenLogprobs> logprobs_;  // of the token that comes next
  const bool may_retract_;
};

std::unique_ptr<TokenSink> TokenQueue::MakeSink(GenerationId generation, int32_t choice, bool may_retract) {
  return std::make_unique<Sink>(*this, generation, choice, may_retract);
}

void TokenQueue::Push(TokenEvent event) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = batch_.events.empty();
    if (was_empty) batch_.since = std::chrono::steady_clock::now();
    batch_.events.push_back(std::move(event));
  }
  if (was_empty) wake_();
}

TokenBatch TokenQueue::Drain() {
  const std::lock_guard lock(mutex_);
  return std::exchange(batch_, {});
}

void TokenQueue::AwaitSinks() {
  for (int64_t left = num_sinks_.load(); left != 0; left = num_sinks_.load()) num_sinks_.wait(left);
  const std::lock_guard lock(mutex_);
}

}  // namespace attest
