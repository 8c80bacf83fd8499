#include "conform/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "conform/failure.h"
#include "conform/isolate.h"

namespace attest::conform {
namespace {

using Json = nlohmann::json;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json ToJson(const Record& record) {
  Json refusals = Json::array();
  for (const Reason& reason : record.refusals)
    refusals.push_back({reason.field, reason.value, reason.expected});
  return {{"verdict", static_cast<int>(record.verdict)},
          {"phases",
           {record.phases.decode, record.phases.prefill, record.phases.extend, record.phases.uniform_decode}},
          {"refusals", refusals},
          {"why", record.why},
          {"fit", record.fit}};
}

Record FromJson(const Json& json) {
  Record record;
  record.verdict = static_cast<Verdict>(json["verdict"].get<int>());
  record.phases = {.decode = json["phases"][0],
                   .prefill = json["phases"][1],
                   .extend = json["phases"][2],
                   .uniform_decode = json["phases"][3]};
  for (const Json& reason : json["refusals"]) record.refusals.push_back({reason[0], reason[1], reason[2]});
  record.why = json["why"];
  record.fit = json["fit"];
  record.ran = true;
  return record;
}

// Text from a foreign kernel may hold any bytes.
std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Record FromOutcome(Outcome outcome) {
  return {.verdict = outcome.verdict,
          .phases = outcome.phases,
          .refusals = std::move(outcome.refusals),
          .why = std::move(outcome.why),
          .ran = true};
}

Record FromProbe(const Probe& probe) {
  Record record{.phases = probe.phases(), .refusals = probe.refusals(), .why = probe.failure().value_or("")};
  record.verdict = probe.failure() ? Verdict::kFail : probe.runs() > 0 ? Verdict::kPass : Verdict::kRefused;
  // A call without any row for the subject, and nothing refused, has nothing to say.
  if (record.verdict == Verdict::kRefused && record.refusals.empty()) record.verdict = Verdict::kPass;
  return record;
}

std::string PhaseNames(const PhaseSet& phases) {
  std::string names;
  for (const AttentionPhase phase : kAttentionPhases) {
    if (phases.Has(phase)) names += AttentionPhaseName(phase);
  }
  return names;
}

// The list of a run, with what it takes to run each of it.
struct Work {
  std::vector<Trial> trials;
  std::vector<AttentionCase> cases;            // of the first trials
  std::vector<const Invariance*> invariances;  // of the next
  std::vector<const BugCase*> bugs;            // of the next
  std::vector<uint64_t> random;                // indices, of the last
  uint64_t next_random = 0;

