// The serving engine: a queue, one thread, and the step loop Schedule -> Run -> Commit. Any thread may submit
// and abort; sinks are called on the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.h"
#include "engine/request.h"
#include "model/step_batch.h"
#include "tensor/view.h"

namespace attest {

struct EngineOptions {
  int block_size = 16;
  int64_t num_blocks = 0;                 // of the pool, block 0 reserved
  int32_t max_model_len = 0;              // tokens, prompt + output
  int32_t max_num_seqs = 64;              // running at once
  int32_t max_num_batched_tokens = 2048;  // token budget of a step
  int32_t max_queue = 4096;               // waiting requests; one more is kUnavailable
  int64_t vocab_size = 0;
};

// Runs one step on the machine. The engine's only way down: a real one plans attention and calls the model;
// tests use a toy whose next token is a function of every KV slot read.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Fills logits [batch.logit_rows.size(), vocab_size]. An error leaves sequences as they were.
  virtual Status Run(const StepBatch& batch, View<float, 2> logits) = 0;
};

// A snapshot of counters and gauges; see docs/metrics.md for the meaning of each.
struct EngineStats {
  int64_t num_running = 0, num_waiting = 0;
  int64_t free_blocks = 0, total_blocks = 0;
  int64_t num_preemptions = 0;
  int64_t prompt_tokens = 0, generation_tokens = 0, steps = 0;
  bool healthy = true;
};

class Engine {
 public:
  // Starts the engine thread. `runner` is used on that thread only.
  static Expected<std::unique_ptr<Engine>> Start(const EngineOptions& options,
                                                 std::unique_ptr<StepRunner> runner);
  virtual ~Engine() = default;  // aborts what runs, joins the thread

  // Checks the request against the limits (errors name the field, the value and the limit) and queues it.
  virtual Expected<RequestId> Submit(Request request) = 0;
  // The sequence stops within one step and its blocks are freed; its sink gets OnFinish(kAbort). Unknown or
  // finished ids are ignored.
  virtual void Abort(RequestId id) = 0;
  // Refuses new requests from now on; returns at once. `drained()` turns true when nothing is left.
  virtual void Drain() = 0;
  [[nodiscard]] virtual bool drained() const = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;
  [[nodiscard]] virtual const EngineOptions& options() const = 0;
};

}  // namespace attest
