#include "conform/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/escape_markup.h"

namespace attest::conform {
namespace {

std::string Padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// The field and what it expects; a foreign kernel's reason as it stands.
std::string ReasonText(const Reason& reason) {
  return reason.value == "refused" ? fmt::format("{}: {}", reason.field, reason.expected)
                                   : fmt::format("{}: expected {}", reason.field, reason.expected);
}

}  // namespace

Verdict VerdictOf(const Cell& cell) {
  if (cell.failed > 0) return Verdict::kFail;
  return cell.passed > 0 ? Verdict::kPass : Verdict::kRefused;
}

std::string PhaseLetters(const PhaseSet& phases) {
  std::string letters;
  if (phases.decode) letters += 'D';
  if (phases.prefill) letters += 'P';
  if (phases.extend) letters += 'E';
  if (phases.uniform_decode) letters += 'U';
  return letters;
}

std::vector<MatrixRow> MatrixOf(const SuiteResult& result, bool bugs_apart) {
  std::vector<MatrixRow> rows;
  std::map<std::string, size_t> row_of;
  for (size_t trial = 0; trial < result.trials.size(); ++trial) {
    const Trial& t = result.trials[trial];
    const std::string key = bugs_apart && t.part == Part::kBugs ? t.name : t.capability;
    const auto [at, is_new] = row_of.try_emplace(key, rows.size());
    if (is_new) rows.push_back({.capability = key, .cells = std::vector<Cell>(result.subjects.size())});
    MatrixRow& row = rows[at->second];
    ++row.trials;
    for (size_t subject = 0; subject < result.subjects.size(); ++subject) {
      const Record& record = result.records[trial][subject];
      if (!record.ran) continue;
      Cell& cell = row.cells[subject];
      cell.passed += record.verdict == Verdict::kPass ? 1 : 0;
      cell.refused += record.verdict == Verdict::kRefused ? 1 : 0;
      cell.failed += record.verdict == Verdict::kFail ? 1 : 0;
      if (record.verdict == Verdict::kPass) {
        cell.phases.decode |= record.phases.decode;
        cell.phases.prefill |= record.phases.prefill;
        cell.phases.extend |= record.phases.extend;
        cell.phases.uniform_decode |= record.phases.uniform_decode;
      }
      std::map<std::string, int64_t> once;
      // That a kernel is made for other phases is told by the letters, and matters only where nothing else
      // does.
      for (const Reason& reason : record.refusals) {
        if (reason.field != "phase" && reason.field != "max_q_len") once[ReasonText(reason)] = 1;
      }
      if (once.empty() && record.verdict == Verdict::kRefused) once["phase: no rows of its phases"] = 1;
      for (const auto& [text, one] : once) cell.reasons[text] += one;
    }
  }
  return rows;
}

namespace {

std::string CellText(const Cell& cell) {
  switch (VerdictOf(cell)) {
    case Verdict::kFail:
      return fmt::format("FAIL {}", cell.failed);
    case Verdict::kRefused:
      return cell.refused == 0 ? "-" : "refused";
    case Verdict::kPass:
      break;
  }
  const std::string letters = PhaseLetters(cell.phases);
  std::string text = letters.empty() ? "pass" : "pass " + letters;
  if (cell.refused > 0) text += fmt::format(" {}/{}", cell.passed, cell.passed + cell.refused);
  return text;
}

// Why each subject refused what it refused: the reasons that are not about its phases, each once.
std::map<std::string, int64_t> ReasonsOf(const std::vector<MatrixRow>& rows, size_t subject) {
  std::map<std::string, int64_t> all;
  for (const MatrixRow& row : rows) {
    for (const auto& [text, count] : row.cells[subject].reasons) all[text] += count;
  }
  return all;
}

std::string Totals(const SuiteResult& result) {
  int64_t passed = 0, refused = 0, failed = 0;
  for (const auto& records : result.records) {
    for (const Record& record : records) {
      if (!record.ran) continue;
      passed += record.verdict == Verdict::kPass ? 1 : 0;
      refused += record.verdict == Verdict::kRefused ? 1 : 0;
      failed += record.verdict == Verdict::kFail ? 1 : 0;
    }
  }
  return fmt::format("{} passed, {} refused with a reason, {} FAILED", passed, refused, failed);
}

std::string ReplayLine(const Failure& failure) {
  if (!failure.file.empty()) return failure.file.string();
  return failure.file_error.empty() ? "" : "not written: " + failure.file_error;
}

}  // namespace

std::string TextReport(const SuiteResult& result, bool bugs_apart) {
  const std::vector<MatrixRow> rows = MatrixOf(result, bugs_apart);
  std::string text;
  for (size_t i = 0; i < result.subjects.size(); ++i) {
    const SubjectInfo& subject = result.subjects[i];
    text += fmt::format("[{}] {} ({}, judged as {} arithmetic)\n", i + 1, subject.name, subject.words,
                        AttentionArithmeticName(subject.arithmetic));
  }
  size_t width = 0;
  std::vector<size_t> widths;
  for (const MatrixRow& row : rows) width = std::max(width, row.capability.size());
  for (size_t i = 0; i < result.subjects.size(); ++i) {
    widths.push_back(4);
    for (const MatrixRow& row : rows) widths[i] = std::max(widths[i], CellText(row.cells[i]).size());
  }
  text += "\n" + Padded("", width) + "  " + Padded("trials", 6);
  for (size_t i = 0; i < result.subjects.size(); ++i)
    text += "  " + Padded(fmt::format("[{}]", i + 1), widths[i]);
  text += '\n';
  for (const MatrixRow& row : rows) {
    text += Padded(row.capability, width) + "  " + Padded(fmt::format("{:>6}", row.trials), 6);
    for (size_t i = 0; i < row.cells.size(); ++i) text += "  " + Padded(CellText(row.cells[i]), widths[i]);
    while (text.back() == ' ') text.pop_back();
    text += '\n';
  }
  text +=
      "\npass D P E U: right in every row of decode, prefill, extend, uniform decode; n/m: the other m - n "
      "were "
      "refused.\nA case whose element types or LSE a kernel refuses is run with those it takes, except where "
      "they are "
      "what is tried.\n";
  bool any = false;
  for (size_t i = 0; i < result.subjects.size(); ++i) {
    const auto reasons = ReasonsOf(rows, i);
    if (reasons.empty()) continue;
    if (!any) text += "\nRefused, with how many trials each reason stood in:\n";
    any = true;
    text += fmt::format("[{}] {}\n", i + 1, result.subjects[i].name);
    std::vector<std::pair<std::string, int64_t>> sorted(reasons.begin(), reasons.end());
    std::ranges::stable_sort(sorted, std::greater{}, &std::pair<std::string, int64_t>::second);
    constexpr size_t kShown = 12;
    for (size_t j = 0; j < std::min(kShown, sorted.size()); ++j)
      text += fmt::format("    {:>5}  {}\n", sorted[j].second, sorted[j].first);
    if (sorted.size() > kShown)
      text += fmt::format("           and {} more reasons\n", sorted.size() - kShown);
  }
  for (const Failure& failure : result.failures) {
    const Trial& trial = result.trials[failure.trial];
    text += fmt::format("\nFAIL {} on {}\n     {}\n",
                        result.subjects[static_cast<size_t>(failure.subject)].name, trial.name, failure.why);
    if (!failure.smallest.empty()) {
      text += fmt::format("     smallest failing case ({} tried): {}\n     {}\n", failure.attempts,
                          failure.smallest, failure.smallest_why);
    }
    if (!failure.also.empty()) text += fmt::format("     so do {}\n", fmt::join(failure.also, ", "));
    if (const std::string file = ReplayLine(failure); !file.empty())
      text += fmt::format("     file: {}\n", file);
  }
  text += fmt::format("\nseed {}: {} in {:.1f} s\n", result.options.seed, Totals(result), result.seconds);
  return text;
}

std::string JsonReport(const SuiteResult& result) {
  using Json = nlohmann::json;
  Json json{{"format", "attest-conform-1"}, {"seed", result.options.seed}, {"seconds", result.seconds}};
  json["subjects"] = Json::array();
  for (const SubjectInfo& subject : result.subjects) {
    json["subjects"].push_back({{"name", subject.name},
                                {"from", subject.words},
                                {"arithmetic", AttentionArithmeticName(subject.arithmetic)}});
  }
  json["trials"] = Json::array();
  for (size_t trial = 0; trial < result.trials.size(); ++trial) {
    const Trial& t = result.trials[trial];
    Json outcomes = Json::object();
    for (size_t subject = 0; subject < result.subjects.size(); ++subject) {
      const Record& record = result.records[trial][subject];
      if (!record.ran) continue;
      Json outcome{{"verdict", VerdictName(record.verdict)}, {"phases", PhaseLetters(record.phases)}};
      if (!record.why.empty()) outcome["why"] = record.why;
      if (record.fit >= 0) outcome["with_other_types"] = record.fit;
      if (!record.refusals.empty()) {
        Json reasons = Json::array();
        for (const Reason& reason : record.refusals)
          reasons.push_back(
              {{"field", reason.field}, {"value", reason.value}, {"expected", reason.expected}});
        outcome["refusals"] = std::move(reasons);
      }
      outcomes[result.subjects[subject].name] = std::move(outcome);
    }
    Json entry{{"part", PartName(t.part)}, {"name", t.name}, {"capability", t.capability}, {"what", t.what}};
    if (!t.instead.empty()) entry["instead"] = t.instead;
    entry["outcomes"] = std::move(outcomes);
    json["trials"].push_back(std::move(entry));
  }
  json["num_failures"] = result.num_failures;
  json["failures"] = Json::array();
  for (const Failure& failure : result.failures) {
    json["failures"].push_back({{"subject", result.subjects[static_cast<size_t>(failure.subject)].name},
                                {"trial", result.trials[failure.trial].name},
                                {"why", failure.why},
                                {"smallest", failure.smallest},
                                {"smallest_why", failure.smallest_why},
                                {"attempts", failure.attempts},
                                {"also", failure.also},
                                {"file", failure.file.string()}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

// Text for XML; bytes that XML 1.0 does not allow become '?'.
std::string EscapeXml(std::string_view text) {
  std::string out = EscapeMarkup(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') c = '?';
  }
  return out;
}

}  // namespace

std::string JunitReport(const SuiteResult& result) {
  std::string body;
  int64_t tests = 0, failures = 0, skipped = 0;
  for (size_t subject = 0; subject < result.subjects.size(); ++subject) {
    for (size_t trial = 0; trial < result.trials.size(); ++trial) {
      const Record& record = result.records[trial][subject];
      if (!record.ran) continue;
      const Trial& t = result.trials[trial];
      ++tests;
      body += fmt::format("    <testcase classname=\"{}.{}\" name=\"{}\"",
                          EscapeXml(result.subjects[subject].name), PartName(t.part), EscapeXml(t.name));
      if (record.verdict == Verdict::kPass) {
        body += "/>\n";
        continue;
      }
      if (record.verdict == Verdict::kRefused) {
        ++skipped;
        std::string reasons;
        for (const Reason& reason : record.refusals) {
          if (reasons.size() < 400) reasons += (reasons.empty() ? "" : "; ") + ToString(reason);
        }
        body += fmt::format("><skipped message=\"refused: {}\"/></testcase>\n", EscapeXml(reasons));
        continue;
      }
      ++failures;
      std::string smallest;
      for (const Failure& failure : result.failures) {
        if (failure.trial == trial && failure.subject == static_cast<int>(subject) &&
            !failure.smallest.empty())
          smallest = fmt::format("smallest failing case: {}\n{}", failure.smallest, failure.smallest_why);
      }
      body += fmt::format("><failure message=\"{}\">{}</failure></testcase>\n", EscapeXml(record.why),
                          EscapeXml(smallest));
    }
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"attest conform\" "
      "tests=\"{}\" "
      "failures=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n{}  </testsuite>\n</testsuites>\n",
      tests, failures, skipped, result.seconds, body);
}

}  // namespace attest::conform
