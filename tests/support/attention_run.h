// Runs a batch through a kernel forced by name, through the oracle, and through a plain implementation of the
// kernel's arithmetic; derives the tolerance from the last two.
//
// The rule: in every row, the largest error against the double oracle is at most twice the largest error that
// the plain implementation makes in the same batch. A row is judged alone, so that one garbage row among
// thousands fails.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/plan.h"
#include "base/thread_team.h"
#include "tests/support/attention_batch.h"

namespace attest::testing {

inline const CpuFeatures& ThisCpu() {
  static const CpuFeatures cpu = DetectCpu();
  return cpu;
}

// Kernels of this build that this CPU can run.
inline std::vector<const KernelEntry*> RunnableKernels() {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry* entry : KernelList()) {
    if (HasIsa(ThisCpu(), entry->contract.isa)) kernels.push_back(entry);
  }
  return kernels;
}

// The kernel for every phase whose contract accepts the spec, the general one for the others. Empty when the
// kernel accepts no phase.
inline std::string ForcedWherePossible(const KernelEntry& entry, const AttentionSpec& spec) {
  std::string forced;
  bool any = false;
  for (const AttentionPhase phase : kAttentionPhases) {
    const AttentionProblem problem{.spec = spec, .phase = phase};
    const bool accepts = Check(entry.contract, problem, ThisCpu()).empty();
    any = any || accepts;
    forced += forced.empty() ? "" : ",";
    forced += std::string(AttentionPhaseName(phase)) + "=" +
              (accepts ? std::string(entry.contract.name) : "attention_general");
  }
  return any ? forced : "";
}

struct AttentionResult {
  std::vector<double> out;  // [num_tokens, q_heads, v_head_dim]
  std::vector<double> lse;  // [q_heads, num_tokens]; empty when not wanted
  std::vector<PlannedRoute> routes;
  bool operator==(const AttentionResult& other) const { return out == other.out && lse == other.lse; }
};

struct RunOptions {
  int num_threads = 2;
  float fill = kNaN;
  std::optional<std::vector<int32_t>> owned = {};
};

inline ThreadTeam& Team(int num_threads) {
  static std::map<int, std::unique_ptr<ThreadTeam>> teams;
  auto& team = teams[num_threads];
  // Tests share a small machine: do not pin, and go to sleep at once.
  if (!team)
    team = std::make_unique<ThreadTeam>(
        ThreadTeamOptions{.num_threads = num_threads, .pin = false, .spin_us = 20});
  return *team;
}

// Plans with `forced` and runs once into an output filled with options.fill. Fails the test when guards or
// padding were written, or when rows of sequences that are not owned changed.
inline Expected<AttentionResult> RunAttention(AttentionBatch& batch, const std::string& forced,
                                              const RunOptions& options = {}) {
  ATTEST_ASSIGN_OR_RETURN(const AttentionRouter router, AttentionRouter::Create(ThisCpu(), forced));
  AttentionLengths lengths = batch.lengths();
  if (options.owned) lengths.owned = OwnedSeqs{*options.owned};
  ATTEST_ASSIGN_OR_RETURN(const AttentionPlanPtr plan,
                          PlanAttention(router, batch.spec(), lengths, options.num_threads));
  const AttentionBatch::Output output = batch.MakeOutput(options.fill);
  const AttentionParams params = batch.Tensors(output);
  ATTEST_RETURN_IF_ERROR(ValidateParams(*plan, params));
  AttendParams(*plan, params, Team(options.num_threads), /*poison_outputs=*/false);

  EXPECT_TRUE(output.out.GuardsIntact() && output.lse.GuardsIntact())
      << forced << ": wrote outside its outputs";
  EXPECT_TRUE(batch.PaddingUntouched(output, options.fill)) << forced << ": wrote between the rows of out";
  AttentionResult result{.out = {}, .lse = {}, .routes = PlannedRoutes(*plan)};
  const AttentionSpec& spec = batch.spec();
  for (int32_t token = 0; token < batch.num_tokens(); ++token) {
    for (int head = 0; head < spec.q_heads; ++head) {
      for (int d = 0; d < spec.v_head_dim; ++d)
        result.out.push_back(batch.OutElement(output, token, head, d));
    }
  }
  if (spec.wants_lse) {
    for (int64_t i = 0; i < int64_t{spec.q_heads} * batch.num_tokens(); ++i) {
      result.lse.push_back(output.lse.as<float>()[i]);
    }
  }
  return result;
}

