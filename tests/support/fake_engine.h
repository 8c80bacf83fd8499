// An engine without a model: one thread, one token of every sequence per step, each token a function of the
// request alone. It keeps the contract of engine/engine.h, so that what works on it works on the real one.
// Test only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace attest::testing {

class FakeEngine final : public Engine {
 public:
  // The tokens that a request would generate without a limit; eos and stop ids in it end it. kFailure ends it
  // with an error. Past its end it is repeated.
  using Script = std::function<std::vector<int32_t>(const Request&)>;
  static constexpr int32_t kFailure = -1;

  FakeEngine(const EngineOptions& options, Script script, std::chrono::microseconds step_time = {})
      : options_(options), script_(std::move(script)), step_time_(step_time), thread_([this] { Loop(); }) {}
  ~FakeEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Expected<RequestId> Submit(Request request) override {
    const auto length = static_cast<int64_t>(request.prompt.size()) + request.sampling.max_tokens;
    if (request.prompt.empty() || request.sampling.max_tokens < 1 || length > options_.max_model_len) {
      return Fail(ErrorCode::kInvalidArgument, "the fake engine refuses this length", "max_tokens");
    }
    const std::lock_guard lock(mutex_);
    if (draining_) return Fail(ErrorCode::kUnavailable, "the engine is draining");
    if (static_cast<int32_t>(sequences_.size()) >= options_.max_queue) {
      return Fail(ErrorCode::kUnavailable, "the queue is full");
    }
    Sequence sequence{.request = std::move(request), .script = {}};
    sequence.script = script_(sequence.request);
    sequences_.emplace(++next_id_, std::move(sequence));
    ++submitted_;
    wake_.notify_all();
    return next_id_;
  }
  void Abort(RequestId id) override { End(id, FinishReason::kAbort); }
  void EndText(RequestId id) override { End(id, FinishReason::kStop); }
  // Works unless something runs, as the real one.
  bool ResetPrefixCache() override {
    const std::lock_guard lock(mutex_);
    return sequences_.empty();
  }
  void Drain() override {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  bool drained() const override {
    const std::lock_guard lock(mutex_);
    return draining_ && sequences_.empty();
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.num_running = static_cast<int64_t>(sequences_.size());
    stats.free_blocks = 60;
    stats.total_blocks = 80;
    stats.generation_tokens = generated_;
    stats.prompt_tokens_cached = 11;
    stats.prefix_cache_queries = 33;
    stats.prefix_cache_hits = 22;
    stats.steps = steps_;
    stats.finished = finished_;
    stats.healthy = healthy_;
    return stats;
  }
  const EngineOptions& options() const override { return options_; }

  // The distribution before every token: the token itself has probability 1/2, then come the ids after it,
  // each half as likely as the one before; ids that are multiples of 10 are second to the one after them, and
  // id 13 is impossible.
  [[nodiscard]] static TokenLogprobs Scores(int32_t token, int32_t num_top) {
    constexpr float kHalf = -0.6931472f;
    const bool is_best = token % 10 != 0;
    TokenLogprobs scores{
        .token = token, .logprob = is_best ? kHalf : 2 * kHalf, .rank = is_best ? 1 : 2, .top = {}};
    if (token == 13) scores.logprob = -std::numeric_limits<float>::infinity();
    for (int32_t i = 0; i < num_top; ++i) {
      const int32_t id = is_best ? token + i : token + (i == 0 ? 1 : i == 1 ? 0 : i);
      scores.top.push_back({.id = id, .logprob = static_cast<float>(i + 1) * kHalf});
    }
    return scores;
  }

  // While paused no step runs, except to end aborted sequences.
  void Pause(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    wake_.notify_all();
  }
  // How many tokens of a prompt come from the prefix cache; none by default.
  void SetCached(std::function<int32_t(const Request&)> cached) {
    const std::lock_guard lock(mutex_);
    cached_ = std::move(cached);
  }
  void SetHealthy(bool healthy) {
    const std::lock_guard lock(mutex_);
    healthy_ = healthy;
  }
  // Asks every sequence to give its tokens back, as a wrong kernel makes the engine do. How many did.
  int RetractAll() {
    const std::lock_guard lock(mutex_);
    int retracted = 0;
    for (auto& [id, sequence] : sequences_) {
      if (sequence.num_tokens == 0 || !sequence.request.sink->Retract()) continue;
      sequence.num_tokens = 0;
      ++retracted;
    }
    return retracted;
  }
  [[nodiscard]] int64_t submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  [[nodiscard]] int64_t running() const { return stats().num_running; }
  [[nodiscard]] int64_t finished(FinishReason reason) const {
    return stats().finished[static_cast<size_t>(reason)];
  }
  // Waits up to 30 s: a machine may be busy.
  [[nodiscard]] bool WaitUntilIdle() const {
    for (int i = 0; i < 30000 && running() != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return running() == 0;
  }

 private:
  struct Sequence {
    Request request;
    std::vector<int32_t> script;
    int32_t num_tokens = 0;
    std::optional<FinishReason> ended = {};  // by its reader
  };

  void End(RequestId id, FinishReason reason) {
    const std::lock_guard lock(mutex_);
    if (const auto it = sequences_.find(id); it != sequences_.end()) it->second.ended = reason;
    wake_.notify_all();
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || HasWork(); });
      if (stopping_) break;
      Step();
      if (step_time_.count() > 0) {
        lock.unlock();
        std::this_thread::sleep_for(step_time_);
        lock.lock();
      }
    }
    for (auto& [id, sequence] : sequences_) sequence.ended = FinishReason::kAbort;
    Step();
  }
  [[nodiscard]] bool HasWork() const {
    return std::ranges::any_of(sequences_, [this](const auto& s) { return !paused_ || s.second.ended; });
  }
  void Step() {
    ++steps_;
    for (auto it = sequences_.begin(); it != sequences_.end();) {
      it = Advance(it->second) ? sequences_.erase(it) : std::next(it);
    }
  }
  // True when the sequence has ended.
  bool Advance(Sequence& s) {
    const SamplingParams& sampling = s.request.sampling;
    const auto finish = [&](FinishReason reason, std::optional<int32_t> stop = {},
                            const Error* error = nullptr) {
      ++finished_[static_cast<size_t>(reason)];
      s.request.sink->OnFinish(reason, stop, error);
      return true;
    };
    if (s.ended) return finish(*s.ended);
    if (paused_) return false;
    const int32_t token = s.script[static_cast<size_t>(s.num_tokens) % s.script.size()];
    if (token == kFailure) {
      const Error error{ErrorCode::kInternal, "the step failed", ""};
      return finish(FinishReason::kError, {}, &error);
    }
    if (s.num_tokens == 0) s.request.sink->OnPromptDone(cached_(s.request));
    if (sampling.prompt_logprobs && s.num_tokens == 0) {
      std::vector<TokenLogprobs> scores;
      for (size_t i = 1; i < s.request.prompt.size(); ++i) {
        scores.push_back(Scores(s.request.prompt[i], *sampling.prompt_logprobs));
      }
      s.request.sink->OnPromptLogprobs(std::move(scores));
    }
    if (sampling.logprobs) s.request.sink->OnLogprobs(Scores(token, *sampling.logprobs));
    ++s.num_tokens;
    ++generated_;
    const bool may_end = s.num_tokens > sampling.min_tokens;
    const bool is_eos = !sampling.ignore_eos && std::ranges::count(s.request.eos_ids, token) != 0;
    if (may_end && (is_eos || std::ranges::count(sampling.stop_token_ids, token) != 0)) {
      return finish(FinishReason::kStop, token);
    }
    s.request.sink->OnToken(token);
    return s.num_tokens >= sampling.max_tokens && finish(FinishReason::kLength);
  }

  const EngineOptions options_;
  const Script script_;
  std::function<int32_t(const Request&)> cached_ = [](const Request&) { return 0; };
  const std::chrono::microseconds step_time_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<RequestId, Sequence> sequences_;
  RequestId next_id_ = 0;
  int64_t submitted_ = 0, generated_ = 0, steps_ = 0;
  std::array<int64_t, kNumFinishReasons> finished_{};
  bool stopping_ = false, draining_ = false, paused_ = false, healthy_ = true;
  std::thread thread_;
};

}  // namespace attest::testing
