// A loaded model: immutable weights plus the step's run state. One Model is driven by one thread (the
// engine's), which owns the team.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/error.h"
#include "base/thread_team.h"
#include "cache/kv_groups.h"
#include "kernels/matmul.h"
#include "model/config.h"
#include "model/step_batch.h"
#include "tensor/paged_kv.h"

namespace attest {

class Sentinel;    // attention/sentinel.h
class Checkpoint;  // io/checkpoint.h: the model's files, mapped

struct ModelOptions {
  CpuFeatures cpu;
  ComputeMode compute = ComputeMode::kFast;
  std::optional<DType>
      weight_dtype;  // f32, f16 or bf16 for matrices that are not quantised; unset keeps theirs
  DType kv_dtype = DType::kBF16;
  int block_size = 16;
  // Every row of a step is computed as if it were alone: its bits do not depend on its batch, on how its
  // sequence was cut into steps, or on the number of threads.
  bool deterministic = false;
  std::string forced_attention;  // kernel name, "" lets the contract choose
  // Called during load with bytes done and bytes in all; may be empty.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// What the model is, without loading it. Errors name the key or tensor; see config_json.h and config_gguf.h.
[[nodiscard]] Expected<ModelConfig> ReadModelConfig(const Checkpoint& checkpoint);
// Its layers by how long their keys live (cache/kv_groups.h).
[[nodiscard]] std::vector<KvGroup> KvGroupsOf(const ModelConfig& config);
// The attention that layers with this window ask for.
[[nodiscard]] AttentionSpec AttentionSpecOf(const ModelConfig& config, const ModelOptions& options,
                                            const KvWindow& window = std::nullopt);

// Where the time of Forward goes. Sums over layers and steps; the owner reads and clears it between steps.
enum class ForwardStage {
  kEmbed,
  kNorm,
  kQkv,
  kRope,
  kKvWrite,
  kAttention,
  kOutput,
  kGateUp,
  kActivation,
  kDown,
  kHead,
  kCount,
};
[[nodiscard]] const char* ForwardStageName(ForwardStage stage);
struct StageTimes {
  std::array<int64_t, static_cast<size_t>(ForwardStage::kCount)> ns{};
  int64_t steps = 0;
};

class Model {
 public:
  // Reads the config, checks name, type and shape of every tensor together, repacks weights and drops the
  // file's pages. Errors name the tensor or key. The attention routes of every phase are checked here: no
  // route, no model.
  static Expected<std::unique_ptr<Model>> Load(const Checkpoint& checkpoint, const ModelOptions& options,
                                               ThreadTeam& team);

  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual const std::vector<KvGroup>& kv_groups() const = 0;
  // Of the layers of one KV group.
  [[nodiscard]] virtual const AttentionSpec& attention_spec(int group) const = 0;
  [[nodiscard]] const AttentionSpec& attention_spec() const { return attention_spec(0); }
  [[nodiscard]] virtual const AttentionRouter& attention_router() const = 0;
  [[nodiscard]] virtual int64_t weight_bytes() const = 0;

  // Where Forward adds its times (two clock reads per stage); nullptr, as at first, measures nothing.
  virtual void set_stage_times(StageTimes* times) = 0;

  // Is shown the attention of every layer of Forward, after it was computed; nullptr, as at first: nobody
  // looks.
  virtual void set_sentinel(Sentinel* sentinel) = 0;

  // Makes the run state large enough for such steps, so that Forward allocates nothing. kResourceExhausted
  // when memory is refused; Forward with a larger step than reserved grows the state itself and stops the
  // process where that fails.
  [[nodiscard]] virtual Status Reserve(int64_t num_tokens, int64_t num_logit_rows, ThreadTeam& team) = 0;

  // Embeds batch.tokens, runs every layer (append K/V, then attend through the plan of its KV group), and
  // writes the logits of batch.logit_rows into logits [logit_rows, vocab_size]. `plans` has one per KV group,
  // `kv` one PagedKv per layer. REQUIRES: token ids in range; slots and tables valid for kv.
  virtual void Forward(const StepBatch& batch, std::span<const AttentionPlan* const> plans,
                       const std::vector<PagedKv>& kv, View<float, 2> logits, ThreadTeam& team) = 0;
  // The same of a model with one KV group.
  void Forward(const StepBatch& batch, const AttentionPlan& plan, const std::vector<PagedKv>& kv,
               View<float, 2> logits, ThreadTeam& team) {
    const AttentionPlan* const only = &plan;
    Forward(batch, std::span(&only, 1), kv, logits, team);
  }
  // Logits of further token rows of the last Forward, any rows in any order, into logits [rows, vocab_size].
  // REQUIRES: the rows are rows of that step.
  virtual void Logits(std::span<const int32_t> rows, View<float, 2> logits, ThreadTeam& team) = 0;
  // NaNs in K or V of the last Forward that the KV cache cannot hold (int8): unless this is 0, later steps
  // would read numbers where there are none, so the step must not be committed.
  [[nodiscard]] virtual int64_t lost_nans() const { return 0; }
};

}  // namespace attest
