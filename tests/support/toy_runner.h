// A model without weights whose next token is a function of every KV slot it may read: two layers of hashes
// over the paged cache. A wrong slot, a missed write, a stale block, a wrong position or a wrong length
// changes the logits, and with them the text. It also checks what a StepBatch promises, and fails the step
// otherwise. With two windows its layers are two KV groups, which share one array as they share a real pool.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_groups.h"
#include "engine/engine.h"
#include "model/step_batch.h"

namespace attest::testing {

inline constexpr int64_t kToyVocab = 97;  // ids of the prompts that tests make up

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15u ^ (b + 0x632BE59BD9B4E019u);
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  return z ^ (z >> 32);
}

// What happened, for tests that look on; shared with the runner, which the engine owns.
struct ToyLog {
  int64_t steps = 0;
  int64_t tokens = 0;
  int32_t max_seqs = 0;
  int32_t max_step_tokens = 0;
  int64_t scored_rows = 0, max_scored_rows = 0;  // of Logits; the largest single call
};

struct ToyOptions {
  int64_t num_blocks = 64;
  int block_size = 16;
  int64_t vocab_size = 97;
  std::vector<KvWindow> windows = {std::nullopt};  // of one or two KV groups
  ToyLog* log = nullptr;
  std::function<Status(const StepBatch&)> before_run = {};  // may refuse the step, sleep, or look at it
};

class ToyRunner : public StepRunner {
 public:
  explicit ToyRunner(const ToyOptions& options)
      : options_(options),
        storage1_(static_cast<size_t>(options.num_blocks * options.block_size), 0xDEADu),
        storage2_(storage1_.size(), 0xBEEFu),
        layer1_(storage1_),
        layer2_(options.windows.size() == 1 ? storage2_ : storage1_) {}

