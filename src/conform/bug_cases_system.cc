// Public bug reports whose cause lay outside the kernel: routes, loaders, graphs, pools, ranks. Each is here
// by name with the check on a subject that is equivalent, or the reason why there is none.
#include <attest/conform_kernel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "conform/bug_cases.h"

namespace attest::conform {
namespace {

// A contract that lacks things must name each before anything is launched.
bool ContractNames(const Lacks& lacks, const AttentionSpec& spec, const std::string& field) {
  std::vector<Reason> reasons;
  RequireWithout(reasons, spec, lacks);
  return std::ranges::any_of(reasons, [&](const Reason& reason) { return reason.field == field; });
}

void AWindowIsAppliedOrRefusedByName(Probe& probe) {
  AttentionSpec spec = probe.Windowed(64);
  probe.Expect(ContractNames({.window_left = true}, spec, "window_left"),
               "a contract without windows does not name window_left");
  probe.ExpectUProbe(spec, {1}, {65}, {32.5});
  probe.ExpectUProbe(spec, {3}, {200}, {Mean(197, 64), Mean(198, 64), Mean(199, 64)});
  probe.ExpectTakenOrRefusedByName(spec, probe.Windowed(0), "window_left");
}

void EveryAcceptedCombinationOfARouteIsRight(Probe& probe) {
  for (int bits = 0; bits < 128; ++bits) {
    AttentionSpec spec = probe.Spec(2, 1, (bits & 1) != 0 ? 64 : 32);
    if ((bits & 2) != 0) spec.window_left = 5;
    if ((bits & 4) != 0) spec.kv_dtype = DType::kF32;
    spec.has_sinks = (bits & 8) != 0;
    spec.softcap = (bits & 16) != 0 ? 3.0f : 0.0f;
    spec.has_alibi = (bits & 32) != 0;
    spec.block_size = (bits & 64) != 0 ? 32 : 16;
    const AttentionProblem problem{.spec = spec, .phase = AttentionPhase::kDecode};
    const auto first = Choose(problem, ThisCpu()), second = Choose(problem, ThisCpu());
    probe.Expect(first && second && first->name() == second->name(),
                 "two choices for one problem differ: the choice is no pure function");
    probe.ExpectRandomIsRight(spec, {1, 3, 9}, {20, 20, 20});
  }
}

void APageSizeIsComputedOrRefusedBeforeTheCall(Probe& probe) {
  AttentionSpec spec = probe.Small(2, 1, 32);
  spec.block_size = 16;
  probe.ExpectUProbe(spec, {1, 2}, {40, 20}, {19.5, 9.0, 9.5});
  AttentionSpec large = spec;
  large.block_size = 128;
  probe.ExpectTakenOrRefusedByName(spec, large, "block_size");
}

// 342 rows of a prompt and 10 rows of padding up to a bucket of 352.
void APaddedPrefillHasConsistentSizes(Probe& probe) {
  const std::vector<int32_t> short_offsets{0, 342};
  const auto wrong = CuSeqlens::FromOffsets(short_offsets, 352);
  probe.Expect(!wrong, "offsets that end at 342 of 352 rows were taken");
  const AttentionSpec spec = probe.Spec(1, 1, 64);
  std::vector<int32_t> q_len{342}, kv_len{342};
  for (int i = 0; i < 10; ++i) q_len.push_back(1), kv_len.push_back(0);
  AttentionBatch padded(spec, q_len, kv_len, {.seed = 2}), plain(spec, {342}, {342}, {.seed = 2});
  const auto with = probe.Run(padded), without = probe.Run(plain);
  if (!with || !without) return;
  for (int64_t token = 0; token < 342; ++token)
    probe.ExpectSameRow(spec, *with, token, *without, token, "the prompt with and without padding rows");
  for (int token = 342; token < 352; ++token) probe.ExpectRow(*with, spec, token, 0, 0.0);
}

// Two kinds of layers on one prompt: what the smaller window has given up is overwritten.
void LayersOfSeveralWindowsReadOnlyTheirOwn(Probe& probe) {
  for (const int window : {4, 16}) {
    AttentionSpec spec = probe.Windowed(window);
    spec.block_size = 2;
    AttentionBatch cold(spec, {1}, {20}), warm(spec, {1}, {20});
    cold.UProbe();
    warm.UProbe();
    for (int key = 0; key < 20 - window; ++key) {
      for (const bool value : {false, true}) {
        for (int d = 0; d < spec.head_dim; ++d)
          EncodeElement(warm.KeyData(value), spec.kv_dtype, warm.KeyIndex(value, 0, key, 0) + d, kNaN);
      }
    }
    const auto a = probe.Run(cold), b = probe.Run(warm);
    if (!a || !b) continue;
    probe.ExpectRow(*a, spec, 0, 0, Mean(19, window));
    probe.ExpectSame(*b, *a, fmt::format("window {} after the keys left of it were overwritten", window));
  }
}

// Pages that belonged to one sequence are filled for another between two calls.
void ReusedPagesShowTheirNewContent(Probe& probe) {
  const AttentionSpec spec = probe.Small();
  AttentionBatch batch(spec, {1, 2}, {33, 20});
  for (int round = 0; round < 20; ++round) {
    const float marker = 1000.0f * static_cast<float>(round + 1);
    batch.UProbe();
    batch.FillV([&](int seq, int, int, int) { return marker + static_cast<float>(seq); });
    const auto result = probe.Run(batch);
    if (!result) return;
    probe.ExpectRow(*result, spec, 0, 0, marker);
    probe.ExpectRow(*result, spec, 2, 1, marker + 1);
  }
}

// An fp8 cache read again: the last rows of a prompt, computed whole and over its cached beginning.
void AnFp8CacheGivesTheSameRowsColdAndReused(Probe& probe) {
  AttentionSpec spec = probe.Spec(4, 2, 64);
  spec.kv_dtype = DType::kF8E4M3;
  spec.has_k_descale = spec.has_v_descale = true;
  probe.ExpectRandomIsRight(spec, {64, 16, 4, 1}, {64, 64, 64, 64}, {.seed = 3, .seq_ids = {0, 0, 0, 0}});
}

void SoftcapIsAppliedOrRefusedByName(Probe& probe) {
  AttentionSpec spec = probe.Small();
  spec.softcap = 1.0f;
  spec.scale = 1.0f;
  probe.Expect(ContractNames({.softcap = true}, spec, "softcap"),
               "a contract without softcap does not name softcap");
  // One score of 100 and one of 0: capped at 1 they weigh e : 1.
  AttentionBatch batch(spec, {1}, {2});
  batch.FillQ([](int, int, int, int d) { return d == 0 ? 100.0f : 0.0f; });
  batch.FillK([](int, int key, int, int d) { return d == 0 && key == 1 ? 1.0f : 0.0f; });
  batch.FillV([](int, int key, int, int) { return static_cast<float>(key); });
  if (const auto result = probe.Run(batch)) {
    probe.ExpectRow(*result, spec, 0, 0, std::exp(1.0) / (std::exp(1.0) + 1));
  }
  probe.ExpectTakenOrRefusedByName(spec, probe.Small(), "softcap");
}

// Runs a call of `q_heads` / `kv_heads` whole, then as `ranks` calls of its own heads, KV heads replicated.
void ExpectRanksEqualTheWhole(Probe& probe, int q_heads, int kv_heads, int ranks) {
  const AttentionSpec whole_spec = probe.Small(q_heads, kv_heads, 32);
  const auto key = [](int head) {
    return [head](int, int j, int, int d) { return std::sin(static_cast<float>(head * 29 + j * 5 + d)); };
  };
  AttentionBatch whole(whole_spec, {1, 3, 6}, {20, 9, 6});
  const auto by_head = [&](int seq, int j, int head, int d) { return key(head)(seq, j, 0, d); };
  const auto query = [](int head) {
    return [head](int seq, int row, int, int d) {
      return std::cos(static_cast<float>(head * 7 + seq * 3 + row * 11 + d));
    };
  };
  whole.FillK(by_head);
  whole.FillV(by_head);
  whole.FillQ([&](int seq, int row, int head, int d) { return query(head)(seq, row, 0, d); });
  const auto expected = probe.Run(whole);
  const int per_rank = q_heads / ranks;
  for (int rank = 0; expected && rank < ranks; ++rank) {
    const int kv_head = rank * kv_heads / ranks;  // replicated: ranks / kv_heads ranks share one
    AttentionBatch part(probe.Small(per_rank, 1, 32), {1, 3, 6}, {20, 9, 6});
    part.FillK(key(kv_head));
    part.FillV(key(kv_head));
    part.FillQ(
        [&](int seq, int row, int head, int d) { return query(rank * per_rank + head)(seq, row, 0, d); });
    const auto result = probe.Run(part);
    if (!result) return;
    for (int token = 0; token < 10; ++token) {
      for (int head = 0; head < per_rank; ++head) {
        for (int d = 0; d < 32; ++d) {
          const auto at = static_cast<size_t>((token * q_heads + rank * per_rank + head) * 32 + d);
          probe.ExpectNear(result->out[static_cast<size_t>((token * per_rank + head) * 32 + d)],
                           expected->out[at], 1e-5, fmt::format("rank {} of {}", rank, ranks));
        }
      }
    }
  }
}

void MoreRanksThanKvHeadsReplicateHeads(Probe& probe) {
  ExpectRanksEqualTheWhole(probe, 16, 4, 8);
  const Status half = ValidateSpec(MakeSpec(8, 3, 64));
  probe.Expect(!half && half.error().message.find('8') != std::string::npos &&
                   half.error().message.find('3') != std::string::npos,
               "8 query heads on 3 KV heads are not refused with both numbers");
}

void ARanksHeadsUseTheirWholeReplicatedKvHead(Probe& probe) { ExpectRanksEqualTheWhole(probe, 8, 2, 4); }

void EveryRegisteredNameRunsTheProbeTable(Probe& probe) {
  std::set<std::string_view> names;
  for (const KernelEntry* entry : KernelList()) {
    probe.Expect(names.insert(entry->contract.name).second,
                 fmt::format("{} is registered twice", entry->contract.name));
    probe.Expect(entry->kernel != nullptr && entry->kernel->run != nullptr,
                 fmt::format("{} has a contract and no kernel", entry->contract.name));
  }
  // The table on a call that every kernel is made for; Attend fails when another kernel would run.
  const AttentionSpec spec = probe.Spec(2, 1, 64);
  probe.ExpectUProbe(spec, {1, 3, 5, 9}, {9, 9, 5, 20},
                     {4, 3, 3.5, 4, 0, .5, 1, 1.5, 2, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5});
  // A foreign kernel may be made for other calls; one of ours that no probe reaches must not be selectable.
  probe.Expect(probe.runs() > 0 || probe.subject().entry() == nullptr,
               "refuses the plain call in every phase, so no probe has ever run on it");
}

void SixtyFourDecodeStepsAreRight(Probe& probe) {
  const AttentionSpec spec = probe.Spec(2, 1, 64);
  std::vector<int32_t> kv;
  for (int i = 1; i <= 64; ++i) kv.push_back(i);
  // One sequence, decoded token by token: the same keys under every length.
  probe.ExpectRandomIsRight(spec, std::vector<int32_t>(64, 1), kv,
                            {.seed = 4, .seq_ids = std::vector<int32_t>(64, 0)});
}

void TheInterfaceIsNumberedAndTested(Probe& probe) {
  probe.Expect(static_cast<int>(ATTEST_CONFORM_F32) == 1 && static_cast<int>(ATTEST_CONFORM_I8) == 6,
               "the numbers of the element types moved without a new version");
  for (uint64_t i = 0; i < 20; ++i) {
    const AttentionCase c = RandomCase(55, i);
    probe.ExpectRandomIsRight(c.spec, c.q_len, c.kv_len, c.options);
  }
}

constexpr BugCase kSystemCases[] = {
    {"A08", "lmdeploy#1896", "AWindowIsAppliedOrRefusedByName",
     "a model loaded on an engine without windows; loaders read sliding_window into the spec, which a kernel "
     "computes or refuses by the field's name",
     AWindowIsAppliedOrRefusedByName},
    {"A09", "vllm#39640", "EveryAcceptedCombinationOfARouteIsRight",
     "a gate between routes; the choice is a pure function here, and there is no graph capture to allocate "
     "in",
     EveryAcceptedCombinationOfARouteIsRight},
    {"A25", "flash-attention#1579", "APageSizeIsComputedOrRefusedBeforeTheCall",
     "a limit found at the first call; here a page size is computed or refused by the contract",
     APageSizeIsComputedOrRefusedBeforeTheCall},
    {"A38", "ATOM#1595", "APaddedPrefillHasConsistentSizes",
     "padding of captured graphs; the rows of a padded prefill must equal the unpadded ones, and offsets "
     "that "
     "do not cover all rows are an error",
     APaddedPrefillHasConsistentSizes},
    {"A42", "tensorrt-llm#2983", "LayersOfSeveralWindowsReadOnlyTheirOwn",
     "prefix reuse over ring caches; what a window has left behind may be overwritten without effect",
     LayersOfSeveralWindowsReadOnlyTheirOwn},
    {"A43", "tensorrt-llm#8813", "ReusedPagesShowTheirNewContent",
     "pages moved to the host without synchronisation; pages are never moved here, so the check is that a "
     "page filled anew is read anew",
     ReusedPagesShowTheirNewContent},
    {"A44", "tensorrt-llm#2699", "AnFp8CacheGivesTheSameRowsColdAndReused",
     "cause not established in the report; the rows behind a cached fp8 prefix must be those of the whole "
     "prompt",
     AnFp8CacheGivesTheSameRowsColdAndReused},
    {"A45", "vllm#5908", "SoftcapIsAppliedOrRefusedByName",
     "a model run without its softcap; here a kernel computes it or refuses by the field's name",
     SoftcapIsAppliedOrRefusedByName},
    {"A49", "transformers#48307", "MoreRanksThanKvHeadsReplicateHeads",
     "tensor parallel sharding; each rank's call, with KV heads replicated, must equal its heads of the "
     "whole",
     MoreRanksThanKvHeadsReplicateHeads},
    {"A50", "sglang#20967", "ARanksHeadsUseTheirWholeReplicatedKvHead",
     "a norm weight split by rank count, which no attention call sees; what can be checked is that rank r "
     "computes with the whole of KV head r / 2",
     ARanksHeadsUseTheirWholeReplicatedKvHead},
    {"A51", "vllm#31816", "EveryRegisteredNameRunsTheProbeTable", "", EveryRegisteredNameRunsTheProbeTable},
    {"A52", "vllm#41472", "SixtyFourDecodeStepsAreRight",
     "cause not established in the report; 64 teacher-forced positions of one sequence",
     SixtyFourDecodeStepsAreRight},
    {"A55", "vllm#18990", "TheInterfaceIsNumberedAndTested",
     "an enum renumbered by an update; foreign kernels carry a version and a size that are checked when they "
     "are loaded, and every subject runs 20 drawn problems",
     TheInterfaceIsNumberedAndTested},
};

}  // namespace

std::span<const BugCase> SystemBugCases() { return kSystemCases; }

}  // namespace attest::conform