  // The case of a trial that is one.
  [[nodiscard]] std::optional<AttentionCase> CaseOf(size_t trial, uint64_t seed) const {
    if (trial < cases.size()) return cases[trial];
    const size_t fixed = cases.size() + invariances.size() + bugs.size();
    if (trial >= fixed) return RandomCase(seed, random[trial - fixed]);
    return std::nullopt;
  }
  [[nodiscard]] const Invariance* InvarianceOf(size_t trial) const {
    const size_t at = trial - cases.size();
    return at < invariances.size() ? invariances[at] : nullptr;
  }
  [[nodiscard]] const BugCase* BugOf(size_t trial) const {
    return bugs[trial - cases.size() - invariances.size()];
  }
};

bool IsWanted(const SuiteOptions& options, const Trial& trial) {
  return options.filter.empty() || trial.name.find(options.filter) != std::string::npos ||
         trial.capability.find(options.filter) != std::string::npos;
}

// The next `count` problems of the seed.
void AddRandom(Work& work, const SuiteOptions& options, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t index = work.next_random++;
    Trial trial{.part = Part::kRandom,
                .name = fmt::format("random_{}_{}", options.seed, index),
                .capability = "random problems"};
    if (!IsWanted(options, trial)) continue;
    work.trials.push_back(std::move(trial));
    work.random.push_back(index);
  }
}

Work MakeWork(const SuiteOptions& options) {
  Work work;
  const auto wanted = [&](const Trial& trial) { return IsWanted(options, trial); };
  if (!options.recorded.empty()) {
    for (const AttentionCase& c : options.recorded) {
      work.trials.push_back(
          {.part = Part::kCases, .name = c.name, .capability = "recorded case", .what = DescribeCase(c)});
      work.cases.push_back(c);
    }
    return work;
  }
  if (options.cases) {
    std::vector<AttentionCase> all = AttentionCases();
    for (AttentionCase& c : SweepCases(options.quick)) all.push_back(std::move(c));
    // One row of the matrix after the other, in the order in which the capabilities first come up.
    std::map<std::string, size_t> order;
    for (const AttentionCase& c : all) order.try_emplace(c.capability, order.size());
    std::ranges::stable_sort(all, {}, [&](const AttentionCase& c) { return order.at(c.capability); });
    for (AttentionCase& c : all) {
      Trial trial{.part = Part::kCases, .name = c.name, .capability = c.capability, .what = DescribeCase(c)};
      if (!wanted(trial)) continue;
      work.trials.push_back(std::move(trial));
      work.cases.push_back(std::move(c));
    }
  }
  if (options.invariances) {
    for (const Invariance& invariance : Invariances()) {
      Trial trial{.part = Part::kInvariances,
                  .name = std::string(invariance.suite) + "." + invariance.name,
                  .capability = invariance.title,
                  .what = invariance.title};
      if (!wanted(trial)) continue;
      work.trials.push_back(std::move(trial));
      work.invariances.push_back(&invariance);
    }
  }
  if (options.bugs) {
    for (const BugCase& bug : BugCases()) {
      Trial trial{.part = Part::kBugs,
                  .name = BugCaseName(bug),
                  .capability = "public bugs",
                  .what = bug.source,
                  .instead = bug.instead};
      if (!wanted(trial)) continue;
      work.trials.push_back(std::move(trial));
      work.bugs.push_back(&bug);
    }
  }
  // With a time, they are drawn in rounds instead.
  if (options.random && options.minutes <= 0) AddRandom(work, options, options.random_cases);
  return work;
}

// Subjects as one child made them.
class ChildSubjects {
 public:
  explicit ChildSubjects(const std::vector<SubjectInfo>& infos) : infos_(infos), subjects_(infos.size()) {}
  Expected<Subject*> Get(int index) {
    auto& subject = subjects_[static_cast<size_t>(index)];
    if (subject == nullptr) {
      ATTEST_ASSIGN_OR_RETURN(subject, infos_[static_cast<size_t>(index)].make());
    }
    return subject.get();
  }

 private:
  const std::vector<SubjectInfo>& infos_;
  std::vector<std::unique_ptr<Subject>> subjects_;
};

Record RunCase(Subject& subject, Truth& truth) {
  Record record = FromOutcome(TryCase(subject, truth));
  // What passed was measured with a tolerance: it must reject the controls. The numbers of a recorded case
  // are not drawn: its keys may be alike.
  const bool is_drawn = truth.attention_case().options.recorded == nullptr;
  if (is_drawn && record.verdict == Verdict::kPass && !PhaseNames(record.phases).empty()) {
    if (const auto& control = truth.passing_control(subject.arithmetic())) {
      record.verdict = Verdict::kFail;
      record.why = "the suite is blind here: " + *control;
    }
  }
  return record;
}

// The truths of one task: of its case, and of the variants that some subject needed.
class TaskTruths {
 public:
  Truth& Of(int64_t task, int fit, const AttentionCase& c) {
    if (task_ != task) truths_.clear();
    task_ = task;
    auto& truth = truths_[fit];
    if (truth == nullptr) truth = std::make_unique<Truth>(c);
    return *truth;
  }

