#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/sampler.h"

namespace attest {
namespace {

// Best first; among equal ones the lower id.
void KeepBest(std::span<const float> logits, size_t count, std::vector<IdLogprob>& best) {
  best.reserve(count);
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (best.size() == count) {
      if (logit <= best.back().logprob) continue;
      best.pop_back();
    }
    const auto worse =
        std::ranges::find_if(best, [&](const IdLogprob& other) { return other.logprob < logit; });
    best.insert(worse, {.id = static_cast<int32_t>(id), .logprob = logit});
  }
}

}  // namespace

Expected<TokenLogprobs> ScoreToken(std::span<const float> logits, int32_t token, int32_t position,
                                   int32_t num_top) {
  ATTEST_ASSIGN_OR_RETURN(const float max, LargestLogit(logits, position));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  const double log_sum = std::log(sum);
  // Everywhere the same rounding, so that equal logits have equal logprobs.
  const auto logprob_of = [max, log_sum](float logit) {
    return static_cast<float>(static_cast<double>(logit) - max - log_sum);
  };

  const float own = logits[static_cast<size_t>(token)];
  TokenLogprobs scores{.token = token, .logprob = logprob_of(own)};
  scores.rank = 1 + static_cast<int32_t>(std::ranges::count_if(logits, [own](float x) { return x > own; }));
  if (num_top > 0) {
    KeepBest(logits, std::min(static_cast<size_t>(num_top), logits.size()), scores.top);
    for (IdLogprob& entry : scores.top) entry.logprob = logprob_of(entry.logprob);
  }
  return scores;
}

void FindPromptRows(const StepPlan& plan, const StepBatch& batch, std::vector<PromptRow>& rows) {
  rows.clear();
  for (size_t s = 0; s < plan.seqs.size(); ++s) {
    const ScheduledSeq& share = plan.seqs[s];
    Sequence& seq = *share.seq;
    if (!seq.request.sampling.prompt_logprobs || seq.num_scored >= seq.prompt_len) continue;
    // A token that no row before it scored would be missing: the row at num_scored - 1 must be in this share
    // or a later one.
    ATTEST_CHECK_LE(share.begin, seq.num_scored - 1);
    const int32_t end = std::min(share.begin + share.count + 1, seq.prompt_len);
    const int32_t first_row = batch.q_begin.begin(static_cast<int>(s));
    for (int32_t position = seq.num_scored; position < end; ++position) {
      rows.push_back({.seq = &seq, .row = first_row + position - 1 - share.begin, .position = position});
    }
  }
}

}  // namespace attest
