// The serving engine: a queue, one thread, and the step loop Schedule -> Run -> Commit. Any thread may submit
// and abort; sinks and the observer are called on the engine thread. A sink may call Submit and Abort.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/error.h"
#include "base/thread_team.h"
#include "engine/request.h"
#include "model/step_batch.h"
#include "tensor/view.h"

namespace attest {

// Who goes first, and who last gives its blocks back: by arrival, or by the priority of the request and then
// by arrival.
enum class SchedulingPolicy { kFcfs, kPriority };

struct EngineOptions {
  int block_size = 16;
  int64_t num_blocks = 0;                 // of the pool, block 0 reserved
  int32_t max_model_len = 0;              // tokens, prompt + output
  int32_t max_num_seqs = 64;              // running at once
  int32_t max_num_batched_tokens = 2048;  // token budget of a step
  int32_t max_queue = 4096;               // waiting requests; one more is kUnavailable
  // Tokens of a step that one sequence may take while others come after it; 0: three quarters of what those
  // before it left of the budget.
  // Without a cap one 100k-token prompt would hold every later request back for its whole prefill.
  int32_t long_prefill_tokens = 0;
  int64_t vocab_size = 0;
  // One per KV group of the runner's model (cache/kv_groups.h): blocks behind a window are given back.
  std::vector<std::optional<int32_t>> kv_windows = {std::nullopt};
  bool prefix_caching = true;
  bool deterministic = false;  // what the runner was made to be; only reported
  std::string cache_key =
      {};  // what the K and V depend on besides the tokens: the model, the type of its cache
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
};

// What the checks of a step say about it, before it is committed.
struct StepVerdict {
  enum class Action {
    kCommit,
    // Something in this step is wrong, and all before it was checked: run the step again.
    kRunAgain,
    // Something in this step is wrong, and what earlier steps left in the KV cache may be: compute every
    // sequence again, and take tokens back where nobody has seen them.
    kRecomputeAll,
    // Serve nothing more. Every request ends with `error`.
    kStop,
  };
  Action action = Action::kCommit;
  Error error = {};  // with kStop
  // With kCommit: something was wrong and is served all the same, since the operator wants it so. No request
  // but its own may see it: nothing is shared any more.
  bool ends_sharing = false;
};

// Runs one step on the machine. The engine's only way down: a real one plans attention and calls the model;
// tests use a toy whose next token is a function of every KV slot read.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Fills logits [batch.logit_rows.size(), vocab_size]. An error leaves sequences as they were.
  virtual Status Run(const StepBatch& batch, View<float, 2> logits) = 0;
  // Logits of further rows of the batch that the last Run computed, for logprobs of prompts. At most as many
  // rows as one Run may ask logits of. Overwrites logits [rows.size(), vocab_size].
  virtual Status Logits(const StepBatch& /*batch*/, std::span<const int32_t> /*rows*/,
                        View<float, 2> /*logits*/) {
    return Fail(ErrorCode::kUnsupported, "this runner cannot score prompts", "prompt_logprobs");
  }
  // Asked once after each Run that succeeded. A step that is not committed leaves sequences as they were.
  [[nodiscard]] virtual StepVerdict TakeVerdict() { return {}; }
  // Called once on the engine thread before the first Run (to bind it to a CPU).
  virtual void OnThreadStart() {}
  // The kernels the last Run used, by phase; valid until the next Run.
  [[nodiscard]] virtual std::span<const PlannedRoute> last_routes() const { return {}; }
  // Threads that idle between two Runs; the engine samples the rows of a step on them. nullptr: none.
  [[nodiscard]] virtual ThreadTeam* team() { return nullptr; }
};

