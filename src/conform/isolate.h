// Runs units of work in forked children, so that a kernel that crashes or hangs fails its unit and nothing
// else.
//
// A task is one case; its units are the subjects that run it, in order, in one child (which computes the
// case's truth once). Children claim tasks from a shared counter. The parent must not have started threads
// that a child would need; it only reads pipes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace attest::conform {

struct IsolationOptions {
  int workers = 2;
  double time_limit_s = 10;  // of one unit
};

// In the child: does one unit and returns what the parent shall receive.
using UnitFn = std::function<std::string(int64_t task, int subject)>;
// In the parent: the payload, or kInternal with what ended the child ("crashed: Segmentation fault", "did not
// return within 10 s") and the last line it wrote to standard error.
using UnitDone = std::function<void(int64_t task, int subject, Expected<std::string> payload)>;

// Every unit of every task is done when it returns. kResourceExhausted when no child can be started.
Status RunIsolated(int64_t num_tasks, int num_subjects, const UnitFn& unit, const UnitDone& done,
                   const IsolationOptions& options);

// One unit alone in one child.
Expected<std::string> RunOneIsolated(const std::function<std::string()>& unit, double time_limit_s);

}  // namespace attest::conform