// Every row by the oracle, in double.
inline AttentionResult RunOracle(AttentionBatch& batch) {
  const AttentionSpec& spec = batch.spec();
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  const AttentionParams params = batch.Params(output);
  AttentionResult result;
  result.lse.resize(
      spec.wants_lse ? static_cast<size_t>(spec.q_heads) * static_cast<size_t>(batch.num_tokens()) : 0);
  std::vector<double> row(static_cast<size_t>(spec.v_head_dim));
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    for (int32_t i = 0; i < batch.q_begin().length(seq); ++i) {
      for (int head = 0; head < spec.q_heads; ++head) {
        const double lse = ReferenceAttentionRow(params, seq, i, head, row);
        result.out.insert(result.out.end(), row.begin(), row.end());
        if (spec.wants_lse) {
          result.lse[static_cast<size_t>(head) * static_cast<size_t>(batch.num_tokens()) +
                     static_cast<size_t>(batch.q_begin().begin(seq) + i)] = lse;
        }
      }
    }
  }
  return result;
}

// The plain implementation: one row at a time, sums in key and dim order, float32 (or queries and weights in
// bf16). Its error against the oracle is what the arithmetic costs when nothing is wrong.
inline AttentionResult RunPlain(AttentionBatch& batch, AttentionArithmetic arithmetic) {
  const AttentionSpec& spec = batch.spec();
  const AttentionBatch::Output output = batch.MakeOutput(kNaN);
  const AttentionParams params = batch.Params(output);
  const auto round = [arithmetic](float x) {
    return arithmetic == AttentionArithmetic::kBf16 ? ToFloat(ToBf16(x)) : x;
  };
  AttentionResult result;
  result.lse.resize(
      spec.wants_lse ? static_cast<size_t>(spec.q_heads) * static_cast<size_t>(batch.num_tokens()) : 0);
  std::vector<float> query(static_cast<size_t>(spec.head_dim));
  for (int seq = 0; seq < batch.num_seqs(); ++seq) {
    const int32_t q_len = batch.q_begin().length(seq), kv_len = batch.kv_len()[static_cast<size_t>(seq)];
    std::vector<std::vector<float>> k(static_cast<size_t>(spec.kv_heads)),
        v(static_cast<size_t>(spec.kv_heads));
    for (int kv_head = 0; kv_head < spec.kv_heads; ++kv_head) {
      k[static_cast<size_t>(kv_head)] = batch.Decoded(false, seq, kv_head);
      v[static_cast<size_t>(kv_head)] = batch.Decoded(true, seq, kv_head);
    }
    for (int32_t i = 0; i < q_len; ++i) {
      const int64_t token = batch.q_begin().begin(seq) + i;
      const int64_t p = i + int64_t{kv_len} - q_len;
      for (int head = 0; head < spec.q_heads; ++head) {
        const int kv_head = head / (spec.q_heads / spec.kv_heads);
        const float* keys_of_head = k[static_cast<size_t>(kv_head)].data();
        const float* values_of_head = v[static_cast<size_t>(kv_head)].data();
        for (int d = 0; d < spec.head_dim; ++d) {
          query[static_cast<size_t>(d)] =
              round(static_cast<float>(ReferenceElement(params.QRow(token, head), spec.q_dtype, d)));
        }
        std::vector<float> scores;
        std::vector<int> keys;
        float max = spec.has_sinks ? batch.sinks()[head] : -kInfinity;
        for (int j = 0; j < kv_len; ++j) {
          const bool hidden = (spec.causal && j > p) || (spec.window_right && j > p + *spec.window_right) ||
                              (spec.window_left && j < p - *spec.window_left && j >= spec.sink_tokens) ||
                              (spec.chunk && (p < 0 || j / *spec.chunk != p / *spec.chunk));
          if (hidden) continue;
          float dot = 0;
          for (int d = 0; d < spec.head_dim; ++d) {
            dot += query[static_cast<size_t>(d)] * keys_of_head[int64_t{j} * spec.head_dim + d];
          }
          float score = dot * (spec.scale * params.k_descale.at(seq, kv_head));
          if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
          if (spec.has_alibi) score -= batch.alibi_slopes()[head] * std::abs(static_cast<float>(p - j));
          scores.push_back(score);
          keys.push_back(j);
          max = std::max(max, score);
        }
        float sum = spec.has_sinks ? std::exp(batch.sinks()[head] - max) : 0.0f;
        for (float& score : scores) {
          sum += std::exp(score - max);
          score = round(std::exp(score - max));
        }
        const bool empty = max == -kInfinity;
        for (int d = 0; d < spec.v_head_dim; ++d) {
          float value = 0;
          for (size_t i_key = 0; i_key < keys.size(); ++i_key) {
            value += scores[i_key] * values_of_head[int64_t{keys[i_key]} * spec.v_head_dim + d];
          }
          value = empty ? 0.0f : value / sum * params.v_descale.at(seq, kv_head);
          uint32_t stored = 0;
          EncodeElement(&stored, spec.out_dtype, 0, value);
          result.out.push_back(ReferenceElement(&stored, spec.out_dtype, 0));
        }
        if (spec.wants_lse) {
          result.lse[static_cast<size_t>(head) * static_cast<size_t>(batch.num_tokens()) +
                     static_cast<size_t>(token)] = empty ? -kInfinity : max + std::log(sum);
        }
      }
    }
  }
  return result;
}