// A snapshot of counters and gauges.
struct EngineStats {
  int64_t num_running = 0, num_waiting = 0;
  int64_t free_blocks = 0, total_blocks = 0;  // total: usable ones, the reserved block 0 left out
  int64_t num_preemptions = 0;
  // A prompt counts once, when its first token is there; recomputed tokens after a preemption do not count.
  int64_t prompt_tokens = 0, generation_tokens = 0;
  int64_t prompt_tokens_cached = 0;  // those of prompt_tokens that came from the prefix cache
  // Tokens looked up and found in it, when a sequence is first admitted.
  int64_t prefix_cache_queries = 0, prefix_cache_hits = 0;
  int64_t steps = 0, failed_steps = 0;
  int64_t discarded_steps = 0;                        // run, found wrong, and not committed
  int64_t recomputed_seqs = 0;                        // sequences computed again because a kernel was wrong
  int64_t retracted_tokens = 0;                       // taken back from sinks that nobody had read
  std::string stopped_because = {};                   // why it serves nothing more; empty while it serves
  std::array<int64_t, kNumFinishReasons> finished{};  // requests, by FinishReason
  bool healthy = true;                     // false while the last 3 steps all failed, and once it has stopped
  [[nodiscard]] double kv_usage() const {  // 0 to 1
    return total_blocks == 0 ? 0.0
                             : 1.0 - static_cast<double>(free_blocks) / static_cast<double>(total_blocks);
  }
};

// What a finished request leaves behind for metrics and logs. Queue time = arrival to first_scheduled;
// prefill = first_scheduled to first_token; decode = first_token to last_token. A preempted request keeps its
// first times.
struct RequestRecord {
  using TimePoint = std::chrono::steady_clock::time_point;
  RequestId id = 0;
  FinishReason reason = FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, from the prefix cache
  int32_t generation_tokens = 0;
  int32_t max_tokens = 0;
  int32_t num_preemptions = 0;
  int64_t seed = 0;  // given or drawn: with it every draw can be recomputed (docs/sampling.md)
  TimePoint arrival;
  std::optional<TimePoint> first_scheduled, first_token, last_token;
  TimePoint finish;
};

// One step. Spans are valid during the call.
struct StepRecord {
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;       // rows computed
  int32_t num_sampled = 0;      // tokens handed to sinks
  int32_t num_preempted = 0;    // sequences sent back to the queue by this step
  double schedule_seconds = 0;  // Schedule and the batch
  double run_seconds = 0;
  double commit_seconds = 0;  // sampling, sinks, freeing
  bool failed = false;
  bool discarded = false;                // found wrong before it was committed; it has no tokens
  std::span<const PlannedRoute> routes;  // phase, kernel, sequences and tokens of each
  std::span<const double> time_to_first_token_seconds;  // of requests whose first token came in this step
  std::span<const double> inter_token_seconds;          // gaps before the other tokens of this step
};

// Called on the engine thread; implementations count and return at once.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnStep(const StepRecord& step) = 0;
  virtual void OnRequestFinished(const RequestRecord& request) = 0;
};

class Engine {
 public:
  // Checks the options (errors name the option, its value and the limit) and starts the engine thread.
  // `runner` is used on that thread only; `observer` may be null and must outlive the engine.
  static Expected<std::unique_ptr<Engine>> Start(const EngineOptions& options,
                                                 std::unique_ptr<StepRunner> runner,
                                                 EngineObserver* observer = nullptr);
  virtual ~Engine() = default;  // aborts what runs, joins the thread

  // Checks the request against the limits (errors name the field, the value and the limit) and queues it.
  // prompt + max_tokens may not pass max_model_len: capping a default is the front end's business. A sequence
  // that could never fit the block pool is refused here, not parked. kUnavailable: draining, stopped, or
  // queue full. On an error the sink is dropped without a call.
  virtual Expected<RequestId> Submit(Request request) = 0;
  // The sequence stops within one step and its blocks are freed; its sink gets OnFinish(kAbort). Unknown or
  // finished ids are ignored.
  virtual void Abort(RequestId id) = 0;
  // The same for a sequence whose text is complete, as its reader has found a stop string: it counts as
  // kStop.
  virtual void EndText(RequestId id) = 0;
  // Forgets every cached prefix, unless a block is in use: false then. Returns once the step under way is
  // over. REQUIRES: not the engine thread.
  virtual bool ResetPrefixCache() = 0;
  // Refuses new requests from now on; returns at once. `drained()` turns true when nothing is left.
  virtual void Drain() = 0;
  [[nodiscard]] virtual bool drained() const = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;
  [[nodiscard]] virtual const EngineOptions& options() const = 0;
};

}  // namespace attest
