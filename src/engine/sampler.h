// From a row of logits to a token id. docs/sampling.md states the algorithm exactly, with test vectors:
// anyone who has the logits, the seed and the position can recompute every draw.
//
// Raw logits -> allowed ids -> bad words -> banned ids -> bias -> penalties -> temperature -> min_p -> top_k
// -> top_p -> typical_p -> draw. The draw is Gumbel-max: the kept id with the largest logit / temperature +
// g(seed, position, id), where g comes from a counter-based generator and so depends on nothing else: not on
// the batch, the step, the chunking or the thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_team.h"
#include "engine/logit_adjuster.h"
#include "engine/request.h"

namespace attest {

inline constexpr float kGreedyTemperature = 1e-5f;  // below: greedy

// Philox4x32-10 (Salmon et al., SC 2011), the generator of Random123 and cuRAND.
[[nodiscard]] std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                                 std::array<uint32_t, 2> key);

// The standard Gumbel noise of vocabulary id `id` for the token at `position` (from 0, prompt included).
[[nodiscard]] double GumbelNoise(int64_t seed, int32_t position, int32_t id);

// One token to choose.
struct SampleJob {
  std::span<float> logits;  // [vocab_size]; banned ids are overwritten with -inf
  const SamplingParams* params = nullptr;
  int64_t seed = 0;
  int32_t position = 0;                            // of the token to choose, in its sequence
  std::array<std::span<const int32_t>, 2> banned;  // ids that must not be chosen, in range
  std::span<const int32_t> tokens = {};            // the sequence so far, for penalties and bad words
  int32_t prompt_len = 0;                          // of `tokens`
  TokenLogprobs* logprobs = nullptr;               // filled for the chosen token when not null
};

// The largest of a row. kInternal when the row has a NaN, +inf, or nothing finite. `position`: of the token
// it is for.
[[nodiscard]] Expected<float> LargestLogit(std::span<const float> logits, int32_t position);

// Owns scratch memory only. One thread at a time.
class Sampler {
 public:
  // kInternal when the row has a NaN, +inf, or nothing finite: a kernel did not do its work, and a token made
  // from it would hide that.
  [[nodiscard]] Expected<int32_t> Sample(const SampleJob& job);

  struct Candidate {
    float logit;
    int32_t id;
  };
  // The ids the draw chooses from, in ascending order. REQUIRES: temperature >= kGreedyTemperature; at least
  // one finite logit, no NaN.
  [[nodiscard]] std::vector<int32_t> KeptIds(std::span<const float> logits, const SamplingParams& params);

 private:
  Expected<int32_t> Choose(const SampleJob& job);
  void Keep(std::span<const float> logits, float max_logit, const SamplingParams& params);
  void KeepTopP(double temperature, double top_p, float max_logit);
  void KeepTypical(double temperature, double typical_p, float max_logit);

  struct Typical {
    Candidate candidate;
    double mass;      // e^(x - max(x))
    double distance;  // x - max(x), then how far the surprise is from the expected one
  };
  LogitAdjuster adjuster_;
  std::vector<Candidate> kept_;
  std::vector<Typical> typical_;
  std::vector<float> raw_;  // the row before it is changed, where logprobs are wanted
};

// Samples jobs[i] into results[i]; on the team's threads when there is one (`samplers` has one per rank).
void SampleAll(std::span<const SampleJob> jobs, std::span<Sampler> samplers, ThreadTeam* team,
               std::span<Expected<int32_t>> results);

}  // namespace attest
