// How many KV blocks fit this machine, and what that means in tokens. Pure functions of numbers: the caller
// reads the memory (device/memory.h) after the weights are loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/kv_groups.h"
#include "cache/kv_storage.h"

namespace attest {

struct KvSizingInput {
  KvShape shape;
  int64_t available_bytes = 0;  // MemoryStatus::available_bytes
  double fraction = 0.9;        // of the available bytes, (0, 1]
  int64_t reserve_bytes = 0;    // kept back for activations, logits and the front end
  int32_t max_model_len = 0;    // tokens of one sequence, prompt + output
  int32_t max_num_seqs = 1;     // running at once: more blocks than these can fill are not allocated
  // One sequence of this many tokens must fit; unset: of max_model_len. A caller whose max_model_len is only
  // the model's own limit, not a wish of the user, sets a small number here and takes longest_context_tokens.
  std::optional<int32_t> min_context_tokens;
  // One per KV group, and the most tokens of one sequence in a step: what a sequence holds at once depends on
  // them.
  std::vector<KvWindow> windows = {std::nullopt};
  int32_t max_step_tokens = 1;
  std::optional<int64_t> num_blocks;  // the user's choice, checked against the memory
};

struct KvSizing {
  int64_t num_blocks = 0;              // block 0 included
  int64_t kv_bytes = 0;                // as allocated
  int32_t longest_context_tokens = 0;  // of one sequence alone, at most max_model_len
  double full_length_seqs = 0;         // sequences of that length that fit at once
  // For the log: "KV cache: 2,049 blocks of 16 tokens (bf16), 720.4 MiB: one sequence of up to 8,192 tokens,
  // or 4.0 of that length at once".
  std::string words;
};

// kResourceExhausted when not even one sequence of the minimum fits ("needs X for one sequence of N tokens, Y
// available"); kInvalidArgument names a field that is out of range.
[[nodiscard]] Expected<KvSizing> SizeKvCache(const KvSizingInput& input);

}  // namespace attest