 private:
  int64_t task_ = -1;
  std::map<int, std::unique_ptr<Truth>> truths_;
};

// The case, or the first variant of it that the subject takes.
Record RunCaseOrFit(Subject& subject, int64_t task, const AttentionCase& c, TaskTruths& truths) {
  Record record = RunCase(subject, truths.Of(task, -1, c));
  if (record.verdict != Verdict::kRefused) return record;
  const std::vector<AttentionCase> fits = FittedCases(c);
  for (size_t i = 0; i < fits.size(); ++i) {
    const bool takes = std::ranges::any_of(kAttentionPhases, [&](AttentionPhase phase) {
      return subject.Refusals({.spec = fits[i].spec, .phase = phase}).empty();
    });
    if (!takes) continue;
    const int fit = static_cast<int>(i);
    Record fitted = RunCase(subject, truths.Of(task, fit, fits[i]));
    if (fitted.verdict == Verdict::kRefused) continue;
    fitted.fit = fit;
    return fitted;
  }
  return record;
}

}  // namespace

const char* PartName(Part part) {
  switch (part) {
    case Part::kCases:
      return "cases";
    case Part::kInvariances:
      return "invariances";
    case Part::kBugs:
      return "bugs";
    case Part::kRandom:
      return "random";
  }
  return "unknown";
}

Expected<std::vector<SubjectInfo>> KernelSubjects(const std::vector<std::string>& names) {
  std::vector<SubjectInfo> subjects;
  const auto add = [&](const KernelEntry& entry) {
    subjects.push_back(
        {.name = std::string(entry.contract.name),
         .words = CpuIsaName(entry.contract.isa),
         .arithmetic = entry.contract.arithmetic,
         .make = [&entry]() -> Expected<std::unique_ptr<Subject>> { return MakeKernelSubject(entry); }});
  };
  if (names.empty()) {
    for (const KernelEntry* entry : RunnableKernels()) add(*entry);
    return subjects;
  }
  for (const std::string& name : names) {
    const KernelEntry* entry = FindKernel(name);
    if (entry == nullptr) {
      return Fail(ErrorCode::kNotFound,
                  fmt::format("attention kernel '{}' does not exist, known: {}", name, KernelNames()),
                  "kernel");
    }
    if (!HasIsa(ThisCpu(), entry->contract.isa)) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("attention kernel '{}' needs {}, which this CPU lacks", name,
                              CpuIsaName(entry->contract.isa)),
                  "kernel");
    }
    add(*entry);
  }
  return subjects;
}

std::vector<AttentionCase> FittedCases(const AttentionCase& c) {
  std::vector<AttentionCase> fits;
  const auto add = [&](AttentionCase fit) {
    if (DescribeCase(fit) != DescribeCase(c)) fits.push_back(std::move(fit));
  };
  AttentionCase without_lse = c;
  without_lse.spec.wants_lse = false;
  for (const char* types :
       {"KV dtype", "query dtype", "descales", "precise mode", "random problems", "recorded case"}) {
    if (c.capability != types) continue;
    add(without_lse);
    return fits;
  }
  for (const AttentionCase& base : {c, without_lse}) {
    if (base.spec.wants_lse != c.spec.wants_lse && c.capability == "LSE") break;
    for (const auto& [q, kv] : {std::pair{DType::kF32, DType::kBF16},
                                {DType::kF32, DType::kF32},
                                {DType::kBF16, DType::kBF16},
                                {DType::kF16, DType::kF16}}) {
      AttentionCase fit = base;
      fit.spec.q_dtype = fit.spec.out_dtype = q;
      fit.spec.kv_dtype = kv;
      add(std::move(fit));
    }
  }
  return fits;
}

std::vector<Trial> ListTrials(const SuiteOptions& options) { return MakeWork(options).trials; }

