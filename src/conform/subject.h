// What is put on trial: a kernel of ours, forced by name, or a foreign one behind the same interface. A
// subject says what it refuses; everything else it must compute, and nothing it says is believed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/plan.h"
#include "base/thread_team.h"
#include "conform/batch.h"
#include "conform/judge.h"

namespace attest::conform {

class Subject {
 public:
  virtual ~Subject() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  // What it rounds: the tolerance follows from it.
  [[nodiscard]] virtual AttentionArithmetic arithmetic() const = 0;
  // Whether the same numbers behind other pages, strides and poison must give the same bytes, and not only
  // answers within the tolerance.
  [[nodiscard]] virtual bool is_bit_stable() const = 0;
  // Why it refuses sequences of one phase; empty: it must compute them. `problem` holds exact lengths.
  [[nodiscard]] virtual std::vector<Reason> Refusals(const AttentionProblem& problem) = 0;
  // The same for one call whose sequences are of several phases, each of which it accepts.
  [[nodiscard]] virtual std::vector<Reason> RefusalsOfMixed(const AttentionProblem& problem) = 0;
  // Computes the sequences of one call. `lengths.owned` is set only when takes_owned().
  [[nodiscard]] virtual Status Attend(const AttentionSpec& spec, const AttentionLengths& lengths,
                                      const AttentionParams& params, int num_threads) = 0;
  [[nodiscard]] virtual bool takes_owned() const { return false; }
  // Asks for `num_splits` parts of the keys of each row in the calls that follow; 0: its own choice. Whether
  // it can be asked at all.
  [[nodiscard]] virtual bool can_be_asked_for_splits() const { return false; }
  virtual void AskForSplits(int /*num_splits*/) {}
  // The kernel of ours, for what only its own interface shows; nullptr for a foreign one.
  [[nodiscard]] virtual const KernelEntry* entry() const { return nullptr; }
};

[[nodiscard]] const CpuFeatures& ThisCpu();
// Kernels of this build that this CPU can run.
[[nodiscard]] std::vector<const KernelEntry*> RunnableKernels();
// A kernel of ours; Attend fails when any other kernel would run.
[[nodiscard]] std::unique_ptr<Subject> MakeKernelSubject(const KernelEntry& entry);
// Kernels of ours that this CPU can run, in the order of the dispatcher.
[[nodiscard]] std::vector<std::unique_ptr<Subject>> RunnableSubjects();

// The team of `num_threads` threads of this process (a forked child makes its own).
[[nodiscard]] ThreadTeam& Team(int num_threads);

struct RunOptions {
  int num_threads = 2;
  float fill = kNaN;  // what the outputs hold before
  std::optional<std::vector<int32_t>> owned = {};
  int num_splits = 0;  // where the subject can be asked; 0: its own choice
};

// Exact lengths of some sequences of a batch, as a contract sees them. Sequences without rows count in none.
[[nodiscard]] AttentionProblem ProblemOf(const AttentionSpec& spec, const AttentionLengths& lengths,
                                         AttentionPhase phase, const std::vector<int32_t>& seqs);

struct SubjectRun {
  AttentionResult result;        // zeros in rows that did not run
  PhaseSet phases;               // of the sequences that ran
  std::vector<Reason> refusals;  // of the phases that did not
  [[nodiscard]] bool ran_any() const {
    return phases.decode || phases.prefill || phases.extend || phases.uniform_decode;
  }
};
// Runs the sequences of every phase that the subject accepts, in as few calls as it takes, into outputs
// filled with options.fill. Rows of the others must stay as they are. The error is the subject's own.
[[nodiscard]] Expected<SubjectRun> RunSubject(Subject& subject, AttentionBatch& batch,
                                              const RunOptions& options = {});

// ---- by forced name through the router, as the engine runs it ---------------------------------------------

// The kernel for every phase whose contract accepts the spec, the general one for the others. Empty when the
// kernel accepts no phase.
[[nodiscard]] std::string ForcedWherePossible(const KernelEntry& entry, const AttentionSpec& spec);
// Plans with `forced` and runs once into an output filled with options.fill.
[[nodiscard]] Expected<AttentionResult> RunForced(AttentionBatch& batch, const std::string& forced,
                                                  const RunOptions& options = {});

// One sequence (number 0 of the batch) with its keys cut at `cuts`, e.g. {0, 3, 3, 9}: each range is one
// split (which may be empty), run with the kernel directly, then merged. Everything is filled with NaN first.
[[nodiscard]] AttentionResult RunSplits(AttentionBatch& batch, const KernelEntry& entry,
                                        const std::vector<int32_t>& cuts);

}  // namespace attest::conform
