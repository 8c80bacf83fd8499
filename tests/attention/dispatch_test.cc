#include "attention/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <type_traits>

#include "attention/attention.h"
#include "attention/plan.h"
#include "tests/support/attention_case_list.h"

namespace attest {
namespace {

using ::testing::HasSubstr;
using testing::MakeSpec;

AttentionProblem DecodeProblem(AttentionSpec spec = MakeSpec(8, 2, 64)) {
  return {.spec = spec,
          .phase = AttentionPhase::kDecode,
          .num_seqs = 1,
          .min_q_len = 1,
          .max_q_len = 1,
          .min_kv_len = 100,
          .max_kv_len = 100};
}

CpuFeatures Avx2Cpu() {
  CpuFeatures cpu;
  cpu.avx2 = true;
  return cpu;
}
CpuFeatures BigCpu() {
  CpuFeatures cpu = Avx2Cpu();
  cpu.avx512 = cpu.avx512_vnni = cpu.avx512_bf16 = cpu.avx512_vbmi = true;
  cpu.amx_tile = cpu.amx_bf16 = cpu.amx_int8 = true;
  return cpu;
}

TEST(Dispatch, ListsEachNameOnceWithTheReferenceLast) {
  std::set<std::string_view> names;
  for (const KernelEntry* entry : KernelList()) {
    EXPECT_TRUE(names.insert(entry->contract.name).second) << entry->contract.name;
    EXPECT_FALSE(entry->contract.words.empty()) << entry->contract.name;
    EXPECT_NE(entry->contract.check, nullptr);
    EXPECT_EQ(FindKernel(entry->contract.name), entry);
  }
  EXPECT_EQ(KernelList().back()->contract.name, "reference");
  EXPECT_TRUE(names.contains("attention_general"));
}

TEST(Dispatch, HasARouteForEveryPhaseOfEveryCaseOnAPlainCpu) {
  for (const testing::AttentionCase& test_case : testing::AttentionCases()) {
    for (const AttentionPhase phase : kAttentionPhases) {
      const AttentionProblem problem{.spec = test_case.spec, .phase = phase};
      const auto route = Choose(problem, CpuFeatures{});
      ASSERT_TRUE(route) << test_case.name << ": " << route.error().message;
      EXPECT_EQ(route->name(), "attention_general");
      EXPECT_EQ(route->phase(), phase);
    }
  }
}

TEST(Dispatch, TakesTheFirstKernelOfTheListThatAccepts) {
  for (const CpuFeatures& cpu : {CpuFeatures{}, Avx2Cpu(), BigCpu()}) {
    for (const testing::AttentionCase& test_case : testing::AttentionCases()) {
      for (const AttentionPhase phase : kAttentionPhases) {
        const AttentionProblem problem{.spec = test_case.spec, .phase = phase};
        const auto route = Choose(problem, cpu);
        ASSERT_TRUE(route);
        for (const KernelEntry* entry : KernelList()) {
          if (entry == &route->entry()) break;
          EXPECT_FALSE(Check(entry->contract, problem, cpu).empty()) << entry->contract.name << " came first";
        }
      }
    }
  }
}

TEST(Dispatch, AForcedNameThatDoesNotExistIsAnErrorThatListsTheKnownOnes) {
  const auto route = Choose(DecodeProblem(), Avx2Cpu(), "attention_genral");
  ASSERT_FALSE(route);
  EXPECT_EQ(route.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(route.error().message, HasSubstr("'attention_genral' does not exist"));
  EXPECT_THAT(route.error().message, HasSubstr("attention_general"));
  EXPECT_THAT(route.error().message, HasSubstr("reference"));
}

TEST(Dispatch, AForcedKernelThatRefusesIsAnErrorAndNeverASubstitute) {
  const auto route = Choose(DecodeProblem(), CpuFeatures{}, "attention_general_avx512");
#if defined(__x86_64__)
  ASSERT_FALSE(route);
  EXPECT_EQ(route.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(route.error().message, HasSubstr("cpu is portable, expected avx512"));
#else
  EXPECT_EQ(route.error().code, ErrorCode::kNotFound);
#endif
}

TEST(Dispatch, AForcedKernelRunsThoughAnotherComesFirst) {
  const auto route = Choose(DecodeProblem(), BigCpu(), "reference");
  ASSERT_TRUE(route);
  EXPECT_EQ(route->name(), "reference");
}

TEST(Dispatch, AnExcludedKernelIsPassedOverAndRefusesWhenForced) {
  const auto first = Choose(DecodeProblem(), BigCpu());
  ASSERT_TRUE(first);
  const std::vector<std::string> excluded{std::string(first->name())};
  const auto second = Choose(DecodeProblem(), BigCpu(), "", excluded);
  ASSERT_TRUE(second);
  EXPECT_NE(second->name(), first->name());
  const auto forced = Choose(DecodeProblem(), BigCpu(), first->name(), excluded);
  ASSERT_FALSE(forced);
  EXPECT_EQ(forced.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(forced.error().message.find("quarantined"), std::string::npos) << forced.error().message;

  // With every kernel excluded no phase has a route, and the reasons say why.
  auto router = AttentionRouter::Create(BigCpu());
  ASSERT_TRUE(router);
  AttentionRouter without = *router;
  for (const KernelEntry* entry : KernelList()) {
    EXPECT_TRUE(without.CheckSpec(DecodeProblem().spec));
    without = without.Without(entry->contract.name);
  }
  const Status none = without.CheckSpec(DecodeProblem().spec);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("reference: kernel is quarantined"), std::string::npos)
      << none.error().message;
  EXPECT_TRUE(router->excluded().empty());
}

TEST(Dispatch, RefusesASpecThatContradictsItselfBeforeAskingAnyKernel) {
  struct Bad {
    const char* field;
    void (*spoil)(AttentionSpec&);
  };
  const Bad cases[] = {
      {"q_heads", [](AttentionSpec& s) { s.q_heads = 7; }},
      {"q_heads", [](AttentionSpec& s) { s.q_heads = 0; }},
      {"kv_heads", [](AttentionSpec& s) { s.kv_heads = 0; }},
      {"head_dim", [](AttentionSpec& s) { s.head_dim = 0; }},
      {"v_head_dim", [](AttentionSpec& s) { s.v_head_dim = -1; }},
      {"q_dtype", [](AttentionSpec& s) { s.q_dtype = DType::kI8; }},
      {"out_dtype", [](AttentionSpec& s) { s.out_dtype = DType::kF8E4M3; }},
      {"kv_dtype", [](AttentionSpec& s) { s.kv_dtype = DType::kQ4_0; }},
      {"block_size", [](AttentionSpec& s) { s.block_size = 0; }},
      {"scale", [](AttentionSpec& s) { s.scale = std::numeric_limits<float>::infinity(); }},
      {"window_left", [](AttentionSpec& s) { s.window_left = -1; }},
      {"window_right", [](AttentionSpec& s) { s.window_right = -1; }},
      {"chunk", [](AttentionSpec& s) { s.chunk = 0; }},
      {"sink_tokens", [](AttentionSpec& s) { s.sink_tokens = -1; }},
      {"softcap", [](AttentionSpec& s) { s.softcap = -30.0f; }},
  };
  for (const Bad& bad : cases) {
    AttentionSpec spec = MakeSpec(8, 2, 64);
    bad.spoil(spec);
    const auto route = Choose(DecodeProblem(spec), BigCpu());
    ASSERT_FALSE(route) << bad.field;
    EXPECT_EQ(route.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(route.error().field, bad.field);
  }
}

// A contract of our own, so that every branch of Check is known.
void RefuseOddHeads(const AttentionProblem& problem, std::vector<Reason>& reasons) {
  Require(reasons, problem.spec.head_dim % 8 == 0, "head_dim", problem.spec.head_dim, "a multiple of 8");
  RequireWithout(reasons, problem.spec, {.softcap = true, .alibi = true, .sinks = true, .window_left = true});
}

TEST(Contract, CollectsEveryReasonWithItsValue) {
  const KernelContract contract{.name = "picky",
                                .words = "",
                                .isa = CpuIsa::kAvx512,
                                .arithmetic = AttentionArithmetic::kBf16,
                                .phases = {.decode = true},
                                .limits = {.max_q_len = 1, .max_kv_len = 4096},
                                .check = RefuseOddHeads};
  AttentionSpec spec = MakeSpec(8, 2, 36);
  spec.softcap = 30.0f;
  spec.has_alibi = spec.has_sinks = spec.precise = true;
  spec.window_left = 127;
  const AttentionProblem problem{.spec = spec,
                                 .phase = AttentionPhase::kExtend,
                                 .num_seqs = 2,
                                 .min_q_len = 3,
                                 .max_q_len = 5,
                                 .min_kv_len = 10,
                                 .max_kv_len = 5000};
  std::vector<std::string> lines;
  for (const Reason& reason : Check(contract, problem, Avx2Cpu())) lines.push_back(ToString(reason));
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "cpu is avx2, expected avx512", "phase is extend, expected a phase of this kernel",
                         "precise is true, expected false (this kernel rounds queries and weights to bf16)",
                         "max_q_len is 5, expected <= 1", "max_kv_len is 5000, expected <= 4096",
                         "head_dim is 36, expected a multiple of 8", "softcap is 30, expected 0 (off)",
                         "alibi is on, expected off", "sinks is on, expected off",
                         "window_left is 127, expected no limit"));
}

TEST(Contract, LengthsDoNotCountWhileTheyAreUnknown) {
  const KernelContract contract{.name = "short",
                                .words = "",
                                .phases = kAllPhases,
                                .limits = {.max_q_len = 1, .max_kv_len = 10},
                                .check = [](const AttentionProblem&, std::vector<Reason>&) {}};
  const AttentionProblem at_load{.spec = MakeSpec(1, 1, 64)};
  EXPECT_TRUE(Check(contract, at_load, CpuFeatures{}).empty());
}

TEST(Route, CanOnlyBeMadeByChoose) {
  static_assert(!std::is_default_constructible_v<Route>);
  static_assert(!std::is_constructible_v<Route, const KernelEntry&, AttentionPhase>);
  static_assert(!std::is_default_constructible_v<AttentionPlan>);
}

TEST(Router, RefusesAnUnknownNameAndANameThisCpuLacks) {
  const auto unknown = AttentionRouter::Create(BigCpu(), "attention_fast");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("reference"));
#if defined(__x86_64__)
  const auto missing = AttentionRouter::Create(CpuFeatures{}, "attention_general_avx2");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "attention kernel 'attention_general_avx2' needs avx2, this CPU has portable");
#endif
  const auto phase = AttentionRouter::Create(BigCpu(), "decoding=reference");
  ASSERT_FALSE(phase);
  EXPECT_THAT(phase.error().message, HasSubstr("'decoding' does not exist"));
}

TEST(Router, ForcesOneKernelPerPhase) {
  const auto router = AttentionRouter::Create(CpuFeatures{}, "decode=reference,prefill=attention_general");
  ASSERT_TRUE(router);
  EXPECT_EQ(router->forced_for(AttentionPhase::kDecode), "reference");
  EXPECT_EQ(router->forced_for(AttentionPhase::kPrefill), "attention_general");
  EXPECT_EQ(router->forced_for(AttentionPhase::kExtend), "");
  EXPECT_TRUE(router->CheckSpec(MakeSpec(8, 2, 64)));
}

TEST(Router, RefusesPagesOfWeightTypes) {
  AttentionSpec spec = MakeSpec(8, 2, 64);
  spec.kv_dtype = DType::kQ8_0;
  const Status status = AttentionRouter::Create(BigCpu()).value().CheckSpec(spec);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().field, "kv_dtype");
  EXPECT_THAT(status.error().message, HasSubstr("q8_0"));
}

TEST(Dispatch, DescribesEveryKernelWithEveryReason) {
  AttentionSpec spec = MakeSpec(8, 2, 36);
  const std::string text = DescribeRefusals({.spec = spec}, CpuFeatures{});
  for (const KernelEntry* entry : KernelList()) {
    EXPECT_THAT(text, HasSubstr(std::string(entry->contract.name) + ": "));
  }
  EXPECT_THAT(text, HasSubstr("reference: accepts"));
}

}  // namespace
}  // namespace attest
