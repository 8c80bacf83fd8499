#include "engine/prompt_scorer.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace attest {
namespace {

// Calls fn(i) for i in [0, count), on the team's threads when there is one.
template <class Fn>
void ForEachIndex(ThreadTeam* team, int64_t count, Fn&& fn) {
  if (team == nullptr) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  team->Run([&](int rank) {
    const IndexRange range = PartitionRange(count, rank, team->size());
    for (int64_t i = range.begin; i < range.end; ++i) fn(i);
  });
}

}  // namespace

void PoisonLogits(View<float, 2> logits) {
  for (int64_t row = 0; row < logits.shape[0]; ++row) {
    *logits.At(row, 0) = *logits.At(row, logits.shape[1] - 1) = std::numeric_limits<float>::quiet_NaN();
  }
}

Status PromptScorer::Score(const StepPlan& plan, const StepBatch& batch, StepRunner& runner,
                           View<float, 2> tile, Scheduler& scheduler) {
  FindPromptRows(plan, batch, rows_);
  const auto most = static_cast<size_t>(tile.shape[0]);
  std::vector<int32_t> rows;
  std::vector<Expected<TokenLogprobs>> scores;
  for (size_t begin = 0; begin < rows_.size(); begin += most) {
    const std::span part = std::span(rows_).subspan(begin, std::min(most, rows_.size() - begin));
    rows.clear();
    for (const PromptRow& row : part) rows.push_back(row.row);
    View<float, 2> logits = tile;
    logits.shape[0] = std::ssize(rows);
    PoisonLogits(logits);
    ATTEST_RETURN_IF_ERROR(runner.Logits(batch, rows, logits));
    scores.assign(part.size(), TokenLogprobs{});
    const auto score = [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      const Sequence& seq = *part[at].seq;
      scores[at] = ScoreToken({logits.At(i), static_cast<size_t>(logits.shape[1])},
                              seq.tokens[static_cast<size_t>(part[at].position)], part[at].position,
                              *seq.request.sampling.prompt_logprobs);
    };
    ForEachIndex(runner.team(), std::ssize(part), score);
    for (size_t i = 0; i < part.size(); ++i) {
      Sequence& seq = *part[i].seq;
      if (seq.finish) continue;
      if (!scores[i]) {
        seq.error = scores[i].error();
        scheduler.Finish(seq, FinishReason::kError);
        continue;
      }
      seq.prompt_logprobs.push_back(std::move(*scores[i]));
      ++seq.num_scored;
    }
  }
  return {};
}

}  // namespace attest