Expected<SuiteResult> RunSuite(std::vector<SubjectInfo> subjects, const SuiteOptions& options,
                               const std::function<void(int64_t done, int64_t total)>& progress) {
  const double start = Now();
  Work work = MakeWork(options);
  if (work.trials.empty() && !(options.random && options.minutes > 0 && options.filter.empty())) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("no trial has '{}' in its name or capability", options.filter), "filter");
  }
  SuiteResult result{.options = options, .subjects = std::move(subjects)};
  const auto num_subjects = static_cast<int>(result.subjects.size());

  ChildSubjects child(result.subjects);
  TaskTruths truths;
  const UnitFn unit = [&](int64_t task, int index) -> std::string {
    auto subject = child.Get(index);
    if (!subject) return Dump(ToJson(Record{.verdict = Verdict::kFail, .why = subject.error().message}));
    const auto trial = static_cast<size_t>(task);
    if (const auto c = work.CaseOf(trial, options.seed)) {
      return Dump(ToJson(RunCaseOrFit(**subject, task, *c, truths)));
    }
    Probe probe(**subject);
    if (const Invariance* invariance = work.InvarianceOf(trial)) {
      invariance->run(probe);
    } else {
      work.BugOf(trial)->run(probe);
    }
    return Dump(ToJson(FromProbe(probe)));
  };
  int64_t done = 0, first = 0;  // of the trials of this round
  const UnitDone receive = [&](int64_t task, int index, Expected<std::string> payload) {
    Record& record = result.records[static_cast<size_t>(first + task)][static_cast<size_t>(index)];
    if (payload) {
      record = FromJson(Json::parse(*payload));
    } else {
      record = {.verdict = Verdict::kFail, .why = payload.error().message, .ran = true};
    }
    // An hour of drawn problems must fit in memory; their refusals are those of the sweep.
    if (first > 0) record.refusals.clear();
    if (record.verdict == Verdict::kFail) ++result.num_failures;
    if (progress) progress(++done, std::ssize(work.trials) * num_subjects);
  };
  const IsolationOptions isolation{.workers = options.workers, .time_limit_s = options.time_limit_s};
  const UnitFn from_first = [&](int64_t task, int index) { return unit(first + task, index); };
  const auto run_rest = [&]() -> Status {
    result.records.resize(work.trials.size(), std::vector<Record>(static_cast<size_t>(num_subjects)));
    const auto ran =
        RunIsolated(std::ssize(work.trials) - first, num_subjects, from_first, receive, isolation);
    if (!ran) return std::unexpected(ran.error());
    first = std::ssize(work.trials);
    return {};
  };
  ATTEST_RETURN_IF_ERROR(run_rest());
  constexpr int64_t kRound = 32;  // a few seconds, by which the time is passed
  while (options.random && options.recorded.empty() && Now() - start < options.minutes * 60) {
    AddRandom(work, options, kRound);
    if (std::ssize(work.trials) == first) break;  // the filter wants none of them
    ATTEST_RETURN_IF_ERROR(run_rest());
  }

  // Shrink the first failure of each subject and capability.
  std::set<std::pair<int, std::string>> explained;
  for (size_t trial = 0; trial < work.trials.size(); ++trial) {
    for (int subject = 0; subject < num_subjects; ++subject) {
      const Record& record = result.records[trial][static_cast<size_t>(subject)];
      if (!record.ran || record.verdict != Verdict::kFail) continue;
      const Trial& failed = work.trials[trial];
      const std::string key = failed.part == Part::kBugs ? failed.name : failed.capability;
      if (!explained.emplace(subject, key).second) continue;
      Failure failure{.trial = trial, .subject = subject, .why = record.why};
      auto c = work.CaseOf(trial, options.seed);
      if (c && record.fit >= 0) c = FittedCases(*c)[static_cast<size_t>(record.fit)];
      std::function<void(Probe&)> probe;
      if (const Invariance* invariance = c ? nullptr : work.InvarianceOf(trial)) {
        probe = invariance->run;
      } else if (!c) {
        probe = work.BugOf(trial)->run;
      }
      const bool is_new = record.why.starts_with("the suite is blind") ||
                          Explain(failure,
                                  {.options = options,
                                   .info = result.subjects[static_cast<size_t>(subject)],
                                   .trial = failed,
                                   .attention_case = std::move(c),
                                   .probe = std::move(probe)},
                                  result.failures);
      if (is_new) result.failures.push_back(std::move(failure));
    }
  }
  for (size_t trial = 0; trial < work.trials.size(); ++trial) {
    if (work.trials[trial].part == Part::kRandom)
      work.trials[trial].what = DescribeCase(*work.CaseOf(trial, options.seed));
  }
  result.trials = std::move(work.trials);
  result.seconds = Now() - start;
  return result;
}

}  // namespace attest::conform