// The largest error of each row (token, head); infinity where a value is not finite.
inline std::vector<double> RowErrors(const AttentionResult& result, const AttentionResult& oracle, int dim) {
  std::vector<double> errors;
  for (size_t i = 0; i < oracle.out.size(); i += static_cast<size_t>(dim)) {
    double error = 0;
    for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
      const double difference = std::abs(result.out[i + d] - oracle.out[i + d]);
      error = std::isfinite(difference) ? std::max(error, difference) : static_cast<double>(kInfinity);
    }
    errors.push_back(error);
  }
  return errors;
}

struct ErrorBudget {
  double out = 0;
  double lse = 0;
};
inline double LseError(double lse, double oracle) {
  if (lse == oracle) return 0;  // both -inf
  const double difference = std::abs(lse - oracle);
  return std::isfinite(difference) ? difference : static_cast<double>(kInfinity);
}
// Twice the plain implementation's largest error. The floor, two units in the last place of the largest
// output, is for batches the plain implementation happens to compute exactly (one visible key).
inline ErrorBudget BudgetOf(AttentionBatch& batch, const AttentionResult& oracle,
                            AttentionArithmetic arithmetic) {
  const AttentionResult plain = RunPlain(batch, arithmetic);
  ErrorBudget budget;
  for (const double error : RowErrors(plain, oracle, batch.spec().v_head_dim))
    budget.out = std::max(budget.out, error);
  for (size_t i = 0; i < oracle.lse.size(); ++i) {
    budget.lse = std::max(budget.lse, LseError(plain.lse[i], oracle.lse[i]));
  }
  double largest = 0, largest_lse = 1;
  for (const double value : oracle.out) largest = std::max(largest, std::abs(value));
  for (const double value : oracle.lse) {
    if (std::isfinite(value)) largest_lse = std::max(largest_lse, std::abs(value));
  }
  const DType out = batch.spec().out_dtype;
  const double ulp = out == DType::kF32 ? 0x1p-23 : out == DType::kBF16 ? 0x1p-8 : 0x1p-10;
  budget.out = std::max(2 * budget.out, 2 * ulp * largest);
  budget.lse = std::max(2 * budget.lse, 4 * 0x1p-23 * largest_lse);
  return budget;
}

// Every row within the budget.
inline ::testing::AssertionResult Within(const AttentionResult& result, const AttentionResult& oracle,
                                         const ErrorBudget& budget, int dim, int q_heads) {
  const std::vector<double> errors = RowErrors(result, oracle, dim);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!(errors[row] <= budget.out)) {
      return ::testing::AssertionFailure() << "token " << row / static_cast<size_t>(q_heads) << " head "
                                           << row % static_cast<size_t>(q_heads) << " has error "
                                           << errors[row] << ", budget " << budget.out;
    }
  }
  for (size_t i = 0; i < oracle.lse.size(); ++i) {
    if (!(LseError(result.lse[i], oracle.lse[i]) <= budget.lse)) {
      return ::testing::AssertionFailure() << "lse " << i << " is " << result.lse[i] << ", oracle "
                                           << oracle.lse[i] << ", budget " << budget.lse;
    }
  }
  return ::testing::AssertionSuccess();
}

// The kernel ran for every group whose phase its contract accepts.
inline void ExpectRan(const AttentionResult& result, const KernelEntry& entry, const AttentionSpec& spec) {
  for (const PlannedRoute& route : result.routes) {
    const AttentionProblem problem{.spec = spec, .phase = route.phase};
    const bool accepts = Check(entry.contract, problem, ThisCpu()).empty();
    EXPECT_EQ(route.kernel, accepts ? entry.contract.name : "attention_general")
        << "for " << AttentionPhaseName(route.phase);
  }
}

}  // namespace attest::testing
