#include "conform/invariances.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/merge_states.h"

namespace attest::conform {
namespace {

std::vector<AttentionSpec> FeatureSpecs(Probe& probe) {
  const AttentionSpec base = probe.Spec(6, 2, 32);
  std::vector<AttentionSpec> specs(6, base);
  specs[1].window_left = 20;
  specs[2].softcap = 2.0f;
  specs[3].has_alibi = true;
  specs[4].has_sinks = true;
  specs[5].window_left = 9;
  specs[5].has_sinks = specs[5].has_alibi = true;
  specs[5].softcap = 4.0f;
  return specs;
}

// The rows of one token, in [q_heads * v_head_dim] values.
const double* RowsOf(const AttentionResult& result, const AttentionSpec& spec, int64_t token) {
  return result.out.data() + token * spec.q_heads * spec.v_head_dim;
}

// Token `a` of one result is within the budget of token `b` of an oracle.
void ExpectToken(Probe& probe, const AttentionSpec& spec, const AttentionResult& result, int64_t a,
                 const AttentionResult& oracle, int64_t b, const ErrorBudget& budget,
                 const std::string& what) {
  if (!result.ran(static_cast<size_t>(a))) return;
  const double *got = RowsOf(result, spec, a), *want = RowsOf(oracle, spec, b);
  for (int i = 0; i < spec.q_heads * spec.v_head_dim; ++i) {
    const double allowed = budget.OutOf(static_cast<size_t>(b * spec.q_heads + i / spec.v_head_dim));
    if (std::abs(got[i] - want[i]) <= allowed) continue;
    probe.Expect(
        false, fmt::format("{}: token {} head {} dim {} is {:.9g}, expected {:.9g} (budget {:.3g})", what, b,
                           i / spec.v_head_dim, i % spec.v_head_dim, got[i], want[i], allowed));
    return;
  }
  const auto lse = [&](const AttentionResult& r, int head, int64_t token) {
    return r.lse[static_cast<size_t>(head) * (r.lse.size() / static_cast<size_t>(spec.q_heads)) +
                 static_cast<size_t>(token)];
  };
  for (int head = 0; head < spec.q_heads && spec.wants_lse; ++head) {
    const size_t at = static_cast<size_t>(head) * (oracle.lse.size() / static_cast<size_t>(spec.q_heads)) +
                      static_cast<size_t>(b);
    if (!(LseError(lse(result, head, a), lse(oracle, head, b)) <= budget.LseOf(at)))
      probe.Expect(false, fmt::format("{}: lse of token {} head {}", what, b, head));
  }
}

void AnyChunkingOfAPromptGivesTheSameRows(Probe& probe) {
  constexpr int32_t kPrompt = 70;
  for (const AttentionSpec& spec : FeatureSpecs(probe)) {
    AttentionBatch whole(spec, {kPrompt}, {kPrompt}, {.seed = 9});
    const AttentionResult oracle = RunOracle(whole);
    const ErrorBudget budget = BudgetOf(whole, oracle, probe.subject().arithmetic());
    for (const int32_t chunk : {1, 2, 7, 15, 16, 17, 64, 70}) {
      // Every chunk is a sequence of its own over the same keys: its rows see what they see in the prompt.
      std::vector<int32_t> q_len, kv_len;
      for (int32_t begin = 0; begin < kPrompt; begin += chunk) {
        q_len.push_back(std::min(kPrompt, begin + chunk) - begin);
        kv_len.push_back(std::min(kPrompt, begin + chunk));
      }
      AttentionBatch chunks(spec, q_len, kv_len,
                            {.seed = 9, .seq_ids = std::vector<int32_t>(q_len.size(), 0)});
      const auto result = probe.Run(chunks);
      for (int32_t token = 0; result && token < kPrompt; ++token)
        ExpectToken(probe, spec, *result, token, oracle, token, budget, fmt::format("chunks of {}", chunk));
    }
  }
}

void TheLastRowIsTheSameFromEveryRole(Probe& probe) {
  for (const AttentionSpec& spec : FeatureSpecs(probe)) {
    for (const int32_t n : {20, 70}) {
      const std::vector<int32_t> q_len{n, n - 9, 5, 2, 1};
      AttentionBatch batch(spec, q_len, std::vector<int32_t>(5, n), {.seed = 3, .seq_ids = {0, 0, 0, 0, 0}});
      const AttentionResult oracle = RunOracle(batch);
      const ErrorBudget budget = BudgetOf(batch, oracle, probe.subject().arithmetic());
      const auto result = probe.Run(batch);
      const int64_t decode = batch.q_begin().begin(4);
      for (int seq = 0; result && seq < 5; ++seq) {
        ExpectToken(probe, spec, *result, batch.q_begin().end(seq) - 1, oracle, decode, budget,
                    fmt::format("the last of {} rows over {} keys", q_len[static_cast<size_t>(seq)], n));
      }
    }
  }
}

void AnySplitOfTheKeysGivesTheSameRow(Probe& probe) {
  for (const AttentionSpec& spec : FeatureSpecs(probe)) {
    for (const int32_t q_len : {1, 3}) {
      AttentionBatch batch(spec, {q_len}, {100}, {.seed = 4});
      const AttentionResult oracle = RunOracle(batch);
      const ErrorBudget budget = BudgetOf(batch, oracle, probe.subject().arithmetic());
      const auto expect = [&](const AttentionResult& result, const std::string& what) {
        for (int32_t token = 0; token < q_len; ++token)
          ExpectToken(probe, spec, result, token, oracle, token, budget, what);
      };
      if (const auto result = probe.Run(batch)) expect(*result, "the splits it chooses");
      for (const int splits : {1, 2, 3, 5, 7, 8, 16, 64, 100, 1000}) {
        if (!probe.subject().can_be_asked_for_splits()) break;
        if (const auto result = probe.Run(batch, {.num_splits = splits}))
          expect(*result, fmt::format("asked for {} splits of 100 keys", splits));
      }
      const KernelEntry* entry = probe.subject().entry();
      const AttentionProblem problem{.spec = spec, .phase = RoutePhaseOf(q_len, 100)};
      if (entry == nullptr || !entry->kernel->can_split_kv || !probe.subject().Refusals(problem).empty())
        continue;
      for (const auto& cuts : std::vector<std::vector<int32_t>>{
               {0, 50, 100}, {0, 1, 99, 100}, {0, 17, 33, 64, 64, 80, 100}, {0, 0, 100}, {0, 100, 100}}) {
        const AttentionResult result = RunSplits(batch, *entry, cuts);
        probe.Expect(result.violation.empty(), result.violation);
        expect(result, fmt::format("{} splits of 100 keys", cuts.size() - 1));
      }
    }
  }
}

// A kernel that splits keys chooses how many parts by the length and by how many sequences share the machine:
// lengths around every likely part size, each alone and all together.
void LengthsAroundSplitSizesAreRightAloneAndTogether(Probe& probe) {
  std::vector<int32_t> kv_len;
  for (const int32_t part : {32, 64, 128, 256, 512, 1024}) {
    for (const int32_t length : {part - 1, part, part + 1, 2 * part + 1}) kv_len.push_back(length);
  }
  std::vector<AttentionSpec> specs(2, probe.Spec(4, 2, 32));
  specs[1].has_sinks = true;
  for (const AttentionSpec& spec : specs) {
    AttentionBatch batch(spec, std::vector<int32_t>(kv_len.size(), 1), kv_len, {.seed = 12});
    const AttentionResult oracle = RunOracle(batch);
    const ErrorBudget budget = BudgetOf(batch, oracle, probe.subject().arithmetic());
    if (const auto together = probe.Run(batch)) {
      for (int32_t token = 0; token < batch.num_tokens(); ++token)
        ExpectToken(probe, spec, *together, token, oracle, token, budget, "a batch of many lengths");
    }
    for (int32_t seq = 0; seq < batch.num_seqs(); ++seq) {
      AttentionBatch alone(spec, {1}, {kv_len[static_cast<size_t>(seq)]}, {.seed = 12, .seq_ids = {seq}});
      if (spec.has_sinks) std::copy_n(batch.sinks(), spec.q_heads, alone.sinks());
      const auto result = probe.Run(alone);
      if (result) ExpectToken(probe, spec, *result, 0, oracle, seq, budget, "a sequence alone");
    }
  }
}

// Rows over a prefix and over the rest, as states that are merged: cascade, and chunked context.
void StatesOverPartsOfTheKeysMergeToTheWhole(Probe& probe) {
  std::vector<AttentionSpec> specs(3, probe.Spec(6, 2, 32));
  if (!specs[0].wants_lse) {  // without an LSE nothing can be merged: let the subject say so
    specs[0].wants_lse = true;
    AttentionBatch batch(specs[0], {5}, {90});
    probe.Run(batch);
    return;
  }
  specs[1].softcap = 2.0f;
  specs[2].has_sinks = true;
  for (const AttentionSpec& spec : specs) {
    constexpr int32_t kRows = 5, kKeys = 90;
    AttentionBatch whole(spec, {kRows}, {kKeys}, {.seed = 8});
    const AttentionResult oracle = RunOracle(whole);
    const ErrorBudget budget = BudgetOf(whole, oracle, probe.subject().arithmetic());
    const AttentionBatch::Output none = whole.MakeOutput(0.0f);
    const AttentionParams whole_params = whole.Params(none);
    for (const auto& cuts : std::vector<std::vector<int32_t>>{{0, 40, 90}, {0, 16, 64, 90}, {0, 0, 85, 90}}) {
      std::vector<AttentionResult> parts;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        AttentionSpec part_spec = spec;
        part_spec.has_sinks = false;              // counted once, by the merge
        part_spec.causal = i + 2 == cuts.size();  // earlier parts lie wholly before the rows
        AttentionBatch part(part_spec, {kRows}, {cuts[i + 1] - cuts[i]}, {.seed = 8});
        for (const bool value : {false, true}) {
          const auto copy = [&](int, int key, int head, int d) {
            return static_cast<float>(ReferenceElement(whole.KeyData(value), spec.kv_dtype,
                                                       whole.KeyIndex(value, 0, cuts[i] + key, head) + d));
          };
          value ? part.FillV(copy) : part.FillK(copy);
        }
        part.FillQ([&](int, int row, int head, int d) {
          return static_cast<float>(ReferenceElement(whole_params.QRow(row, head), spec.q_dtype, d));
        });
        auto result = probe.Run(part);
        if (!result) return;  // a role it refuses
        parts.push_back(std::move(*result));
      }
      AttentionResult merged;
      merged.lse.resize(static_cast<size_t>(spec.q_heads) * kRows);
      const auto n = static_cast<size_t>(spec.v_head_dim);
      for (int32_t row = 0; row < kRows; ++row) {
        for (int head = 0; head < spec.q_heads; ++head) {
          std::vector<float> out, lse;
          const size_t at = static_cast<size_t>(row * spec.q_heads + head) * n;
          const size_t lse_at = static_cast<size_t>(head) * kRows + static_cast<size_t>(row);
          for (const AttentionResult& part : parts) {
            for (size_t d = 0; d < n; ++d) out.push_back(static_cast<float>(part.out[at + d]));
            lse.push_back(static_cast<float>(part.lse[lse_at]));
          }
          std::vector<float> row_out(n);
          merged.lse[lse_at] =
              MergeStateRow({.out = out.data(),
                             .out_stride = spec.v_head_dim,
                             .lse = lse.data(),
                             .lse_stride = 1,
                             .n = static_cast<int>(parts.size())},
                            spec.has_sinks ? std::optional<float>(whole.sinks()[head]) : std::nullopt,
                            spec.v_head_dim, row_out.data());
          merged.out.insert(merged.out.end(), row_out.begin(), row_out.end());
        }
      }
      // Each part and the merge round once more.
      const ErrorBudget wider = budget.Times(2);
      for (int32_t row = 0; row < kRows; ++row) {
        ExpectToken(probe, spec, merged, row, oracle, row, wider,
                    fmt::format("merged from {} parts", parts.size()));
      }
    }
  }
}

void ASequenceIsBitEqualAloneAndInAnyCompany(Probe& probe) {
  const std::vector<int32_t> q_len{1, 30, 4, 1, 9, 4}, kv_len{500, 30, 40, 1, 60, 300};
  for (const AttentionSpec& spec : FeatureSpecs(probe)) {
    AttentionBatch batch(spec, q_len, kv_len, {.seed = 6});
    const auto together = probe.Run(batch);
    if (!together) continue;
    const auto same = [&](const AttentionResult& other, int64_t other_token, int64_t token,
                          const std::string& what) {
      probe.ExpectSameRow(spec, other, other_token, *together, token, what);
    };
    for (int seq = 0; seq < batch.num_seqs(); ++seq) {
      const auto alone = probe.Run(batch, {.num_threads = 1, .owned = std::vector<int32_t>{seq}});
      for (int64_t token = batch.q_begin().begin(seq); alone && token < batch.q_begin().end(seq); ++token)
        same(*alone, token, token, fmt::format("sequence {} alone and in company", seq));
    }
    for (const std::vector<int32_t>& order : {std::vector<int32_t>{5, 4, 3, 2, 1, 0}, {3, 0, 5, 1, 4, 2}}) {
      std::vector<int32_t> q, kv;
      for (const int32_t seq : order) {
        q.push_back(q_len[static_cast<size_t>(seq)]);
        kv.push_back(kv_len[static_cast<size_t>(seq)]);
      }
      AttentionBatch other(spec, q, kv, {.seed = 6, .seq_ids = order});
      const auto result = probe.Run(other);
      for (int place = 0; result && place < std::ssize(order); ++place) {
        const int seq = order[static_cast<size_t>(place)];
        for (int32_t row = 0; row < q_len[static_cast<size_t>(seq)]; ++row) {
          same(*result, other.q_begin().begin(place) + row, batch.q_begin().begin(seq) + row,
               fmt::format("sequence {} at another place in the batch", seq));
        }
      }
    }
  }
}

void EmptySequencesAroundTheRowsChangeNothing(Probe& probe) {
  for (const AttentionSpec& spec : FeatureSpecs(probe)) {
    AttentionBatch plain(spec, {1, 9, 3}, {40, 20, 17}, {.seed = 2, .seq_ids = {1, 2, 3}});
    AttentionBatch padded(spec, {0, 1, 0, 1, 9, 3, 0, 1, 1}, {0, 40, 5, 0, 20, 17, 0, 0, 0},
                          {.seed = 2, .seq_ids = {10, 1, 11, 12, 2, 3, 13, 14, 15}});
    const auto without = probe.Run(plain), with = probe.Run(padded);
    if (!without || !with) continue;
    for (int64_t token = 0; token < plain.num_tokens(); ++token) {
      probe.ExpectSameRow(spec, *with, token == 0 ? 0 : token + 1, *without, token,
                          "rows with and without padding around them");
    }
    for (const int token : {1, 14, 15}) {
      for (int head = 0; head < spec.q_heads; ++head) probe.ExpectRow(*with, spec, token, head, 0.0);
    }
  }
}

void EveryLayoutOfThePagesGivesTheSameRows(Probe& probe) {
  for (AttentionSpec spec : FeatureSpecs(probe)) {
    AttentionBatch first(spec, {1, 9, 3, 12}, {40, 20, 17, 12}, {.seed = 5});
    const AttentionResult oracle = RunOracle(first);
    const ErrorBudget budget = BudgetOf(first, oracle, probe.subject().arithmetic());
    for (const KvLayout layout : {KvLayout::kPagedHnd, KvLayout::kPagedNhd, KvLayout::kContiguous}) {
      spec.layout = layout;
      for (const int block_size : {1, 3, 16, 64}) {
        if (layout == KvLayout::kContiguous && block_size != 16) continue;
        spec.block_size = block_size;
        for (const bool shuffle : {true, false}) {
          AttentionBatch batch(spec, {1, 9, 3, 12}, {40, 20, 17, 12},
                               {.seed = 5,
                                .shuffle_pages = shuffle,
                                .interleave_kv = shuffle && layout == KvLayout::kPagedNhd});
          const auto result = probe.Run(batch);
          for (int64_t token = 0; result && token < batch.num_tokens(); ++token) {
            ExpectToken(probe, spec, *result, token, oracle, token, budget,
                        fmt::format("{} pages of {}", KvLayoutName(layout), block_size));
          }
        }
      }
    }
  }
}

}  // namespace

