#include "engine/logit_adjuster.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace attest {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

void BanBadWords(const std::vector<std::vector<int32_t>>& words, std::span<const int32_t> output,
                 std::span<float> logits) {
  for (const std::vector<int32_t>& word : words) {
    const std::span<const int32_t> head = std::span(word).first(word.size() - 1);
    if (output.size() < head.size() || !std::ranges::equal(output.last(head.size()), head)) continue;
    logits[static_cast<size_t>(word.back())] = kMinusInf;
  }
}

}  // namespace

void LogitAdjuster::Apply(const SamplingParams& params, std::span<const int32_t> tokens, int32_t prompt_len,
                          std::span<float> logits) {
  const auto prompt = static_cast<size_t>(prompt_len);
  if (!params.allowed_token_ids.empty()) KeepAllowed(params, logits);
  BanBadWords(params.bad_words, tokens.subspan(prompt), logits);
  for (const IdBias& bias : params.logit_bias) {
    float& logit = logits[static_cast<size_t>(bias.id)];
    logit = static_cast<float>(static_cast<double>(logit) + bias.bias);
  }
  Penalise(params, tokens, prompt, logits);
}

void LogitAdjuster::KeepAllowed(const SamplingParams& params, std::span<float> logits) {
  allowed_.clear();
  for (const int32_t id : params.allowed_token_ids) allowed_.push_back(logits[static_cast<size_t>(id)]);
  std::ranges::fill(logits, kMinusInf);
  for (size_t i = 0; i < allowed_.size(); ++i) {
    logits[static_cast<size_t>(params.allowed_token_ids[i])] = allowed_[i];
  }
}

// In double and rounded once, so that no compiler's fused multiply-add can change a draw.
void LogitAdjuster::Penalise(const SamplingParams& params, std::span<const int32_t> tokens, size_t prompt_len,
                             std::span<float> logits) {
  const double repetition = params.repetition_penalty;
  const double presence = params.presence_penalty, frequency = params.frequency_penalty;
  if (repetition == 1 && presence == 0 && frequency == 0) return;
  if (seen_.size() < logits.size()) seen_.resize(logits.size());
  for (size_t i = repetition == 1 ? prompt_len : 0; i < tokens.size(); ++i) {
    Seen& seen = seen_[static_cast<size_t>(tokens[i])];
    if (!std::exchange(seen.is_known, true)) seen_ids_.push_back(tokens[i]);
    if (i >= prompt_len) ++seen.times_generated;
  }
  for (const int32_t id : seen_ids_) {
    const Seen seen = std::exchange(seen_[static_cast<size_t>(id)], {});
    double x = logits[static_cast<size_t>(id)];
    x = x > 0 ? x / repetition : x * repetition;
    x -= frequency * seen.times_generated;
    if (seen.times_generated > 0) x -= presence;
    logits[static_cast<size_t>(id)] = static_cast<float>(x);
  }
  seen_ids_.clear();
}

}  // namespace attest
