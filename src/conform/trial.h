// One case on one subject: refused with a reason, or right in every row. There is no third outcome.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conform/case_list.h"
#include "conform/subject.h"

namespace attest::conform {

enum class Verdict { kPass, kRefused, kFail };
[[nodiscard]] const char* VerdictName(Verdict verdict);  // "pass", "refused", "FAIL"

struct Outcome {
  Verdict verdict = Verdict::kPass;
  PhaseSet phases;               // of the rows that ran
  std::vector<Reason> refusals;  // of the phases that did not
  std::string why;               // of a failure: what was wrong, in one line
};

// What the oracle says of a case, and the budgets that follow, computed when first asked for and shared by
// all subjects.
class Truth {
 public:
  explicit Truth(const AttentionCase& attention_case);
  [[nodiscard]] const AttentionCase& attention_case() const { return case_; }
  [[nodiscard]] AttentionBatch& batch() { return batch_; }
  [[nodiscard]] const AttentionResult& oracle();
  [[nodiscard]] const ErrorBudget& budget(AttentionArithmetic arithmetic);
  // A control that the budget would let pass, in words: then the suite is blind on this case.
  [[nodiscard]] const std::optional<std::string>& passing_control(AttentionArithmetic arithmetic);

 private:
  AttentionCase case_;
  AttentionBatch batch_;
  std::optional<AttentionResult> oracle_;
  std::optional<ErrorBudget> budgets_[2];
  std::optional<std::optional<std::string>> controls_[2];
};

// Runs the case with outputs full of NaN, again with other garbage and one thread, and again behind other
// poison, pages and strides; judges every row of the first against the oracle, and demands the same of the
// others (the same bytes from a subject that is bit stable).
[[nodiscard]] Outcome TryCase(Subject& subject, Truth& truth);

}  // namespace attest::conform
