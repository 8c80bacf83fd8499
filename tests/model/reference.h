// Recorded logprobs of another engine (tools/record_reference.py) and how ours are compared with them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/model_driver.h"

namespace attest {

// Entry t speaks of the token after position t.
struct ReferencePrompt {
  std::string name;
  std::vector<int32_t> tokens;
  std::vector<double> next;                   // [positions] logprob of the token that follows
  std::vector<std::vector<int32_t>> top_ids;  // [positions][5], best first
  std::vector<std::vector<double>> top;       // [positions][5] their logprobs

  [[nodiscard]] size_t positions() const { return next.size(); }
  // How far ahead the best token is: below twice the tolerance two engines may disagree on it.
  [[nodiscard]] double gap(size_t t) const { return top[t][0] - top[t][1]; }

  static ReferencePrompt FromJson(const nlohmann::json& json) {
    ReferencePrompt prompt;
    prompt.name = json.value("name", "");
    if (json.contains("tokens")) json.at("tokens").get_to(prompt.tokens);
    if (json.contains("top_ids")) json.at("top_ids").get_to(prompt.top_ids);
    json.at("next").get_to(prompt.next);
    json.at("top").get_to(prompt.top);
    return prompt;
  }
};

inline nlohmann::json ReadJsonFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

inline std::vector<ReferencePrompt> ReadReferencePrompts(const std::filesystem::path& path) {
  std::vector<ReferencePrompt> prompts;
  const nlohmann::json json = ReadJsonFile(path);
  for (const auto& prompt : json.at("prompts")) prompts.push_back(ReferencePrompt::FromJson(prompt));
  return prompts;
}

// Differences of one run from the reference, over every recorded value: six of each position.
struct Comparison {
  double max_difference = 0;
  double sum_difference = 0;
  int64_t values = 0;
  int64_t positions = 0;
  int64_t greedy_differs = 0;
  double largest_gap_where_greedy_differs = 0;
  int64_t outside_top5 = 0;  // positions where a side's best token is not in the other side's five best
  std::string worst;         // where max_difference was

  [[nodiscard]] double mean() const { return sum_difference / static_cast<double>(values); }

  void Add(const ReferencePrompt& prompt, size_t t, const float* logits, int64_t vocab) {
    const LogProbs ours(logits, vocab);
    AddValue(prompt, t, ours.of(prompt.tokens[t + 1]) - prompt.next[t]);
    for (size_t i = 0; i < prompt.top[t].size(); ++i) {
      AddValue(prompt, t, ours.of(prompt.top_ids[t][i]) - prompt.top[t][i]);
    }
    ++positions;
    const auto& theirs = prompt.top_ids[t];
    if (ours.argmax() == theirs.front()) return;
    ++greedy_differs;
    largest_gap_where_greedy_differs = std::max(largest_gap_where_greedy_differs, prompt.gap(t));
    const auto ours_top = ours.top(5);
    const bool each_in_other = std::ranges::find(theirs, ours.argmax()) != theirs.end() &&
                               std::ranges::find(ours_top, theirs.front()) != ours_top.end();
    if (!each_in_other) ++outside_top5;
  }

 private:
  void AddValue(const ReferencePrompt& prompt, size_t t, double difference) {
    ++values;
    sum_difference += std::abs(difference);
    // A NaN must not slip through a comparison that is false.
    if (!(std::abs(difference) <= max_difference)) {
      max_difference = std::isnan(difference) ? INFINITY : std::abs(difference);
      worst = prompt.name + " position " + std::to_string(t);
    }
  }
};

// Runs the prompt through the model in pieces of `chunk` tokens and adds every recorded position.
inline void ComparePrompt(Model& model, ThreadTeam& team, const ReferencePrompt& prompt, size_t chunk,
                          Comparison& comparison) {
  ModelDriver driver(model, team, 1, static_cast<int>(prompt.tokens.size()));
  const std::span<const int32_t> tokens(prompt.tokens);
  for (size_t begin = 0; begin < prompt.positions(); begin += chunk) {
    const size_t end = std::min(begin + chunk, prompt.positions());
    const auto logits = driver.Step(0, tokens.subspan(begin, end - begin));
    if (logits.data == nullptr) return;
    for (size_t t = begin; t < end; ++t) {
      comparison.Add(prompt, t, logits.At(t - begin), model.config().vocab_size);
    }
  }
}

}  // namespace attest