const std::vector<Invariance>& Invariances() {
  static const std::vector<Invariance> all = {
      {"ChunkInvariance", "AnyChunkingOfAPromptGivesTheSameRows", "chunking of the prompt",
       AnyChunkingOfAPromptGivesTheSameRows},
      {"RoleInvariance", "TheLastRowIsTheSameFromEveryRole", "prefill = extend = decode",
       TheLastRowIsTheSameFromEveryRole},
      {"SplitInvariance", "AnySplitOfTheKeysGivesTheSameRow", "split counts",
       AnySplitOfTheKeysGivesTheSameRow},
      {"LengthInvariance", "LengthsAroundSplitSizesAreRightAloneAndTogether", "contexts around split sizes",
       LengthsAroundSplitSizesAreRightAloneAndTogether},
      {"MergeInvariance", "StatesOverPartsOfTheKeysMergeToTheWhole", "merged states (cascade)",
       StatesOverPartsOfTheKeysMergeToTheWhole},
      {"BatchInvariance", "ASequenceIsBitEqualAloneAndInAnyCompany", "batch companions, order",
       ASequenceIsBitEqualAloneAndInAnyCompany},
      {"PaddingInvariance", "EmptySequencesAroundTheRowsChangeNothing", "padding",
       EmptySequencesAroundTheRowsChangeNothing},
      {"PageInvariance", "EveryLayoutOfThePagesGivesTheSameRows", "page order and layout",
       EveryLayoutOfThePagesGivesTheSameRows},
  };
  return all;
}

}  // namespace attest::conform
