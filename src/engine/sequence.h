// One request inside the engine: its known tokens, how far its KV has caught up with them, and the blocks
// that hold it. Owned by the scheduler while it waits or runs; touched by the engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/request.h"

namespace attest {

enum class SequenceState { kWaiting, kRunning, kFinished };

// The blocks of one KV group (cache/kv_groups.h).
struct KvTable {
  std::vector<int32_t> blocks;  // token t is in blocks[t / block_size]; null where the window has passed
  size_t num_passed = 0;        // the first of `blocks`, which are null
  PrefixChain chain;
};

struct Sequence {
  RequestId id = 0;
  Request request;
  std::vector<int32_t> tokens;  // known: the prompt, then what was sampled. The KV catches up with it.
  int32_t prompt_len = 0;
  int32_t computed = 0;  // tokens whose K and V are in the blocks; known - computed is what is left to do
  std::vector<KvTable> tables = std::vector<KvTable>(1);  // one per KV group
  std::optional<int32_t> cached;  // tokens found in the prefix cache when it was first admitted
  int64_t seed = 0;
  SequenceState state = SequenceState::kWaiting;
  int32_t num_preemptions = 0;

  // Where logprobs are wanted: of the token that was sampled last, and of the prompt's tokens 1, 2, ...,
  // which are handed over with the first sampled token.
  TokenLogprobs newest_logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  int32_t num_scored = 1;  // prompt tokens that have their logprobs; the first has none

  // Set when it is over; the scheduler then gives it back with its blocks freed.
  std::optional<FinishReason> finish;
  std::optional<int32_t> stop_token;
  std::optional<Error> error;

  using TimePoint = std::chrono::steady_clock::time_point;
  TimePoint arrival;
  std::optional<TimePoint> first_scheduled, first_token, last_token;

  [[nodiscard]] int32_t known() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t generated() const { return known() - prompt_len; }
};

}  // namespace attest
