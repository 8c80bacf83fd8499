// attest replay: a recorded attention call, computed again.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "attention/dispatch.h"
#include "attention/replay.h"
#include "base/log.h"
#include "cli/commands.h"

namespace attest {
namespace {

// "sequence 0 row 3 head 5 dim 17: 0.25, the oracle has 0.5 (...)".
std::string Text(const ReplayDifference& difference) {
  const RowVerdict& verdict = difference.verdict;
  const std::string dim = difference.dim ? fmt::format("dim {}", *difference.dim) : std::string("lse");
  const std::string worst = verdict.dim ? fmt::format("dim {}", *verdict.dim) : std::string("lse");
  return fmt::format(
      "first difference at sequence {} row {} head {} {} ({}, {}); the row's worst is {}: {}, the oracle has "
      "{}, "
      "error {:.3g}, budget {:.3g}",
      difference.seq, difference.row, difference.head, dim, AttentionPhaseName(difference.phase),
      difference.kernel, worst, verdict.computed, verdict.expected, verdict.error, verdict.budget);
}

// Returns whether there is a difference.
bool PrintReport(const std::string& what, const ReplayReport& report) {
  std::string routes;
  for (const PlannedRoute& route : report.routes) {
    routes +=
        fmt::format("{}{} {}", routes.empty() ? "" : ", ", AttentionPhaseName(route.phase), route.kernel);
  }
  PrintLine(fmt::format("{} ({})", what, routes));
  if (report.unverifiable_rows > 0) {
    PrintLine(fmt::format("  {} of {} rows cannot be judged: Q, K or V is not finite",
                          report.unverifiable_rows, report.rows));
  }
  if (!report.first) {
    PrintLine(fmt::format("  no difference in {} rows; the largest error is {:.3f} of its budget",
                          report.rows, report.worst_ratio));
    return false;
  }
  PrintLine("  " + Text(*report.first));
  PrintLine(fmt::format("  {} of {} rows are wrong", report.wrong_rows, report.rows));
  return true;
}

void Describe(const AttentionCaseFile& c) {
  PrintLine(fmt::format("computed by {}; {} sequence(s), {}/{} heads of {}, KV {} {}, block size {}",
                        EscapeForLog(c.kernel), c.q_len.size(), c.spec.q_heads, c.spec.kv_heads,
                        c.spec.head_dim, DTypeName(c.spec.kv_dtype), KvLayoutName(c.spec.layout),
                        c.spec.block_size));
  for (const auto& [name, text] : c.notes) {
    PrintLine(fmt::format("  {:<12} {}", EscapeForLog(name), EscapeForLog(text)));
  }
}

// Kernels that accept the case in every phase it has; the others are named with the reason.
Expected<bool> ReplayEach(const AttentionCaseFile& c, const CpuFeatures& cpu, ThreadTeam& team) {
  bool differs = false;
  for (const KernelEntry* entry : KernelList()) {
    const std::string name(entry->contract.name);
    const auto router = AttentionRouter::Create(cpu, name);
    if (!router) {
      PrintLine(fmt::format("{}: not on this CPU", name));
      continue;
    }
    const auto report = ReplayCase(c, *router, team);
    if (report) {
      differs = PrintReport(name, *report) || differs;
    } else if (report.error().code == ErrorCode::kUnsupported) {
      PrintLine(fmt::format("{}: refuses the call", name));
    } else {
      return std::unexpected(report.error());
    }
  }
  return differs;
}

Expected<bool> Replay(const ReplayOptions& options) {
  const CpuFeatures cpu = DetectCpu();
  ATTEST_ASSIGN_OR_RETURN(const AttentionCaseFile c, ReadCaseFile(options.path));
  Describe(c);
  ThreadTeam team({.num_threads = options.threads > 0 ? options.threads : cpu.logical_cpus, .pin = false});
  if (!c.out.empty()) {
    // Judged by the kernels that are named; a machine without them judges by those it would choose.
    auto named = AttentionRouter::Create(cpu, c.kernel);
    if (!named) named = AttentionRouter::Create(cpu);
    auto recorded = named ? JudgeRecorded(c, *named, team) : std::unexpected(named.error());
    if (!recorded) return std::unexpected(recorded.error());
    (void)PrintReport("recorded output", *recorded);
  }
  if (options.kernel == "all") return ReplayEach(c, cpu, team);
  const std::string& kernel = options.kernel.empty() ? c.kernel : options.kernel;
  ATTEST_ASSIGN_OR_RETURN(const AttentionRouter router, AttentionRouter::Create(cpu, kernel));
  ATTEST_ASSIGN_OR_RETURN(const ReplayReport report, ReplayCase(c, router, team));
  return PrintReport("computed again", report);
}

}  // namespace

// 0: no difference when computed again; 1: a difference; 2: it could not be computed.
int RunReplay(const ReplayOptions& options, const HubEnvironment&) {
  const Expected<bool> differs = Replay(options);
  if (differs) return *differs ? 1 : 0;
  std::fflush(stdout);
  std::fprintf(stderr, "attest replay: %s\n", differs.error().message.c_str());
  return 2;
}

}  // namespace attest
