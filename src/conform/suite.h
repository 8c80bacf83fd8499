// The whole of `attest conform`: which trials there are, running them on subjects in isolated children, and
// shrinking what fails. The files of this folder, in the order of a run:
//   case_list, random problems     what is tried            (case_list.h)
//   batch, guarded_buffer          its tensors              (batch.h)
//   subject, library, command      who is tried             (subject.h, library_subject.h, command_subject.h)
//   judge, trial, probe            what is right            (judge.h, trial.h, probe.h)
//   bug_cases, invariances         trials with exact answers
//   isolate                        one child per worker     (isolate.h)
//   shrink, case_io                the smallest failing case, as a file
//   report                         terminal, HTML, JSON, JUnit
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conform/bug_cases.h"
#include "conform/invariances.h"
#include "conform/trial.h"

namespace attest::conform {

// Who is on trial. `make` is called in children, once each.
struct SubjectInfo {
  std::string name = {};
  std::string words = {};  // where it comes from: an instruction set, a file
  AttentionArithmetic arithmetic = AttentionArithmetic::kF32;
  std::function<Expected<std::unique_ptr<Subject>>()> make = {};
};
// The kernels of ours that this CPU can run, or those named. kNotFound lists the known names.
[[nodiscard]] Expected<std::vector<SubjectInfo>> KernelSubjects(const std::vector<std::string>& names);

enum class Part { kCases, kInvariances, kBugs, kRandom };
[[nodiscard]] const char* PartName(Part part);  // "cases", "invariances", "bugs", "random"

struct SuiteOptions {
  bool cases = true, invariances = true, bugs = true, random = true;
  bool quick = false;
  std::string filter = {};     // a part of the name or of the capability; "" is all
  uint64_t seed = 1;           // of the random problems
  int64_t random_cases = 200;  // without a time
  double minutes = 0;          // keep drawing for this long
  int workers = 2;
  double time_limit_s = 10;                    // of one trial
  std::filesystem::path failures_folder = {};  // where shrunk cases are written; "" writes none
  std::vector<AttentionCase> recorded = {};    // these and nothing else, when there are any (case_io.h)
};

struct Trial {
  Part part = Part::kCases;
  std::string name = {};
  std::string capability = {};  // row of the matrix
  std::string what = {};        // the case in words, the claim of a bug case
  std::string instead = {};     // of a bug case of another layer
};

struct Failure {
  size_t trial = 0;
  int subject = 0;
  std::string why = {};
  std::string smallest = {};           // the shrunk case in words; "" when the trial is no single case
  std::string smallest_why = {};       // what is wrong with it
  int attempts = 0;                    // cases tried while shrinking
  std::vector<std::string> also = {};  // other trials of this subject that shrink to the same case
  std::filesystem::path file = {};
  std::string file_error = {};  // why there is no file
};

struct Record {
  Verdict verdict = Verdict::kPass;
  PhaseSet phases = {};
  std::vector<Reason> refusals = {};
  std::string why = {};
  bool ran = false;  // false: the suite ended before
  int fit = -1;      // the variant of FittedCases that ran in place of a refused case; -1: the case
};

struct SuiteResult {
  SuiteOptions options = {};
  std::vector<SubjectInfo> subjects = {};
  std::vector<Trial> trials = {};
  std::vector<std::vector<Record>> records = {};  // [trial][subject]
  std::vector<Failure> failures = {};  // shrunk: the first per subject and capability, equal ones joined
  int64_t num_failures = 0;            // all
  double seconds = 0;
};

// kInvalidArgument when the filter leaves nothing. `progress` is told after every trial how many are done.
[[nodiscard]] Expected<SuiteResult> RunSuite(
    std::vector<SubjectInfo> subjects, const SuiteOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress);
// The same case with other element types, and without LSE: what is tried when a subject refuses the case's
// own, so that a kernel of f32 alone is tried on windows all the same. Empty where the types are what is on
// trial.
[[nodiscard]] std::vector<AttentionCase> FittedCases(const AttentionCase& attention_case);
// The trials of a run, without running any.
[[nodiscard]] std::vector<Trial> ListTrials(const SuiteOptions& options);

}  // namespace attest::conform
