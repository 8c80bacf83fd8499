#include "server/logit_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/request_limits.h"

namespace attest {
namespace {

using nlohmann::json;

constexpr double kMaxPenalty = 2.0;  // presence and frequency, as OpenAI has it
// A penalty near 0 would multiply a logit out of the range of floats.
constexpr double kMinRepetitionPenalty = 0.01, kMaxRepetitionPenalty = 100.0;

Status ReadPenalties(const JsonFields& fields, SamplingParams& sampling) {
  for (const auto& [name, out] : {std::pair("presence_penalty", &sampling.presence_penalty),
                                  std::pair("frequency_penalty", &sampling.frequency_penalty)}) {
    ATTEST_ASSIGN_OR_RETURN(const auto value, fields.Number(name, -kMaxPenalty, kMaxPenalty));
    if (value) *out = static_cast<float>(*value);
  }
  ATTEST_ASSIGN_OR_RETURN(const auto repetition,
                          fields.Number("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty));
  if (repetition) sampling.repetition_penalty = static_cast<float>(*repetition);
  return {};
}

// {"50256": -100}: ids are strings, as JSON wants keys to be.
Status ReadBias(const JsonFields& fields, const CallLimits& limits, SamplingParams& sampling) {
  const json* value = fields.Find("logit_bias");
  if (value == nullptr) return {};
  if (!value->is_object()) return WrongType("logit_bias", "an object from token ids to numbers", *value);
  for (const auto& [key, bias] : value->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    // "05" would be a second name of 5.
    if (error != std::errc() || std::to_string(id) != key || id < 0 || id >= limits.vocab_size) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("logit_bias must have token ids as keys, integers in [0, {}), not {}",
                              limits.vocab_size, DescribeJson(key)),
                  "logit_bias");
    }
    if (!bias.is_number() || !(bias.get<double>() >= -kMaxBias && bias.get<double>() <= kMaxBias)) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("logit_bias of {} must be a number in [{}, {}], not {}", key, -kMaxBias,
                              kMaxBias, DescribeJson(bias)),
                  "logit_bias");
    }
    sampling.logit_bias.push_back({.id = id, .bias = bias.get<float>()});
  }
  return {};
}

Status ReadAllowed(const JsonFields& fields, const CallLimits& limits, SamplingParams& sampling) {
  if (fields.Find("allowed_token_ids") == nullptr) return {};
  ATTEST_ASSIGN_OR_RETURN(sampling.allowed_token_ids, fields.Ids("allowed_token_ids", limits.vocab_size,
                                                                 static_cast<size_t>(limits.vocab_size)));
  if (sampling.allowed_token_ids.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "allowed_token_ids must not be empty: no token could be drawn",
                "allowed_token_ids");
  }
  return {};
}

Status ReadBadWords(const JsonFields& fields, const CallLimits& limits, SamplingParams& sampling) {
  const json* value = fields.Find("bad_words");
  if (value == nullptr) return {};
  if (!value->is_array()) return WrongType("bad_words", "a list of strings", *value);
  if (value->size() > kMaxBadWords) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("bad_words may hold at most {} words, not {}", kMaxBadWords, value->size()),
                "bad_words");
  }
  for (const json& item : *value) {
    if (!item.is_string()) return WrongType("bad_words", "a list of strings", item);
    std::string word = item.get<std::string>();
    word.erase(0, std::min(word.find_first_not_of(' '), word.size()));
    if (word.empty() || word.size() > kMaxBadWordBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("a bad word must have 1 to {} bytes after its blanks, not {}", kMaxBadWordBytes,
                              word.size()),
                  "bad_words");
    }
    // In the middle of a text a word is usually one token with its blank.
    std::vector<int32_t> ids = limits.tokenizer.Encode(word, {.add_special_tokens = false});
    std::vector<int32_t> after_blank = limits.tokenizer.Encode(" " + word, {.add_special_tokens = false});
    const bool is_other = !ids.empty() && after_blank.size() == ids.size() && after_blank[0] != ids[0];
    for (std::vector<int32_t>* run : {&ids, &after_blank}) {
      if (run->empty() || (run == &after_blank && !is_other)) continue;
      for (const int32_t id : *run) {
        if (id >= limits.vocab_size) {
          return Fail(ErrorCode::kInvalidArgument,
                      fmt::format("bad_words: {} has token id {}, the model's end at {}", DescribeJson(item),
                                  id, limits.vocab_size),
                      "bad_words");
        }
      }
      sampling.bad_words.push_back(std::move(*run));
    }
  }
  return {};
}

}  // namespace

Status ReadLogitFields(const JsonFields& fields, const CallLimits& limits, SamplingParams& sampling) {
  ATTEST_RETURN_IF_ERROR(ReadPenalties(fields, sampling));
  ATTEST_RETURN_IF_ERROR(ReadBias(fields, limits, sampling));
  ATTEST_RETURN_IF_ERROR(ReadAllowed(fields, limits, sampling));
  return ReadBadWords(fields, limits, sampling);
}

}  // namespace attest
