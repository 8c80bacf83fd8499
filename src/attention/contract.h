// A kernel's contract: what it can do, written once, in words and as a pure function. The dispatcher reads
// nothing else, so what the contract refuses cannot be reached and what it accepts the kernel must compute.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/problem.h"
#include "device/cpu.h"

namespace attest {

// Limits on the lengths of one sequence. They are data, not code, so that the plan can apply them to each
// sequence alone, by two comparisons: a request's kernel then never depends on who shares its batch.
struct LengthLimits {
  std::optional<int32_t> max_q_len = {};   // tokens
  std::optional<int32_t> max_kv_len = {};  // tokens
};

struct PhaseSet {
  bool decode = false;
  bool prefill = false;
  bool extend = false;
  bool uniform_decode = false;
  [[nodiscard]] bool Has(AttentionPhase phase) const;
};
inline constexpr PhaseSet kAllPhases{.decode = true, .prefill = true, .extend = true, .uniform_decode = true};

// What a kernel rounds. The conformance suite derives its tolerance from a plain implementation that rounds
// the same things, and a spec that is `precise` is refused by every kernel that is not kF32.
enum class AttentionArithmetic {
  kF32,   // products, sums and softmax in float32 (or better)
  kBf16,  // queries and softmax weights rounded to bf16 before they are multiplied; sums in float32
};
[[nodiscard]] const char* AttentionArithmeticName(AttentionArithmetic arithmetic);

struct KernelContract {
  std::string_view name;   // "attention_decode_avx2"; what --attention-backend takes
  std::string_view words;  // what it does and does not do, for people
  CpuIsa isa = CpuIsa::kPortable;
  AttentionArithmetic arithmetic = AttentionArithmetic::kF32;
  bool rowwise = false;  // keeps AttentionSpec::rowwise, in every phase it has
  PhaseSet phases;
  LengthLimits limits;
  // Appends one reason for every property of the spec that the kernel cannot handle. Pure; may read the phase
  // but no length (lengths are `limits`). Never null.
  void (*check)(const AttentionProblem& problem, std::vector<Reason>& reasons) = nullptr;
};

// Every reason, in this order: instruction set, phase, arithmetic, lengths (when problem.num_seqs > 0),
// features. Empty: the kernel writes every owned row.
[[nodiscard]] std::vector<Reason> Check(const KernelContract& contract, const AttentionProblem& problem,
                                        const CpuFeatures& cpu);

// For writing checks: Require(reasons, spec.softcap == 0.0f, "softcap", spec.softcap, "0 (off)").
void Require(std::vector<Reason>& reasons, bool holds, std::string_view field, std::string_view value,
             std::string_view expected);
void Require(std::vector<Reason>& reasons, bool holds, std::string_view field, double value,
             std::string_view expected);
// Features a kernel does not have; each one that the spec asks for becomes a reason.
struct Lacks {
  bool softcap = false;
  bool alibi = false;
  bool sinks = false;
  bool sink_tokens = false;
  bool window_left = false;
  bool window_right = false;
  bool chunk = false;
  bool descale = false;
  bool lse = false;
  bool non_causal = false;
};
void RequireWithout(std::vector<Reason>& reasons, const AttentionSpec& spec, const Lacks& lacks);

}  // namespace attest
