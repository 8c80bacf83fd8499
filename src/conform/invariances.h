// What may not change the answer: how a prompt is chunked, how keys are split, who shares the batch and in
// which order, padding, the role that computes a row, the layout of the pages. Each check feeds the same
// numbers in two ways (conform/batch.h) and compares.
#pragma once

#include <vector>

#include "conform/probe.h"

namespace attest::conform {

struct Invariance {
  const char* suite;  // names of the unit test
  const char* name;
  const char* title;  // row of the report
  void (*run)(Probe& probe);
};
[[nodiscard]] const std::vector<Invariance>& Invariances();

}  // namespace attest::conform
