#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/logprobs.h"

namespace attest {
namespace {

constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;
// Up to here the k best are kept in a heap during the one pass over the row; above, they are selected after
// it.
constexpr size_t kLargestHeap = 1024;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The largest noise a 32-bit uniform can give: -log(-log(1 - 2^-33)) = 22.874. An id whose scaled logit lies
// further below the best score than this cannot win.
constexpr double kMaxNoise = 22.875;

std::array<uint32_t, 2> KeyOf(int64_t seed) {
  const auto bits = static_cast<uint64_t>(seed);
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

double NoiseOfWord(uint32_t word) {
  const double u = (word + 0.5) * 0x1p-32;  // in (0, 1), exact
  return -std::log(-std::log(u));
}

// Words of ids [first_id, first_id + kChunk): one Philox call gives four, and the lanes are independent, so
// the compiler runs four to eight calls at once. first_id is a multiple of 4.
constexpr int kChunk = 256;
constexpr int kLanes = kChunk / 4;
void PhiloxChunk(std::array<uint32_t, 2> key, uint32_t position, uint32_t first_id,
                 uint32_t (&words)[kChunk]) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    c0[lane] = first_id / 4 + lane;
    c1[lane] = position;
    c2[lane] = c3[lane] = 0;
  }
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t p0 = uint64_t{kPhiloxM0} * c0[lane];
      const uint64_t p1 = uint64_t{kPhiloxM1} * c2[lane];
      c0[lane] = static_cast<uint32_t>(p1 >> 32) ^ c1[lane] ^ k0;
      c1[lane] = static_cast<uint32_t>(p1);
      c2[lane] = static_cast<uint32_t>(p0 >> 32) ^ c3[lane] ^ k1;
      c3[lane] = static_cast<uint32_t>(p0);
    }
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    words[4 * lane] = c0[lane];
    words[4 * lane + 1] = c1[lane];
    words[4 * lane + 2] = c2[lane];
    words[4 * lane + 3] = c3[lane];
  }
}

struct RowMax {
  float value = -kInf;
  bool has_nan = false;
};

RowMax MaxOf(std::span<const float> row) {
  constexpr size_t kWidth = 16;
  float best[kWidth];
  uint32_t nan[kWidth] = {};
  std::fill(best, best + kWidth, -kInf);
  size_t i = 0;
  for (; i + kWidth <= row.size(); i += kWidth) {
    for (size_t lane = 0; lane < kWidth; ++lane) {
      const float value = row[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
      nan[lane] |= value != value ? 1u : 0u;
    }
  }
  RowMax max;
  const auto take = [&max](float value) { max.value = value > max.value ? value : max.value; };
  for (size_t lane = 0; lane < kWidth; ++lane) {
    take(best[lane]);
    max.has_nan |= nan[lane] != 0;
  }
  for (; i < row.size(); ++i) {
    take(row[i]);
    max.has_nan |= std::isnan(row[i]);
  }
  return max;
}

int32_t FirstIndexOf(std::span<const float> row, float value) {
  return static_cast<int32_t>(std::find(row.begin(), row.end(), value) - row.begin());
}

// Scores ids and remembers the best; equal scores go to the lower id.
class GumbelRace {
 public:
  GumbelRace(const SampleJob& job)
      : key_(KeyOf(job.seed)),
        position_(static_cast<uint32_t>(job.position)),
        temperature_(job.params->temperature) {
    for (size_t k = 0; k < kLimits; ++k) {
      const double limit = std::ceil(std::exp(-static_cast<double>(k)) * 0x1p32) + 1;
      needed_word_[k] = limit >= 0x1p32 ? 0u : static_cast<uint32_t>(0x1p32 - limit);
    }
  }

  // Few ids, any order.
  void Run(std::span<const Sampler::Candidate> candidates) {
    for (const Sampler::Candidate& c : candidates) {
      if (c.logit / temperature_ + kMaxNoise < score_) continue;
      const auto id = static_cast<uint32_t>(c.id);
      Consider(c.id, c.logit, Philox4x32({id / 4, position_, 0, 0}, key_)[id % 4]);
    }
  }

  // A whole row. The exact score costs two logarithms; almost every id is ruled out by its random word first:
  // an id that is d below the best score wins only if -log(u) < e^-d, so never if 1 - u >= e^-d.
  void Run(std::span<const float> row, float max_logit) {
    const int32_t top = FirstIndexOf(row, max_logit);
    Run(std::array{Sampler::Candidate{max_logit, top}});  // a high score early rules out more
    const double per_logit = 1.0 / temperature_;
    uint32_t words[kChunk];
    for (size_t begin = 0; begin < row.size(); begin += kChunk) {
      const size_t size = std::min<size_t>(kChunk, row.size() - begin);
      const std::span<const float> part = row.subspan(begin, size);
      if (MaxOf(part).value / temperature_ + kMaxNoise < score_) continue;
      PhiloxChunk(key_, position_, static_cast<uint32_t>(begin), words);
      for (size_t i = 0; i < size; ++i) {
        const double below = score_ - part[i] * per_logit - 1e-6;  // rounding must not rule out a winner
        if (below >= static_cast<double>(kLimits)) continue;
        if (below >= 1.0 && words[i] < needed_word_[static_cast<size_t>(below)]) continue;
        Consider(static_cast<int32_t>(begin + i), part[i], words[i]);
      }
    }
  }

  [[nodiscard]] int32_t winner() const { return id_; }

 private:
  static constexpr size_t kLimits = 23;

  void Consider(int32_t id, float logit, uint32_t word) {
    const double score = logit / temperature_ + NoiseOfWord(word);
    if (score > score_ || (score == score_ && id < id_)) {
      score_ = score;
      id_ = id;
    }
  }

  const std::array<uint32_t, 2> key_;
  const uint32_t position_;
  const double temperature_;
  std::array<uint32_t, kLimits> needed_word_;  // by whole units below the best score
  double score_ = -std::numeric_limits<double>::infinity();
  int32_t id_ = -1;
};

bool Descending(const Sampler::Candidate& a, const Sampler::Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxM0} * counter[0];
    const uint64_t p1 = uint64_t{kPhiloxM1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kPhiloxW0;
    key[1] += kPhiloxW1;
  }
  return counter;
}

