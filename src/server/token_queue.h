// From the engine thread to the I/O thread: events of every live sequence in one queue, with one wake-up per
// batch, so that a step of 1,000 rows costs one task and not 1,000. Owned by the frontend; it outlives every
// sink it made.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace attest {

using GenerationId = uint64_t;

struct TokenEvent {
  GenerationId generation = 0;
  int32_t choice = 0;
  std::optional<int32_t> cached;  // set: the prompt is done, and how many tokens of it were cached
  bool retract = false;           // set: the tokens so far never were; they come anew
  std::optional<int32_t> token;   // set: one token
  // Of `token` or `stop_token`, and of the prompt (an event of its own), where they are wanted.
  std::unique_ptr<TokenLogprobs> logprobs;
  std::unique_ptr<std::vector<TokenLogprobs>> prompt_logprobs;
  std::optional<FinishReason> reason;  // set: the sequence ended
  std::optional<int32_t> stop_token;   // the generated id that ended it; no text
  std::unique_ptr<Error> error;        // with kError
};

struct TokenBatch {
  std::vector<TokenEvent> events;
  std::chrono::steady_clock::time_point since;  // when the first of them was said
};

class TokenQueue {
 public:
  // `wake` is called on the engine thread when an event meets an empty queue; it must have Drain called soon.
  explicit TokenQueue(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~TokenQueue() { AwaitSinks(); }

  // `may_retract`: nothing of a choice is shown before its end, so its tokens can be taken back.
  [[nodiscard]] std::unique_ptr<TokenSink> MakeSink(GenerationId generation, int32_t choice,
                                                    bool may_retract = false);

  // All events so far, in order. One thread.
  [[nodiscard]] TokenBatch Drain();
  // Returns when the engine has destroyed every sink.
  void AwaitSinks();

 private:
  class Sink;
  void Push(TokenEvent event);

  std::function<void()> wake_;
  std::mutex mutex_;
  TokenBatch batch_;  // guarded by mutex_
  std::atomic<int64_t> num_sinks_ = 0;
};

}  // namespace attest
