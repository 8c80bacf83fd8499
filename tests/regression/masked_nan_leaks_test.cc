// A NaN or an infinity in V of a key that one row of a tile sees made the other rows of the tile NaN: their
// weight for that key is 0, and 0 times NaN is NaN.
#include <gtest/gtest.h>

#include "tests/support/attention_case_list.h"
#include "tests/support/attention_run.h"

namespace attest::testing {
namespace {

struct MaskCase {
  const char* name;
  AttentionSpec spec;
};

std::vector<MaskCase> Masks(DType dtype) {
  AttentionSpec base = MakeSpec(4, 2, 32);
  base.kv_dtype = dtype;
  std::vector<MaskCase> masks;
  const auto add = [&](const char* name, auto change) {
    masks.push_back({name, base});
    change(masks.back().spec);
  };
  add("causal", [](auto&) {});
  add("without_lse", [](auto& s) { s.wants_lse = false; });
  add("window_left", [](auto& s) { s.window_left = 5; });
  add("window_both", [](auto& s) { s.causal = false, s.window_left = 3, s.window_right = 2; });
  add("chunk_softcap", [](auto& s) { s.chunk = 16, s.softcap = 3.0f; });
  add("alibi_sinks", [](auto& s) { s.has_alibi = s.has_sinks = true; });
  return masks;
}

bool Sees(const AttentionSpec& spec, int32_t row, int32_t q_len, int32_t kv_len, int32_t key) {
  const VisibleKeys seen = VisibleKeysOf(MaskOf(spec), row + kv_len - q_len, kv_len);
  return (key >= seen.begin && key < seen.end) || (key >= seen.sink_begin && key < seen.sink_end);
}

class MaskedNan : public ::testing::TestWithParam<const KernelEntry*> {
 protected:
  // Tiles with one row and with many, a diagonal that crosses key blocks, and a context long enough to split.
  const std::vector<int32_t> q_len_{1, 3, 20, 8, 40, 2};
  const std::vector<int32_t> kv_len_{50, 40, 20, 150, 70, 400};

  // One element of key `from_end` from the end of every sequence is `bad`, for KV head 1.
  void Poison(AttentionBatch& batch, bool in_values, int from_end, float bad) {
    for (int seq = 0; seq < batch.num_seqs(); ++seq) {
      EncodeElement(batch.KeyData(in_values), batch.spec().kv_dtype,
                    batch.KeyIndex(in_values, seq, Key(seq, from_end), 1) + 9, bad);
    }
  }
  int32_t Key(int seq, int from_end) const {
    return std::max(0, kv_len_[static_cast<size_t>(seq)] - 1 - from_end);
  }
};

TEST_P(MaskedNan, ReachesTheRowsThatSeeItAndNoOther) {
  int ran = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const std::vector<MaskCase> masks = Masks(dtype);
    for (const MaskCase& mask : masks) {
      const AttentionSpec& spec = mask.spec;
      const std::string forced = ForcedWherePossible(*GetParam(), spec);
      if (forced.empty()) continue;
      ++ran;
      AttentionBatch batch(spec, q_len_, kv_len_, {.seed = 17});
      const auto clean = RunAttention(batch, forced);
      ASSERT_TRUE(clean) << clean.error().message;
      ExpectRan(*clean, *GetParam(), spec);
      for (const bool in_values : {false, true}) {
        for (const float bad : {kNaN, kInfinity, -kInfinity}) {
          if (bad < 0 && &mask != &masks.front()) continue;  // one mask shows that the sign does not matter
          for (const int from_end : {0, 1, 18}) {
            AttentionBatch poisoned(spec, q_len_, kv_len_, {.seed = 17});
            Poison(poisoned, in_values, from_end, bad);
            const auto result = RunAttention(poisoned, forced);
            ASSERT_TRUE(result) << result.error().message;
            SCOPED_TRACE(::testing::Message()
                         << mask.name << " " << DTypeName(dtype) << " " << bad << " in "
                         << (in_values ? "V" : "K") << " " << from_end << " from the end");
            size_t at = 0;
            for (int seq = 0; seq < batch.num_seqs(); ++seq) {
              const int32_t q_len = batch.q_begin().length(seq);
              const int32_t kv_len = batch.kv_len()[static_cast<size_t>(seq)];
              for (int32_t row = 0; row < q_len; ++row) {
                for (int head = 0; head < spec.q_heads; ++head) {
                  const bool sees = head >= 2 && Sees(spec, row, q_len, kv_len, Key(seq, from_end));
                  for (int d = 0; d < spec.v_head_dim; ++d, ++at) {
                    if (in_values && sees && d != 9) {  // the key is added last: rounding may differ
                      ASSERT_NEAR(result->out[at], clean->out[at], 1e-5);
                    } else if (!sees) {
                      ASSERT_EQ(result->out[at], clean->out[at])
                          << "sequence " << seq << " row " << row << " head " << head << " dim " << d;
                    } else if (in_values || std::isnan(bad)) {  // an infinite score may also mean weight 0
                      ASSERT_FALSE(std::isfinite(result->out[at]))
                          << "sequence " << seq << " row " << row << " head " << head << " dim " << d;
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GE(ran, 6);
}

// Which infinity, and what becomes of the other keys, as the oracle has it.
TEST_P(MaskedNan, GivesWhatTheOracleGives) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const AttentionSpec spec = Masks(dtype)[0].spec;
    const std::string forced = ForcedWherePossible(*GetParam(), spec);
    if (forced.empty()) continue;
    for (const bool in_values : {false, true}) {
      for (const float bad : {kNaN, kInfinity, -kInfinity}) {
        AttentionBatch batch(spec, q_len_, kv_len_, {.seed = 18});
        Poison(batch, in_values, 1, bad);
        const AttentionResult oracle = RunOracle(batch);
        const auto result = RunAttention(batch, forced);
        ASSERT_TRUE(result) << result.error().message;
        for (size_t i = 0; i < oracle.out.size(); ++i) {
          ASSERT_EQ(std::isnan(result->out[i]), std::isnan(oracle.out[i])) << i << " " << bad << in_values;
          if (std::isnan(oracle.out[i]) || result->out[i] == oracle.out[i]) continue;
          ASSERT_NEAR(result->out[i], oracle.out[i], 0.03) << i << " " << bad << in_values;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MaskedNan, ::testing::ValuesIn(RunnableKernels()),
                         [](const auto& param) { return std::string(param.param->contract.name); });

}  // namespace
}  // namespace attest::testing
