// A kernel in another process, for engines that are called from a script (tools/conform_torch.py).
//
// The command is started once per worker. It writes one line of JSON first: {"name": ..., "arithmetic": "f32"
// or "bf16"}. Then it answers each line it reads with one line:
//   {"op": "check", "problem": {...}}      {"ok": true} or {"refused": "field: why"}
//   {"op": "run", "problem": {...}, "case": FILE, "out": FILE}   {"ok": true} or {"error": "..."}
// The case is a file of attention/case_file.h; out receives float32: the output [num_tokens, q_heads,
// v_head_dim], then the LSE [q_heads, num_tokens] when wants_lse.
#pragma once

#include "conform/suite.h"

namespace attest::conform {

// kUnavailable when the command does not start or does not introduce itself within 60 s.
[[nodiscard]] Expected<SubjectInfo> CommandSubject(const std::string& command);

}  // namespace attest::conform
