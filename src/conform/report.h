// What a run found, for people (terminal, one self-contained HTML page) and for programs (JSON, JUnit).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "conform/suite.h"

namespace attest::conform {

// One kernel on one capability.
struct Cell {
  int64_t passed = 0, refused = 0, failed = 0;
  PhaseSet phases = {};                         // of what passed
  std::map<std::string, int64_t> reasons = {};  // why the rest was refused, each with its count
};
[[nodiscard]] Verdict VerdictOf(const Cell& cell);

struct MatrixRow {
  std::string capability = {};
  int64_t trials = 0;
  std::vector<Cell> cells = {};  // one per subject
};
// Rows in the order of the trials. A bug case has a row of its own with `bugs_apart`, else one row holds all.
[[nodiscard]] std::vector<MatrixRow> MatrixOf(const SuiteResult& result, bool bugs_apart);

// "D" decode, "P" prefill, "E" extend, "U" uniform decode.
[[nodiscard]] std::string PhaseLetters(const PhaseSet& phases);

[[nodiscard]] std::string TextReport(const SuiteResult& result, bool bugs_apart);
[[nodiscard]] std::string HtmlReport(const SuiteResult& result);
[[nodiscard]] std::string JsonReport(const SuiteResult& result);
[[nodiscard]] std::string JunitReport(const SuiteResult& result);

}  // namespace attest::conform