double GumbelNoise(int64_t seed, int32_t position, int32_t id) {
  const auto index = static_cast<uint32_t>(id);
  return NoiseOfWord(Philox4x32({index / 4, static_cast<uint32_t>(position), 0, 0}, KeyOf(seed))[index % 4]);
}

// Fills kept_, in any order.
void Sampler::Keep(std::span<const float> logits, float max_logit, const SamplingParams& params) {
  const double temperature = params.temperature;
  const double max_scaled = max_logit / temperature;
  const bool has_min_p = params.min_p > 0;
  const double lowest = has_min_p ? std::log(static_cast<double>(params.min_p)) : 0;
  // Rules most ids out by one comparison; the slack covers the rounding of the exact test, which divides.
  double cut = std::numeric_limits<float>::lowest();
  if (has_min_p) cut = std::max(cut, max_logit + temperature * lowest - 1e-3 * (1 + std::abs(max_logit)));
  const auto k = static_cast<size_t>(params.top_k);
  const bool heap = k > 0 && k <= kLargestHeap;
  kept_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (!(logit >= cut)) continue;
    if (has_min_p && logit / temperature - max_scaled < lowest) continue;
    if (heap && kept_.size() == k) {
      if (logit <= kept_.front().logit) continue;  // among equal ones the lower id, seen first, stays
      std::pop_heap(kept_.begin(), kept_.end(), Descending);
      kept_.pop_back();
    }
    kept_.push_back({logit, static_cast<int32_t>(id)});
    if (heap) std::push_heap(kept_.begin(), kept_.end(), Descending);
  }
  if (!heap && k > 0 && k < kept_.size()) {
    std::nth_element(kept_.begin(), kept_.begin() + params.top_k, kept_.end(), Descending);
    kept_.resize(k);
  }
  if (params.top_p < 1.0f) KeepTopP(temperature, params.top_p, max_logit);
  if (params.typical_p < 1.0f) KeepTypical(temperature, params.typical_p, max_logit);
}

// The ids whose surprise is nearest to the expected one (Meister et al., 2022), until their mass reaches
// typical_p of what is kept.
void Sampler::KeepTypical(double temperature, double typical_p, float max_logit) {
  std::sort(kept_.begin(), kept_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const double max_scaled = max_logit / temperature;
  typical_.clear();
  double total = 0;
  for (const Candidate& c : kept_) {
    const double below = c.logit / temperature - max_scaled;
    typical_.push_back({.candidate = c, .mass = std::exp(below), .distance = below});
    total += typical_.back().mass;
  }
  const double log_total = std::log(total);
  double entropy = 0;
  for (const Typical& t : typical_) entropy += t.mass / total * (log_total - t.distance);
  for (Typical& t : typical_) t.distance = std::abs(log_total - t.distance - entropy);
  std::sort(typical_.begin(), typical_.end(), [](const Typical& a, const Typical& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.candidate.id < b.candidate.id);
  });
  const double wanted = typical_p * total;
  kept_.clear();
  double reached = 0;
  for (const Typical& t : typical_) {
    if (reached >= wanted) break;
    kept_.push_back(t.candidate);
    reached += t.mass;
  }
}