  Status Run(const StepBatch& batch, View<float, 2> logits) override {
    if (options_.before_run) ATTEST_RETURN_IF_ERROR(options_.before_run(batch));
    ATTEST_RETURN_IF_ERROR(CheckBatch(batch, logits));
    if (options_.log != nullptr) {
      ++options_.log->steps;
      options_.log->tokens += batch.num_tokens();
      options_.log->max_seqs = std::max(options_.log->max_seqs, batch.num_seqs());
      options_.log->max_step_tokens = std::max(options_.log->max_step_tokens, batch.num_tokens());
    }
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      layer1_[static_cast<size_t>(batch.slots_of(0)[t])] =
          Mix(static_cast<uint64_t>(batch.tokens[t]), static_cast<uint64_t>(batch.positions[t]));
    }
    ForEachRow(batch, [&](int seq, int32_t row, int32_t position) {
      layer2_[static_cast<size_t>(batch.slots_of(last_group())[static_cast<size_t>(row)])] =
          Fold(layer1_, 0, batch, seq, position);
    });
    size_t next = 0;
    ForEachRow(batch, [&](int seq, int32_t row, int32_t position) {
      if (next == batch.logit_rows.size() || batch.logit_rows[next] != row) return;
      WriteRow(batch, seq, position, logits.At(static_cast<int64_t>(next)));
      ++next;
    });
    return {};
  }
  Status Logits(const StepBatch& batch, std::span<const int32_t> rows, View<float, 2> logits) override {
    if (logits.shape[0] != std::ssize(rows)) return Fail(ErrorCode::kInternal, "bad rows");
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      bool found = false;
      ForEachRow(batch, [&](int seq, int32_t row, int32_t position) {
        if (row != rows[static_cast<size_t>(i)]) return;
        WriteRow(batch, seq, position, logits.At(i));
        found = true;
      });
      if (!found) return Fail(ErrorCode::kInternal, "bad rows");
    }
    if (options_.log != nullptr) {
      options_.log->scored_rows += std::ssize(rows);
      options_.log->max_scored_rows = std::max<int64_t>(options_.log->max_scored_rows, std::ssize(rows));
    }
    return {};
  }

 private:
  void WriteRow(const StepBatch& batch, int seq, int32_t position, float* logits) const {
    const uint64_t state = Fold(layer2_, last_group(), batch, seq, position);
    for (int64_t id = 0; id < options_.vocab_size; ++id) {
      // Sixteen bits of hash as a logit in [-4, 4): all distinct enough, none near-tied across runs.
      const uint64_t bits = Mix(state, static_cast<uint64_t>(id)) & 0xFFFFu;
      logits[id] = static_cast<float>(bits) / 8192.0f - 4.0f;
    }
  }

  template <class Fn>
  static void ForEachRow(const StepBatch& batch, Fn&& fn) {
    for (int seq = 0; seq < batch.num_seqs(); ++seq) {
      const int32_t context = batch.kv_len[static_cast<size_t>(seq)] - batch.q_begin.length(seq);
      for (int32_t row = batch.q_begin.begin(seq); row < batch.q_begin.end(seq); ++row) {
        fn(seq, row, context + row - batch.q_begin.begin(seq));
      }
    }
  }

  [[nodiscard]] int last_group() const { return static_cast<int>(options_.windows.size()) - 1; }

  [[nodiscard]] uint64_t Fold(const std::vector<uint64_t>& layer, int group, const StepBatch& batch, int seq,
                              int32_t position) const {
    const int32_t* table = batch.block_tables(group).row(seq);
    uint64_t state = 0x5EED;
    for (int32_t t = FirstSeen(options_.windows[static_cast<size_t>(group)], position); t <= position; ++t) {
      const int64_t slot =
          int64_t{table[t / options_.block_size]} * options_.block_size + t % options_.block_size;
      state = Mix(state, layer[static_cast<size_t>(slot)]);
    }
    return state;
  }

  [[nodiscard]] Status CheckBatch(const StepBatch& batch, View<float, 2> logits) const {
    const auto fail = [](std::string what) { return Fail(ErrorCode::kInternal, "bad batch: " + what); };
    const auto num_tokens = static_cast<size_t>(batch.num_tokens());
    const auto num_seqs = static_cast<size_t>(batch.num_seqs());
    if (num_seqs == 0) return fail("no sequences");
    if (batch.tokens.size() != num_tokens || batch.positions.size() != num_tokens ||
        batch.kv_len.size() != num_seqs) {
      return fail("array sizes disagree");
    }
    if (batch.num_groups() != last_group() + 1) return fail(fmt::format("{} KV groups", batch.num_groups()));
    for (const StepBlocks& blocks : batch.groups) {
      if (blocks.slots.size() != num_tokens ||
          blocks.block_ids.size() != num_seqs * static_cast<size_t>(batch.block_ids_per_seq)) {
        return fail("array sizes of a KV group disagree");
      }
    }
    if (logits.shape[0] != static_cast<int64_t>(batch.logit_rows.size()) ||
        logits.shape[1] != options_.vocab_size) {
      return fail(fmt::format("logits are {} x {}", logits.shape[0], logits.shape[1]));
    }
    std::map<int32_t, int> tables;  // block: sequences that read it
    for (int seq = 0; seq < batch.num_seqs(); ++seq) {
      const int32_t kv_len = batch.kv_len[static_cast<size_t>(seq)];
      const int32_t q_len = batch.q_begin.length(seq);
      if (q_len < 1 || q_len > kv_len) return fail(fmt::format("q_len {} of kv_len {}", q_len, kv_len));
      const int32_t used = (kv_len + options_.block_size - 1) / options_.block_size;
      for (int group = 0; group < batch.num_groups(); ++group) {
        const int32_t* table = batch.block_tables(group).row(seq);
        const KvWindow& window = options_.windows[static_cast<size_t>(group)];
        const int32_t seen = FirstSeen(window, kv_len - q_len) / options_.block_size;
        for (int32_t i = seen; i < batch.block_ids_per_seq; ++i) {
          if (i >= used) {
            if (table[i] != -1) return fail(fmt::format("unused table entry is {}", table[i]));
          } else if (table[i] < 1 || table[i] >= options_.num_blocks) {
            return fail(fmt::format("block {} is not in [1, {})", table[i], options_.num_blocks));
          } else {
            ++tables[table[i]];
          }
        }
      }
    }
    // Sequences may read the same block, but what one of them writes is its own, and its group's.
    for (int group = 0; group < batch.num_groups(); ++group) {
      for (const int64_t slot : batch.slots_of(group)) {
        const auto block = static_cast<int32_t>(slot / options_.block_size);
        if (tables[block] != 1)
          return fail(fmt::format("block {} is written and owned {} times", block, tables[block]));
      }
    }
    Status status;
    ForEachRow(batch, [&](int seq, int32_t row, int32_t position) {
      const auto at = static_cast<size_t>(row);
      if (batch.positions[at] != position) status = fail(fmt::format("position {}", batch.positions[at]));
      for (int group = 0; group < batch.num_groups(); ++group) {
        const int64_t block = batch.block_tables(group).row(seq)[position / options_.block_size];
        const int64_t slot = block * options_.block_size + position % options_.block_size;
        const int64_t given = batch.slots_of(group)[at];
        if (given != slot) status = fail(fmt::format("slot {} wants {}", given, slot));
      }
      if (batch.tokens[at] < 0 || batch.tokens[at] >= options_.vocab_size) status = fail("token id");
    });
    for (size_t i = 1; i < batch.logit_rows.size(); ++i) {
      if (batch.logit_rows[i] <= batch.logit_rows[i - 1]) return fail("logit_rows do not ascend");
    }
    return status;
  }

  const ToyOptions options_;
  std::vector<uint64_t> storage1_, storage2_;
  std::vector<uint64_t>&layer1_, &layer2_;
};

// A step that writes the K and V of other tokens and then fails.
inline Status FailHalfWay(ToyRunner& toy, const StepBatch& batch, View<float, 2> logits) {
  StepBatch wrong = batch;
  for (int32_t& token : wrong.tokens) token = (token + 1) % static_cast<int32_t>(kToyVocab);
  ATTEST_RETURN_IF_ERROR(toy.Run(wrong, logits));
  return Fail(ErrorCode::kInternal, "failed half way");
}

}  // namespace attest::testing