// The shortest run of the descending order whose mass reaches top_p of the whole. A histogram of mass over
// the distance from the best says how far down the order must be made: the head is usually a few dozen of
// 50,000 ids, and sorting all of them would cost more than the rest of the sampler.
void Sampler::KeepTopP(double temperature, double top_p, float max_logit) {
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(kept_.begin(), kept_.end(), by_id)) std::sort(kept_.begin(), kept_.end(), by_id);
  constexpr size_t kBuckets = 1024;  // of 1/16: 64 units down, e^-64 is no mass
  std::array<double, kBuckets> histogram{};
  const double max_scaled = max_logit / temperature;
  const auto buckets_per_logit = static_cast<float>(16 / temperature);  // any monotone rule will do
  const auto bucket_of = [&](const Candidate& c) {
    const float distance = (max_logit - c.logit) * buckets_per_logit;
    return distance < kBuckets - 1 ? static_cast<size_t>(static_cast<int32_t>(distance)) : kBuckets - 1;
  };
  const auto mass_of = [&](const Candidate& c) { return std::exp(c.logit / temperature - max_scaled); };
  double total = 0;
  for (const Candidate& c : kept_) {
    const double mass = mass_of(c);
    total += mass;
    histogram[bucket_of(c)] += mass;
  }
  const double wanted = top_p * total;
  size_t last = 0;  // the bucket in which the mass is reached for sure; sums in another order differ by 1e-11
  for (double reached = histogram[0]; reached < wanted * (1 + 1e-9) && last + 1 < kBuckets;) {
    reached += histogram[++last];
  }
  std::erase_if(kept_, [&](const Candidate& c) { return bucket_of(c) > last; });
  std::sort(kept_.begin(), kept_.end(), Descending);
  size_t count = 0;
  for (double reached = 0; count < kept_.size() && reached < wanted; ++count)
    reached += mass_of(kept_[count]);
  kept_.resize(count);
}

std::vector<int32_t> Sampler::KeptIds(std::span<const float> logits, const SamplingParams& params) {
  Keep(logits, MaxOf(logits).value, params);
  std::vector<int32_t> ids;
  for (const Candidate& c : kept_) ids.push_back(c.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

Expected<float> LargestLogit(std::span<const float> logits, int32_t position) {
  const RowMax max = MaxOf(logits);
  if (!max.has_nan && std::isfinite(max.value)) return max.value;
  const auto bad = std::find_if(logits.begin(), logits.end(),
                                [](float value) { return std::isnan(value) || value == kInf; });
  return Fail(ErrorCode::kInternal,
              bad == logits.end() ? fmt::format("no logit of the token at position {} is finite", position)
                                  : fmt::format("the logit of id {} for the token at position {} is {}",
                                                bad - logits.begin(), position, *bad));
}

Expected<int32_t> Sampler::Sample(const SampleJob& job) {
  if (job.logprobs == nullptr) return Choose(job);
  raw_.assign(job.logits.begin(), job.logits.end());
  const Expected<int32_t> token = Choose(job);
  if (!token) return token;
  ATTEST_ASSIGN_OR_RETURN(*job.logprobs,
                          ScoreToken(raw_, *token, job.position, job.params->logprobs.value_or(0)));
  return token;
}

Expected<int32_t> Sampler::Choose(const SampleJob& job) {
  const SamplingParams& params = *job.params;
  const bool is_adjusted = LogitAdjuster::IsNeeded(params);
  const bool is_masked = is_adjusted || std::ranges::any_of(job.banned, [](std::span<const int32_t> ids) {
                           return !ids.empty();
                         });
  // A NaN at an id that a mask takes away must not pass unseen.
  if (is_masked) ATTEST_RETURN_IF_ERROR(LargestLogit(job.logits, job.position));
  if (is_adjusted) adjuster_.Apply(params, job.tokens, job.prompt_len, job.logits);
  for (const std::span<const int32_t> ids : job.banned) {
    for (const int32_t id : ids) job.logits[static_cast<size_t>(id)] = -kInf;
  }
  if (is_masked && MaxOf(job.logits).value == -kInf) {  // the row was fine before: the request's own doing
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("allowed_token_ids, bad_words, logit_bias and min_tokens together leave no token to "
                    "draw at position {}",
                    job.position),
        "allowed_token_ids");
  }
  ATTEST_ASSIGN_OR_RETURN(const float max, LargestLogit(job.logits, job.position));
  if (params.temperature < kGreedyTemperature) return FirstIndexOf(job.logits, max);

  GumbelRace race(job);
  if (params.min_p > 0 || params.top_p < 1.0f || params.top_k > 0 || params.typical_p < 1.0f) {
    Keep(job.logits, max, params);
    race.Run(kept_);
  } else {
    race.Run(job.logits, max);
  }
  return race.winner();
}

void SampleAll(std::span<const SampleJob> jobs, std::span<Sampler> samplers, ThreadTeam* team,
               std::span<Expected<int32_t>> results) {
  if (team == nullptr || jobs.size() < 2) {
    for (size_t i = 0; i < jobs.size(); ++i) results[i] = samplers[0].Sample(jobs[i]);
    return;
  }
  ATTEST_CHECK_GE(samplers.size(), static_cast<size_t>(team->size()));
  team->Run([&](int rank) {
    const IndexRange range = PartitionRange(static_cast<int64_t>(jobs.size()), rank, team->size());
    for (int64_t i = range.begin; i < range.end; ++i) {
      const auto at = static_cast<size_t>(i);
      results[at] = samplers[static_cast<size_t>(rank)].Sample(jobs[at]);
    }
  });
}

}  // namespace attest
